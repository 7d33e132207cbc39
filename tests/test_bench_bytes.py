"""`splaxel-mpi bench bytes`: its counts are what training sends, and its bars."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from splaxel_mpi import log
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.cli import cli
from splaxel_mpi.compose import make_compositor
from splaxel_mpi.compose.boundary import Exact
from splaxel_mpi.data.gaussian_city import cameras
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.tools.bench import counting, traffic
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import forward_backward
from splaxel_mpi.visibility.saturation import RESIDUAL, Saturation

pytestmark = [pytest.mark.timeout(200), pytest.mark.up_to_2]
SIDE, SIZE = 150.0, (120, 72)


def cut_city(count, cells, exchange):
    """(CellCity, tree) of a small city, opaque so that few Gaussians saturate tiles."""
    city = counting.CellCity(count, SIDE, exchange, 1)
    city.rows["opacities"][:] += 5
    city.rows["scales"][:] += 0.5
    tree = build(city.rows["means"], None, cells, exchange)
    city.migrate(tree, exchange)
    return city, tree


def sent(exchange, before):
    """Bytes of all ranks by kind since ``before``, which this rank had sent by then."""
    kinds = sorted(set().union(*exchange.comm.allgather(list(exchange.bytes))))
    local = np.array([exchange.bytes[kind] - before.get(kind, 0) for kind in kinds], np.int64)
    return dict(zip(kinds, exchange.comm.allreduce(local).tolist()))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", counting.STRATEGIES)
def test_counted_bytes_are_those_that_training_sends(comm, strategy):
    """Both visits of some views, kind by kind: 8,000 Gaussians seen from the street and the air."""
    from splaxel_mpi.mpi.host import HostExchange

    exchange, host = HostExchange(comm), HostBackend(np.float32, 1)
    city, tree = cut_city(8000, comm.size, exchange)
    views = [SimpleNamespace(camera=camera, index=index)
             for index, camera in enumerate(cameras("mixed", 5, SIDE, 1, *SIZE))]
    counter = counting.Counter(city, tree, host, exchange)
    counted = [counter.count(view.camera) for view in views]
    layout = Layout(tree, comm.rank, comm.size, city.offsets)
    settings = SimpleNamespace(strategy=strategy, precision="float32")
    compositor = make_compositor(settings, host, exchange, layout, [0.0] * 3)
    renderer = Renderer(host, exchange, layout, compositor, counting.NEAR, 1e-4, Exact(),
                        Saturation(1e-4, RESIDUAL))
    photo = np.full((SIZE[1], SIZE[0], 3), 99, np.uint8)
    gradients = State.fresh(city.gaussians, None).gradients()
    train = SimpleNamespace(chunk=1, in_flight=1, ssim_weight=0.2)
    for stage in (counting.OCCUPIED, counting.UNSATURATED):
        for view, count in zip(views, counted):
            before = dict(exchange.bytes)
            forward_backward(renderer, city.gaussians, [view], {view.index: photo}, 0, train,
                             gradients)
            found, expected = sent(exchange, before), count.bytes(strategy, stage)
            assert {k: v for k, v in found.items() if v} == {k: v for k, v in expected.items() if v}
    assert sum(count.masks for count in counted) > 0
    assert counted[0].ghosts[counting.OCCUPIED].sum() > 0


@pytest.mark.mpi(min_size=2)
def test_processes_share_the_counting(comm):
    """Five cells on any number of processes: the same counts as in one."""
    from splaxel_mpi.mpi.host import HostExchange

    found = []
    for one in (comm, comm.Split(comm.rank)):
        exchange = HostExchange(one)
        city, tree = cut_city(5000, 5, exchange)
        counter = counting.Counter(city, tree, HostBackend(np.float32, 1), exchange)
        found.append([counter.count(camera) for camera in cameras("mixed", 2, SIDE, 1, *SIZE)])
    for shared, alone in zip(*found):
        for name in counting.STRATEGIES:
            for stage in counting.STAGES:
                assert shared.bytes(name, stage) == alone.bytes(name, stage)
        assert shared.baseline == alone.baseline and shared.lean == alone.lean
        np.testing.assert_array_equal(shared.visible, alone.visible)


def test_work_and_busiest_ranks():
    """What the cost model takes from a count, against its sums."""
    alone = pytest.importorskip("mpi4py.MPI").COMM_SELF
    from splaxel_mpi.mpi.host import HostExchange

    exchange = HostExchange(alone)
    city, tree = cut_city(8000, 4, exchange)
    (camera,) = cameras("street", 1, SIDE, 1, *SIZE)
    view = counting.Counter(city, tree, HostBackend(np.float32, 1), exchange).count(camera)
    gaussians, pixels = view.work(counting.OCCUPIED)
    assert pixels.sum() >= view.pixels(counting.OCCUPIED).sum() > 0
    drawn = view.tiles[counting.OCCUPIED].any(1)
    whole = view.visible + view.ghosts[counting.OCCUPIED]
    np.testing.assert_array_equal(gaussians, np.where(drawn, whole, 0))
    for name in counting.STRATEGIES:
        total = sum(view.bytes(name).values())
        # no rank sends more than all, and all send at least half of what the busiest exchange
        assert total / 4 < view.busiest(name).max() <= 2 * total


def test_a_table_of_two_cities(tmp_path):
    file = tmp_path / "bytes.json"
    options = ["bench", "bytes", "--gaussians", "20k", "--gaussians", "60k", "--side", "150",
               "--ranks", "2", "--ranks", "4", "--count", "2", "--size", "160x96"]
    done = CliRunner().invoke(cli, [*options, "--json", str(file)])
    log.close()
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert report["command"]["gaussians"] == [20000, 60000] and report["backend"] == "host"
    rows = report["rows"]
    assert [(r["gaussians"], r["ranks"], r["kind"]) for r in rows] == [
        (count, ranks, kind) for count in (20000, 60000) for ranks in (2, 4)
        for kind in ("street", "aerial")
    ]
    for row in rows:
        stages = row["stages"]
        for name in counting.STRATEGIES:
            amounts = [stages[stage]["bytes"][name]["streams"] for stage in counting.STAGES]
            assert amounts == sorted(amounts, reverse=True) and amounts[0] > 0
            total = stages["unsaturated"]["bytes"][name]["total"]
            assert np.mean(row["totals"][name]) == pytest.approx(total)
        assert row["outside"] < 0.02
        possible = stages["possible"]["bytes"]
        # every cell has every pixel: 16 (d - 1) bytes a pixel, d times or forth and back
        pixels, d = 160 * 96, row["ranks"]
        assert possible["overlap"]["streams"] == 16 * pixels * d * (d - 1)
        assert possible["owner"]["streams"] == 16 * pixels * (d - 1)
    for small, large in zip(rows[:4], rows[4:]):  # the same views and ranks
        assert small["baseline"]["total"] * 1.5 < large["baseline"]["total"]
        for name in counting.STRATEGIES:
            # pixels do not grow with the Gaussians; the baseline sends more from some 50,000 on
            assert traffic.pixel_bytes(large, name) < 1.1 * traffic.pixel_bytes(small, name)
            assert traffic.total(large, name) < large["baseline"]["total"]
    assert f"{traffic.total(rows[0], 'overlap') / 1e6:.2f}" in done.output
