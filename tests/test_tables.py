"""Demand, tables and bitmaps of random chunks against plain loops (tests/tables.py)."""

from types import SimpleNamespace

import numpy as np
import pytest
from exchanges import run_ranks
from tables import Plain, chain_of, grown, overlap, owners, piece_table

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.compose import bitmaps
from splaxel_mpi.compose.streams import Streams
from splaxel_mpi.compose.tables import make_tables
from splaxel_mpi.mpi.pipeline import alone
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.order import visibility_order, visibility_orders
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.visibility.demand import Demand, Owned, training, whole_image
from splaxel_mpi.visibility.owners import assign
from splaxel_mpi.visibility.tiles import bounding_rect, dilate

# 1040 pixels are 65 tiles: more than a word has bits; 1024 as many
SIZES = [(97, 61), (65, 16), (5, 300), (16, 16), (1040, 50), (1024, 33)]
# (cells, ranks): several a rank, ranks without a cell, one of each
DEALS = [(1, 1), (1, 3), (3, 1), (2, 2), (5, 2), (7, 3), (3, 5), (4, 4)]


def camera_of(size, x=0.0):
    return Camera(*size, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.array([x, 0.0, 0.0]))


def random_sets(random, rows, camera):
    """Sets of tiles, (rows, tile_count) bool: rectangles with holes, all, none."""
    tiles_x, tiles_y = camera.tiles
    out = np.zeros((rows, tiles_y, tiles_x), bool)
    for row in out:
        x, y = np.sort(random.integers(0, [[tiles_x + 1], [tiles_y + 1]], (2, 2)))
        row[y[0] : y[1], x[0] : x[1]] = True
        row &= random.random(row.shape) >= random.choice([0.0, 0.3])
        row |= random.random() < 0.1
    return out.reshape(rows, -1)


@pytest.fixture
def random():
    return np.random.default_rng(17)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_demand_of_training_views(random, size, ranks):
    camera, load = camera_of(size), np.zeros(ranks, np.int64)
    rule = Owned(ranks)
    for _ in range(10):
        held = random_sets(random, ranks, camera)
        found = training(held, camera)
        for name, want in zip(("supervised", "needed", "counted"), overlap(held, camera)):
            np.testing.assert_array_equal(getattr(found, name), want, name)
        assert found.halo is None
        owner = owners(held, camera, load)
        np.testing.assert_array_equal(assign(held, camera, load), owner)
        found = rule(held, camera)
        supervised = owner == np.arange(ranks)[:, None]
        halo = np.stack([grown(row, camera) & ~row for row in supervised])
        np.testing.assert_array_equal(found.supervised, supervised)
        np.testing.assert_array_equal(found.needed, supervised)
        np.testing.assert_array_equal(found.counted, owner)
        assert (found.halo is None) == (not halo.any())
        if found.halo is not None:
            np.testing.assert_array_equal(found.halo, halo)
        pixels = np.minimum(16, [camera.width - 16 * np.arange(camera.tiles[0])])
        pixels = pixels * np.minimum(16, camera.height - 16 * np.arange(camera.tiles[1]))[:, None]
        load += supervised @ pixels.ravel()
        assert rule.load.tolist() == load.tolist()


@pytest.mark.parametrize("size", SIZES)
def test_sets_of_tiles(random, size):
    camera = camera_of(size)
    tiles_x, tiles_y = camera.tiles
    for tiles in random_sets(random, 20, camera):
        np.testing.assert_array_equal(dilate(tiles, camera), grown(tiles, camera))
        rows, columns = np.nonzero(tiles.reshape(tiles_y, tiles_x))
        want = 0, 0, 0, 0
        if len(rows):
            want = (max(0, 16 * columns.min() - 10), max(0, 16 * rows.min() - 10),
                    min(camera.width, 16 * columns.max() + 26),
                    min(camera.height, 16 * rows.max() + 26))
        assert bounding_rect(tiles, camera, 10) == want


def make_chunk(random, cells, ranks, rule):
    """Cameras of three views, tiles of every cell and what the ranks demand."""
    cameras = [camera_of(SIZES[k], random.uniform(-cells, 1)) for k in random.permutation(6)[:3]]
    cameras.append(cameras[-1])
    held = [random_sets(random, cells, camera) for camera in cameras]
    layout = Layout(chain_of(cells), 0, ranks, np.zeros(2, np.int64))
    demands = [rule(layout.by_rank(h), camera) for h, camera in zip(held, cameras)]
    return cameras, held, demands


def anything(random):
    """A rule of which hardly a part follows from another."""

    def demand(held, camera):
        needed, supervised = (random_sets(random, len(held), camera) for _ in range(2))
        needed |= supervised  # strips are of tiles that somebody shows, beside a rank's own
        halo = random_sets(random, len(held), camera) & ~supervised
        halo &= [grown(row, camera) for row in supervised]
        return Demand(supervised, needed, np.zeros(camera.tile_count, np.int64), halo)

    return demand


def works_of(layout, cameras, held):
    """What one rank knows of the views."""
    return [
        SimpleNamespace(camera=camera, masks=object(), parts=[
            SimpleNamespace(cell=cell, held=np.flatnonzero(tiles[cell]).astype(np.int32))
            for cell in layout.local
        ])
        for camera, tiles in zip(cameras, held)
    ]


