"""Splats of a chunk of views and their ghosts: what leaves, where it lands, what comes back."""

from types import SimpleNamespace

import numpy as np
import pytest

from scenes import look_at, random_gaussians
from splaxel_mpi.backends.base import EXTENT_X, EXTENT_Y, SPLAT, Splats, U, V
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.assign import cells_of
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.tree import Tree

NEAR, DEGREE, WIDTH = 0.05, 2, 9


def cameras():
    """Odd sizes, one of them sees nothing."""
    return [
        look_at([3.5, -3.2, 1.0], [0, 0, 0], 97, 61),
        look_at([-5, 0.5, 0], [-9, 0.5, 0.2], 33, 17),
        look_at([0.3, 0.2, -0.4], [1.5, 0.4, 0.3], 49, 33),
    ]


def three_cells():
    """x < -0.2, then y < 0.1, then the rest."""
    return Tree(np.array([0, 1]), np.array([-0.2, 0.1]), np.array([-1, -2]), np.array([1, -3]))


def scene(ranks, rank, real=np.float32, count=900):
    """(this rank's Gaussians, grouped by cell; Layout)."""
    gaussians, tree = random_gaussians(count, 4, real), three_cells()
    cells = cells_of(tree, gaussians.means)
    layout = Layout(tree, rank, ranks, np.zeros(1, np.int64))
    mine = [np.flatnonzero(cells == cell) for cell in layout.local]
    offsets = np.cumsum([0, *map(len, mine)])
    rows = np.concatenate([np.zeros(0, np.int64), *mine])
    return gaussians.take(rows), Layout(tree, rank, ranks, offsets)


def masks(share, seed=1):
    """Random masks of three cells for each view, None for the last one."""
    random = np.random.default_rng(seed)
    dark = [random.random((3, camera.tile_count)) < share for camera in cameras()]
    return [*dark[:-1], None]


def on_host(splats, backend):
    """Splats as arrays of the host."""
    return Splats(*map(backend.to_host, (splats.rows, splats.data, splats.ids)))


def brute_force(splats, camera, layout, dark):
    """(cell, splat) of the ghosts of a view, in order: by single splats, on the host."""
    own, host = layout.cells_of(splats.rows), HostBackend(np.float32)
    tiles_x, tiles_y = camera.tiles
    found = []
    for k in range(len(splats)):
        _, cells = host.reach(splats.slice(k, k + 1), own[k : k + 1], camera, layout.tree)
        u, v, wide, high = splats.data[k, [U, V, EXTENT_X, EXTENT_Y]]
        left, right = (int(np.floor((u + s * wide) / 16)) for s in (-1, 1))
        top, bottom = (int(np.floor((v + s * high) / 16)) for s in (-1, 1))
        box = np.s_[max(top, 0) : bottom + 1, max(left, 0) : right + 1]
        for cell in cells.tolist():
            if dark is None or not dark[cell].reshape(tiles_y, tiles_x)[box].all():
                found.append((cell, k))
    return sorted(found)


def route(backend, ranks, rank, share):
    """(Layout, Routed) of the scene."""
    gaussians, layout = scene(ranks, rank)
    projected = backend.project_views(gaussians.map(backend.to_device), cameras(), DEGREE, NEAR)
    return layout, backend.start_route(projected, layout, masks(share)).take()


def check_routes(backend, ranks, rank, share):
    layout, routed = route(backend, ranks, rank, share)
    splats = [on_host(view, backend) for view in routed.splats]
    expected = [brute_force(view, camera, layout, dark)
                for view, camera, dark in zip(splats, cameras(), masks(share))]
    triples = sorted((c, v, k) for v, pairs in enumerate(expected) for c, k in pairs)
    assert triples
    assert backend.to_host(routed.index).tolist() == [k for _, _, k in triples]
    for (cell, view), count in np.ndenumerate(routed.counts):
        assert count == sum(triple[:2] == (cell, view) for triple in triples)
    for view, ends in zip(splats, routed.ends):
        own = layout.cells_of(view.rows)
        assert np.diff(ends).tolist() == [int((own == cell).sum()) for cell in layout.local]


