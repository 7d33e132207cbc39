"""Strategy gaussian: it is plain 3DGS whatever the ranks, and it sends what it must and no more."""

from types import SimpleNamespace

import numpy as np
import pytest

from chain import BACKGROUND, DEFAULT_STOP, EXACT, NEAR, Run, assert_equal
from exchanges import SelfExchange, run_ranks
from scenes import look_at, random_gaussians
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.compose.halo import PARTS, borders
from splaxel_mpi.compose.strips import (
    Balance, cut, row_instances, rows_of_run, tile_boxes, touched,
)
from splaxel_mpi.partition.deal import dealt_ranks
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.tools.bench.gaussian_traffic import gaussian_traffic
from splaxel_mpi.visibility.tiles import dilate
from strip_run import GaussianRun, compare_with_plain, scene

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("strips", ["predicted", "measured"])
def test_ranks_equal_plain_in_double(ranks, strips):
    run_ranks(ranks, lambda exchange: compare_with_plain(
        exchange, np.float64, 0.0, EXACT[np.float64], strips=strips))


@pytest.mark.parametrize("real, stop, bars, absolute", [
    (np.float32, 0.0, EXACT[np.float32], False), (np.float32, 1e-4, DEFAULT_STOP, True)])
def test_ranks_equal_plain_in_single(real, stop, bars, absolute):
    run_ranks(3, lambda exchange: compare_with_plain(exchange, real, stop, bars, absolute))


def test_absolute_statistics_equal_plain():
    """Two more columns of gradients come back."""
    run_ranks(2, lambda exchange: compare_with_plain(
        exchange, np.float64, 0.0, EXACT[np.float64], sides=True))


@pytest.mark.parametrize("ranks", [2, 3])
def test_equals_overlap_on_the_same_ranks(ranks):
    """Two ways that share projection, lists and blending, but neither cells nor composition."""

    def check(exchange):
        host = HostBackend(np.float64, threads=1)
        gaussians, cameras, photos = scene(np.float64, 11)
        means = gaussians.means[exchange.rank :: exchange.ranks]
        tree = build(means, None, exchange.ranks + 2, exchange)
        pixels = Run(gaussians, tree, exchange, exchange.ranks, exchange.rank, host, 0.0)
        run = GaussianRun(gaussians, exchange, host, 0.0)
        assert_equal(run, pixels, cameras, photos, EXACT[np.float64])

    run_ranks(ranks, check)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("real", [np.float64, np.float32])
def test_processes_equal_plain(comm, real):
    from splaxel_mpi.mpi.host import HostExchange

    exchange = HostExchange(comm)
    run = compare_with_plain(exchange, real, 0.0, EXACT[real])
    sent, width = exchange.bytes, np.dtype(real).itemsize
    assert sent["gaussians"] > 0 and sent["halo"] > 0
    # images return no gradients: less comes back than the same splats took out
    back = exchange.allreduce("test", np.array([sent["gaussians back"]], np.int64))[0]
    assert back > 0 and back % (9 * width) == 0
    assert run.renderer.ghost_count > 0


def test_ranks_without_gaussians():
    def check(exchange):
        host = HostBackend(np.float64, threads=1)
        gaussians, cameras, photos = scene(np.float64, 1)
        one = gaussians.take(slice(0, 1))
        run = GaussianRun(one, exchange, host, 0.0)
        single = Run(one, Tree.single(), SelfExchange(), 1, 0, host, 0.0)
        assert_equal(run, single, cameras, photos, EXACT[np.float64])
        nothing = GaussianRun(gaussians.take(slice(0, 0)), exchange, host, 0.0)
        image = nothing.image(cameras[0])
        assert image is None or np.abs(image - BACKGROUND).max() == 0

    run_ranks(3, check)


def test_dropped_splats_stay_at_home():
    """Of a fraction of the opacities, each rank still draws its own in its own strip."""

    def check(exchange):
        host = HostBackend(np.float64, threads=1)
        gaussians, cameras, photos = scene(np.float64, 3)
        out = []
        for drop in (0.0, 0.5, 1.0):
            run = GaussianRun(gaussians, exchange, host, 0.0, drop=drop)
            image = run.image(cameras[0])
            gradients, _ = run.gradients(cameras, photos, chunk=2)
            assert all(np.isfinite(values).all() for values in gradients.values())
            out.append((run.renderer.ghost_count, image))
        sent = [exchange.allreduce("test", np.array([count]))[0] for count, _ in out]
        assert sent[0] > 1.2 * sent[1] > 0 and sent[2] == 0
        if exchange.rank == 0:
            errors = [np.abs(image - out[0][1]).max() for _, image in out]
            assert 0 == errors[0] < 1e-3 < errors[1] < errors[2]

    run_ranks(3, check)


def test_one_rank_drops_nothing():
    compare_with_plain(SelfExchange(), np.float64, 0.0, EXACT[np.float64], drop=1.0)


def splats_of(camera, seed=0, count=300):
    host = HostBackend(np.float32, threads=1)
    gaussians = random_gaussians(count, seed, np.float32, size=0.2)
    return host, host.project(gaussians, camera, 0, NEAR)


