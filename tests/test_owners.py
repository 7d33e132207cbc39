"""Who composes which part of a view, and the bytes of the strategies against their formulas."""

from types import SimpleNamespace

import numpy as np
import pytest

from chain import Run, cameras_for, exchange_settings
from exchanges import exchange_of
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.compose import bitmaps
from splaxel_mpi.compose.volume import pixel_volume
from splaxel_mpi.mpi.pipeline import alone
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.visibility.demand import Owned, training
from splaxel_mpi.visibility.owners import MACRO, assign
from splaxel_mpi.visibility.tiles import areas, strips

SIZES = [(1920, 1080), (97, 61), (65, 16), (5, 900), (16, 16)]


def camera_of(width, height):
    return Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))


def random_held(rng, ranks, camera, empty=0.3):
    """Tiles that ranks hold: rectangles, and some tiles that nobody holds."""
    tiles_x, tiles_y = camera.tiles
    held = np.zeros((ranks, tiles_y, tiles_x), bool)
    for row in held[: max(1, ranks - 1)]:
        x, y = np.sort(rng.integers(0, [[tiles_x + 1], [tiles_y + 1]], (2, 2)))
        row[y[0] : y[1], x[0] : x[1]] = True
    held &= rng.random((tiles_y, tiles_x)) >= empty
    return held.reshape(ranks, -1)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_tile_has_one_owner_that_takes_part(rng, size, ranks):
    camera = camera_of(*size)
    tiles_x, tiles_y = camera.tiles
    for _ in range(20):
        held = random_held(rng, ranks, camera)
        load = rng.integers(0, 10**6, ranks)
        owner = assign(held, camera, load)
        assert owner.shape == (camera.tile_count,)
        if held.any():
            assert held.any(1)[owner].all()
        pixels = held * areas(camera)
        for y in range(0, tiles_y, MACRO):
            for x in range(0, tiles_x, MACRO):
                inside = np.zeros((tiles_y, tiles_x), bool)
                inside[y : y + MACRO, x : x + MACRO] = True
                inside = inside.ravel()
                (rank,) = set(owner[inside].tolist())
                mine = pixels[:, inside].sum(1)
                assert mine[rank] == mine.max()
                if mine.max():
                    equals = np.flatnonzero(mine == mine.max())
                    assert rank == min(equals, key=lambda r: (-pixels[r].sum(), load[r], r))