@pytest.mark.parametrize("which", ["overlap", "owner", "root", "anything"])
@pytest.mark.parametrize("cells, ranks", DEALS)
def test_tables_of_all_ranks(random, cells, ranks, which):
    rules = {"overlap": training, "owner": Owned(ranks), "root": whole_image(ranks - 1),
             "anything": anything(random)}
    cameras, held, demands = make_chunk(random, cells, ranks, rules[which])
    tree, backend, streams, halos = chain_of(cells), HostBackend(np.float32), [], []
    orders = [visibility_order(tree, camera.center) for camera in cameras]
    for rank in range(ranks):
        layout = Layout(tree, rank, ranks, np.zeros(2, np.int64))
        works = works_of(layout, cameras, held)
        found = make_tables(backend, layout, works, held, demands)
        want = Plain(layout, cameras, held, demands, orders)
        assert (found.rows, found.own) == (len(want.pool), want.own)
        for name in ("tiles", "places"):
            for a, b in zip(getattr(found, name), getattr(want, name)):
                assert a.dtype == np.int32 and a.tolist() == list(b), name
        assert found.slots.dtype == np.int32 and found.slots.flags.c_contiguous
        np.testing.assert_array_equal(found.slots, want.slots)
        np.testing.assert_array_equal(found.host_slots, want.slots)
        assert found.device_tiles.tolist() == np.concatenate(want.tiles).tolist()
        assert found.ends == [0, *np.cumsum([len(tiles) for tiles in want.tiles])]
        own = [part.held for work in works for part in work.parts]
        assert found.own_tiles.tolist() == np.concatenate([[], *own]).tolist()
        for rows, parts in zip(found.split(np.arange(found.rows)), found_rows(want, layout)):
            assert [part.tolist() for part in rows] == parts
        for name, sent in (("sent", True), ("got", False)):
            streams.append(check_route(getattr(found, name), want.whole, sent, ranks))
            halos.append(check_route(getattr(found, f"halo_{name}"), want.strips, sent, ranks))
    for pixels in (streams, halos):
        sent, got = np.array(pixels[::2]), np.array(pixels[1::2])
        np.testing.assert_array_equal(sent, got.T)
    assert ranks == 1 or cells == 1 or np.any(streams)


def found_rows(want, layout):
    """Own rows of the pool: per view a list over local cells."""
    return [
        [[row for (view, c, _), row in want.pool.items() if (view, c) == (v, cell)]
         for cell in layout.local]
        for v in range(len(want.cameras))
    ]


def check_route(found, pieces, sent, ranks):
    """Compare a Route with lists of pieces for each rank; its pixels."""
    lists = [pieces(other, sent) for other in range(ranks)]
    table, pixels = piece_table([row for part in lists for row, _ in part],
                                [rect for part in lists for _, rect in part])
    np.testing.assert_array_equal(found.table, table)
    np.testing.assert_array_equal(found.host, table)
    assert found.pieces.tolist() == [len(part) for part in lists]
    assert found.pixels.sum() == pixels
    assert found.pixels.tolist() == [
        sum(int((x1 - x0) * (y1 - y0)) for _, (x0, y0, x1, y1) in part) for part in lists
    ]
    return found.pixels


def test_sets_of_another_shape_are_refused(random):
    cameras, held, demands = make_chunk(random, 2, 2, training)
    layout = Layout(chain_of(2), 0, 2, np.zeros(2, np.int64))
    works = works_of(layout, cameras, held)
    with pytest.raises(ValueError, match="expected tiles of shape"):
        make_tables(HostBackend(np.float32), layout, works, held[1:] + held[:1], demands)


@pytest.mark.parametrize("cells, ranks", [(1, 2), (3, 2), (2, 3), (7, 3)])
def test_bitmaps_and_flags_travel(random, cells, ranks):
    """Every rank knows what all cells hold; flags return to where the tiles came from."""
    rule = Owned(ranks)
    cameras, held, demands = make_chunk(random, cells, ranks, rule)
    flags = [random.random(camera.tile_count) < 0.5 for camera in cameras]
    tree = chain_of(cells)

    def check(exchange):
        layout = Layout(tree, exchange.rank, ranks, np.zeros(2, np.int64))
        works = works_of(layout, cameras, held)
        for found, want in zip(alone(bitmaps.gather(works, layout, exchange)), held):
            assert found.dtype == bool
            np.testing.assert_array_equal(found, want)
        tables = make_tables(HostBackend(np.float32), layout, works, held, demands)
        streams = Streams(HostBackend(np.float32), exchange, works, tables, False)
        found = np.zeros(tables.rows, bool)
        shown = tables.host_slots >= 0
        tiles = np.concatenate([flag[tiles] for flag, tiles in zip(flags, tables.tiles)])
        found[tables.host_slots[shown]] = np.broadcast_to(tiles[:, None], shown.shape)[shown]
        alone(streams.give_back_flags(found))
        for rows, work, flag in zip(tables.split(found), works, flags):
            for row, part in zip(rows, work.parts):
                np.testing.assert_array_equal(row, flag[part.held])

    run_ranks(ranks, check)


def test_trees_that_are_none():
    """A checkpoint may hold anything."""
    tree = chain_of(4)
    assert visibility_orders(tree, np.array([[9.0, 0, 0], [-9, 0, 0]])).tolist() == [
        [3, 2, 1, 0], [0, 1, 2, 3]
    ]
    for name, node, value in (("left", 0, 0), ("right", 1, 7), ("left", 2, -9), ("axis", 0, 3),
                              ("right", 0, -2), ("left", 1, -1)):
        broken = chain_of(4)
        getattr(broken, name)[node] = value
        with pytest.raises(ValueError, match="every cell once"):
            visibility_orders(broken, np.zeros((1, 3)))