@pytest.mark.parametrize("ranks, rank", [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("share", [0.0, 0.7])
def test_ghosts_are_those_of_single_splats(ranks, rank, share):
    check_routes(HostBackend(np.float32), ranks, rank, share)


def there_and_back(backend, ranks, rank):
    """Two ranks send this one what it sends, for its first cell, and get gradients back. What is
    what by name, arrays on the host."""
    layout, routed = route(backend, ranks, rank, 0.3)
    records = backend.pack_ghosts(routed)
    arrived = np.zeros((2, len(layout.local), len(cameras())), np.int64)
    arrived[:, 0] = routed.counts.sum(0)
    routed.arrived = arrived
    records = backend.xp.concatenate([records, records])
    parts = backend.place_ghosts(routed, records, arrived)
    gradients, start = [], 0
    for of_view, given in zip(parts, backend.gradient_rows(routed, WIDTH)):
        gradients.append([])
        for part, out in zip(of_view, given):
            values = (start + np.arange(len(part) * WIDTH)).reshape(-1, WIDTH) % 97
            start += values.size
            values = backend.to_device(values.astype(np.float32))
            if out is not None:
                out[...] = values
            gradients[-1].append(values if out is None else out)
    ghosts, host = int(routed.counts.sum()), backend.to_host
    before = [[host(part).copy() for part in view] for view in gradients]
    back = backend.pack_gradients(routed, gradients, WIDTH)
    returned = back[:ghosts] + 2 * back[ghosts:]
    sums = backend.add_gradients(routed, gradients, returned, WIDTH)
    return SimpleNamespace(
        counts=routed.counts, index=host(routed.index), ends=routed.ends, ghosts=ghosts,
        views=[on_host(view, backend) for view in routed.splats], records=host(records),
        parts=[[on_host(part, backend) for part in view] for view in parts],
        gradients=before,  # sums may be made in their place
        back=host(back), returned=host(returned), sums=[host(view) for view in sums],
    )


def check_parts(found):
    """Parts are own splats, then what came for the first cell, by rank; gradients of the latter
    leave in the order these came in."""
    start = np.cumsum(found.counts.sum(0)) - found.counts.sum(0)
    for v, view in enumerate(found.parts):
        for cell, part in enumerate(view):
            own = slice(*found.ends[v][cell : cell + 2])
            size, count = own.stop - own.start, 0 if cell else int(found.counts[:, v].sum())
            assert len(part) == size + 2 * count
            for name in ("rows", "data", "ids"):
                np.testing.assert_array_equal(getattr(part, name)[:size],
                                              getattr(found.views[v], name)[own])
            assert (part.rows[size:] == -1).all()
            for rank in range(2 if count else 0):
                here = slice(size + rank * count, size + (rank + 1) * count)
                first = rank * found.ghosts + start[v]
                there = slice(first, first + count)
                records = found.records[there]
                np.testing.assert_array_equal(part.data[here], records[:, :SPLAT])
                np.testing.assert_array_equal(part.ids[here],
                                              records[:, SPLAT:].copy().view(np.int64).ravel())
                np.testing.assert_array_equal(found.gradients[v][cell][here], found.back[there])


def check_sums(found):
    """Gradients are added at their splats; they are whole numbers."""
    expected, end = [np.zeros((len(view), WIDTH), np.float32) for view in found.views], 0
    for v, ends in enumerate(found.ends):
        for cell, gradient in enumerate(found.gradients[v]):
            own = slice(*ends[cell : cell + 2])
            expected[v][own] = gradient[: own.stop - own.start]
    for cell, v in np.argwhere(found.counts).tolist():
        index = found.index[end : end + found.counts[cell, v]]
        expected[v][index] += found.returned[end : end + len(index)]
        end += len(index)
    for sums, want in zip(found.sums, expected):
        np.testing.assert_array_equal(sums, want)


# three cells of one rank, one cell of each of three
@pytest.mark.parametrize("ranks, rank", [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_ghosts_come_and_their_gradients_go(ranks, rank):
    found = there_and_back(HostBackend(np.float32), ranks, rank)
    check_parts(found)
    check_sums(found)