def test_ties_and_empty_parts_even_out_the_loads():
    """Two ranks hold the same half of every view; a third, that holds nothing, gets nothing."""
    camera = camera_of(640, 256)
    held = np.zeros((3, camera.tile_count), bool)
    held[:2, : camera.tile_count // 2] = True
    rule = Owned(3)
    for view in range(1, 5):
        rule(held, camera)
        assert rule.load.sum() == view * 640 * 256 and rule.load[2] == 0
        assert abs(rule.load[0] - rule.load[1]) <= (16 * MACRO) ** 2 * (view + 1)
    rule.start_batch()
    assert not rule.load.any()
    nobody = rule(np.zeros_like(held), camera)
    assert nobody.supervised.sum() == camera.tile_count and nobody.supervised.all(1).any()


@pytest.mark.parametrize("size", SIZES)
def test_strips_are_the_pixels_within_reach(rng, size):
    """The rectangle around the pixels that lie 10 pixels or less from the set, by distance."""
    camera = camera_of(*size)
    tiles_x, tiles_y = camera.tiles
    tiles = rng.random(camera.tile_count) < 0.2
    sides = strips(tiles, camera)
    inside = np.repeat(np.repeat(tiles.reshape(tiles_y, tiles_x), 16, 0), 16, 1)
    inside = inside[: camera.height, : camera.width]
    near = grown(inside, 10)
    chosen = rng.permutation(camera.tile_count)[:200]
    for tile in chosen[~tiles[chosen]]:
        y, x = 16 * (tile // tiles_x), 16 * (tile % tiles_x)
        rows, columns = np.nonzero(near[y : y + 16, x : x + 16])
        if len(rows):
            found = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            assert tuple(sides[tile]) == found


def grown(image, reach):
    """(height, width) bool widened by so many pixels in all directions."""
    near = np.pad(image, reach)
    for axis, length in enumerate(image.shape):
        near = np.any([near.take(range(k, k + length), axis) for k in range(2 * reach + 1)], axis=0)
    return near


def expected_bytes(by_cell, layout, camera, width):
    """(overlap, owner without strips, strips) of one view from (cells, tile_count) bitmaps, by
    looking at single pixels; width: bytes of one on the way."""
    tiles_x, tiles_y = camera.tiles
    held = layout.by_rank(by_cell)
    owner = assign(held, camera, np.zeros(layout.ranks, np.int64))

    def pixels(tiles):
        grid = np.repeat(np.repeat(tiles.reshape(tiles_y, tiles_x), 16, 0), 16, 1)
        return grid[: camera.height, : camera.width]

    home = held.sum(1).argmax()
    overlap = owned = halo = 0
    for rank, row in enumerate(held):
        others = sum(pixels(cell).astype(int) for cell in by_cell[layout.owner != rank])
        seen = pixels(row | ~held.any(0) if rank == home else row)
        overlap += width * int(others[grown(seen, 16)].sum())
        mine = pixels(owner == rank)
        owned += 2 * width * int(others[mine].sum())
        if mine.any():
            near, sides = grown(mine, 10), strips(owner == rank, camera)
            touched = [t for t in np.flatnonzero((owner != rank) & held.any(0))
                       if near[16 * (t // tiles_x) :, 16 * (t % tiles_x) :][:16, :16].any()]
            sizes = sides[touched, 2:] - sides[touched, :2]
            halo += 3 * 4 * int(sizes.prod(1).sum())
    return overlap, owned, halo


@pytest.mark.parametrize("size", [(330, 170), (97, 61)])
@pytest.mark.parametrize("half, width", [(False, 16), (True, 10)])
def test_volumes_follow_the_formulas(rng, size, half, width):
    """F d (d - 1) and 2 F (d - 1) pixels and strips, counted pixel by pixel; three ranks, the
    first of two cells."""
    camera = camera_of(*size)
    layout = SimpleNamespace(ranks=3, owner=np.array([0, 0, 1, 2]))
    layout.by_rank = lambda rows: np.stack([rows[0] | rows[1], rows[2], rows[3]])
    for _ in range(4):
        by_cell = random_held(rng, 4, camera, 0.1)
        held = layout.by_rank(by_cell)
        overlap, owned, halo = expected_bytes(by_cell, layout, camera, width)
        found = pixel_volume(by_cell, layout, training(held, camera), camera, False, half=half)
        assert (found.streams, found.back, found.halo) == (overlap, 0, 0)
        found = pixel_volume(by_cell, layout, Owned(3)(held, camera), camera, True, half=half)
        assert (found.streams, found.back, found.halo) == (owned // 2, owned // 2, halo)


@pytest.mark.parametrize("half", [False, True])
def test_owner_sends_no_more_than_overlap(rng, half):
    """Everywhere two cells or more, of as many ranks: in part of the image or all of it."""
    camera = camera_of(640, 360)
    for ranks in (2, 3, 5, 8):
        layout = SimpleNamespace(ranks=ranks, owner=np.arange(ranks))
        held = random_held(rng, ranks + 1, camera, 0.0)[:ranks]
        held[:2] = True
        overlap = pixel_volume(held, layout, training(held, camera), camera, False, half=half)
        owner = pixel_volume(held, layout, Owned(ranks)(held, camera), camera, True, half=half)
        assert 0 < owner.total <= overlap.total


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.parametrize("strategy", ["overlap", "owner"])
def test_ranks_send_what_bitmaps_foretell(comm, strategy, precision):
    """To the byte, with two cells a rank and a view of several macro-tiles."""
    exchange = exchange_of(comm)
    gaussians = random_gaussians(300, 2, np.float32)
    tree = build(gaussians.means[comm.rank :: comm.size], None, 2 * comm.size, exchange)
    cameras = [look_at([4.5, -3.2, 1.0], [0, 0, 0], 210, 120), *cameras_for(tree)[:3]]
    run = Run(gaussians, tree, exchange, comm.size, comm.rank, HostBackend(np.float32), 1e-4,
              settings=exchange_settings(strategy, precision))
    rule, layout = run.renderer.compositor.training, run.renderer.layout
    works, _ = run.renderer.draw(run.gaussians, cameras, 3, [rule] * len(cameras))
    held = alone(bitmaps.gather(works, layout, exchange))
    exchange.bytes.clear()
    run.gradients(cameras, {i: random_photo(c, i) for i, c in enumerate(cameras)}, chunk=3)
    sent = [exchange.bytes[kind] for kind in ("streams", "streams back", "halo")]
    sent = comm.allreduce(np.array(sent, np.int64))
    run.renderer.compositor.start_batch()
    owner, half = strategy == "owner", precision == "float16"
    volumes = [pixel_volume(rows, layout, rule(layout.by_rank(rows), camera), camera, owner,
                            half=half) for rows, camera in zip(held, cameras)]
    want = np.array([(v.streams, v.back, v.halo) for v in volumes])
    assert sent.tolist() == want.sum(0).tolist()
    assert want[:, 0].any() and (want[:, 1:].any(0) == owner).all()


@pytest.mark.mpi(min_size=2)
def test_owner_trains_as_overlap_does(comm):
    """Gradients of a batch with a view of many macro-tiles, in chunks; float64: 1e-10."""
    exchange = exchange_of(comm)
    gaussians = random_gaussians(200, 8)
    tree = build(gaussians.means[comm.rank :: comm.size], None, comm.size + 1, exchange)
    cameras = [look_at([3.5, -3.2, 1.0], [0, 0, 0], 170, 150), *cameras_for(tree)]
    photos = {i: random_photo(camera, i) for i, camera in enumerate(cameras)}
    found = {}
    for strategy in ("overlap", "owner"):
        run = Run(gaussians, tree, exchange, comm.size, comm.rank, HostBackend(np.float64), 0.0,
                  settings=exchange_settings(strategy))
        found[strategy] = run.gradients(cameras, photos, chunk=2)
    np.testing.assert_allclose(found["owner"][1], found["overlap"][1], rtol=1e-10)
    for name, want in found["overlap"][0].items():
        error = np.linalg.norm(found["owner"][0][name] - want)
        assert error <= 1e-10 * np.linalg.norm(want), name