@pytest.mark.parametrize("size", [(97, 61), (200, 33), (16, 16), (33, 150)])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_splats_go_to_the_strips_that_list_them(size, ranks):
    """To no strip less than the tile lists say, to none that their box does not meet."""
    camera = look_at([2.5, -2, 0.5], [0, 0, 0], *size)
    host, splats = splats_of(camera)
    boxes = tile_boxes(splats, camera, np)
    work = row_instances(boxes, camera, np) + 1
    starts = cut(work, camera, ranks)
    lists = host.tile_lists(splats, camera)
    strip = np.searchsorted(starts[1:], lists.tiles, side="right")
    strips = np.repeat(strip, np.diff(lists.offsets))
    listed = set(zip(lists.items.tolist(), strips.tolist()))
    index, rank = touched(boxes, starts, camera, np)
    found = set(zip(index.tolist(), rank.tolist()))
    assert len(found) == len(index) and listed <= found
    grid = np.arange(camera.tile_count).reshape(camera.tiles[::-1])
    for i, top, bottom, left, right in zip(*vars(boxes).values()):
        tiles = grid[top : bottom + 1, left : right + 1]
        owners = np.searchsorted(starts[1:], tiles.ravel(), side="right")
        assert {(i, owner) for owner in owners} == {pair for pair in found if pair[0] == i}


def test_counted_rows_bound_the_lists():
    camera = look_at([2.5, -2, 0.5], [0, 0, 0], 300, 180)
    host, splats = splats_of(camera, 4, 2000)
    rows = row_instances(tile_boxes(splats, camera, np), camera, np)
    lists = host.tile_lists(splats, camera)
    listed = np.bincount(lists.tiles // camera.tiles[0], np.diff(lists.offsets), camera.tiles[1])
    assert (rows >= listed).all() and rows.sum() < 1.35 * listed.sum()


def test_strips_share_the_work():
    camera = SimpleNamespace(tiles=(40, 30), tile_count=1200)
    work = np.random.default_rng(0).lognormal(0, 1.5, 30)
    starts = cut(work, camera, 7)
    assert starts[0] == 0 and starts[-1] == 1200 and (np.diff(starts) >= 0).all()
    by_tile = np.repeat(work / 40, 40)
    shares = np.add.reduceat(by_tile, starts[:-1])
    # a run begins at a whole tile: off by one tile of the heaviest row
    assert np.abs(shares - work.sum() / 7).max() <= work.max() / 40
    assert rows_of_run(starts[2], starts[3], work, camera).sum() == pytest.approx(1)
    assert not rows_of_run(5, 5, work, camera).any()


def test_measured_time_moves_strips():
    """A row that takes more than predicted gets more; half of what it was is remembered."""
    camera = look_at([2.5, -2, 0.5], [0, 0, 0], 64, 64)
    other = look_at([2.5, -2, 0.6], [0, 0, 0], 64, 64)
    balance, work = Balance(), np.array([10.0, 10.0, 20.0, 20.0])
    np.testing.assert_array_equal(balance.correct(camera, work), work)
    balance.visit(camera, work, np.array([3.0, 1.0, 2.0, 2.0]))
    np.testing.assert_allclose(balance.correct(camera, work), [3, 1, 2, 2])
    balance.visit(camera, work, np.array([1.0, 1.0, 2.0, 0.0]))
    assert balance.correct(camera, work)[:3] == pytest.approx([2, 1, 2])
    assert 1 <= balance.correct(camera, work)[3] < 1.01
    np.testing.assert_array_equal(balance.correct(other, work), work)


@pytest.mark.parametrize("size", [(97, 61), (40, 200)])
@pytest.mark.parametrize("run", [(0, 3), (5, 6), (8, 19), (10, 10)])
def test_borders_hold_ten_pixels_around_a_strip(size, run):
    camera = look_at([2, 2, 2], [0, 0, 0], *size)
    tiles_x, tiles_y = camera.tiles
    supervised = np.zeros(camera.tile_count, bool)
    supervised[slice(*run)] = True
    found = np.zeros((tiles_y, 16, tiles_x, 16), bool)
    for tiles, part in zip(borders(dilate(supervised, camera), supervised, camera), PARTS):
        pixels = np.zeros(256, bool)
        pixels[part] = True
        found[tiles // tiles_x, :, tiles % tiles_x] |= pixels.reshape(16, 16)
    found = found.reshape(16 * tiles_y, 16 * tiles_x)
    inside = np.kron(supervised.reshape(tiles_y, tiles_x), np.ones((16, 16), bool))
    wanted = np.zeros_like(inside)
    for y, x in np.argwhere(inside):
        wanted[max(0, y - 10) : y + 11, max(0, x - 10) : x + 11] = True
    assert (found >= wanted).all()


def test_deal_is_even_and_depends_on_ids_alone():
    ids = np.random.default_rng(0).integers(0, 2**62, 80_000)
    ranks = dealt_ranks(ids, 8)
    counts = np.bincount(ranks, minlength=8)
    # 10,000 each, standard deviation 94
    assert len(counts) == 8 and np.abs(counts - 10_000).max() < 470
    np.testing.assert_array_equal(dealt_ranks(ids[::-1], 8)[::-1], ranks)


@pytest.mark.mpi(min_size=2)
def test_predicted_traffic_is_what_travels(comm):
    """The bytes that `bench` counts in one process are those that ranks send."""
    from splaxel_mpi.mpi.host import HostExchange

    exchange, host = HostExchange(comm), HostBackend(np.float32, threads=1)
    gaussians, cameras, photos = scene(np.float32, 5)
    GaussianRun(gaussians, exchange, host, 0.0).gradients(cameras, photos, chunk=2)
    kinds = ("gaussians", "gaussians back", "halo")
    sent = exchange.allreduce("test", np.array([exchange.bytes[kind] for kind in kinds]))
    ranks = exchange.ranks
    expected = [
        gaussian_traffic(host.project(gaussians, camera, 3, NEAR), camera, ranks)
        for camera in cameras
    ]
    # before the splats of a chunk every rank tells each other one how many come, 8 bytes a view
    sent[0] -= 8 * len(cameras) * ranks * (ranks - 1)
    assert sent.tolist() == [sum(getattr(t, name) for t in expected)
                             for name in ("out", "back", "halo")]
    assert sum(t.lean for t in expected) * 92 == (sent[0] + sent[1]) * 80
