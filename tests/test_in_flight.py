"""Chunks of a batch under way at a time: the same result, and what is hidden of the exchanges."""

import time
from itertools import product
from types import SimpleNamespace

import contract
import numpy as np
import pytest
from chain import Run, cameras_for, edge_on, exchange_settings
from exchanges import run_ranks
from scenes import look_at, random_gaussians, random_photo
from strip_run import GaussianRun
from transports import HostCudaAware, HostNccl, HostStaged

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi.host import HostExchange
from splaxel_mpi.mpi.pipeline import alone, in_flight
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.settings import Train
from splaxel_mpi.train.step import Steps
from splaxel_mpi.visibility.saturation import Saturation

pytestmark = pytest.mark.timeout(120)
DEPTHS = (1, 2, 3)
CELLS = 5  # more than ranks, so that some have several


class LateEvents:
    """Mixed in before a transport: its device is behind whoever looks, until somebody waits."""

    def _mark(self):
        event = SimpleNamespace(done=False)
        event.synchronize = lambda: setattr(event, "done", True)
        return event


class LateStaged(LateEvents, HostStaged):
    pass


class LateCudaAware(LateEvents, HostCudaAware):
    pass


class CarriedStaged(LateStaged):
    """A thread waits for its exchanges."""

    _spare_core = staticmethod(lambda comm: True)
    _follow_device = staticmethod(lambda: lambda: None)


KINDS = [HostExchange, HostCudaAware, LateStaged, LateCudaAware, CarriedStaged, HostNccl]


def work(name, stops, log, found=None):
    """Generator that notes its stops and returns its name."""
    for stop in range(stops):
        log.append((name, stop))
        yield
    log.append((name, stops))
    return name


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("depth", DEPTHS)
def test_order_of_work(count, depth):
    """No more than ``depth`` at a time; results in order; of two works the older one makes every
    stop first; each begins only when there is room."""
    log, looks = [], []
    works = (work(name, 3, log) for name in range(count))
    assert list(in_flight(works, depth, lambda: looks.append(1))) == list(range(count))
    assert len(log) == 4 * count and bool(looks) == (min(depth, count) > 1)
    for stop in range(4):
        assert [name for name, s in log if s == stop] == list(range(count))
    under_way, most = set(), 0
    for name, stop in log:
        under_way.add(name)
        most = max(most, len(under_way))
        if stop == 3:
            under_way.discard(name)
    assert most == min(depth, count)
    assert alone(work("x", 2, log)) == "x"


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_work_may_leave_out_a_stop(depth):
    """What others do after it still comes in the order of the works."""
    def stages(name, halo, log):
        for stage in ("pixels", *["halo"] * halo, "loss", "gradients"):
            log.append((stage, name))
            yield

    for halos in product((False, True), repeat=4):
        log = []
        works = (stages(name, halo, log) for name, halo in enumerate(halos))
        list(in_flight(works, depth, lambda: None))
        for stage in ("pixels", "loss", "gradients"):
            assert [name for found, name in log if found == stage] == list(range(4)), halos


def scene(exchange, strategy, boundary, precision, saturated, real=np.float32):
    """A Run over the exchange, with its cameras and photographs."""
    gaussians = random_gaussians(300, 3, real, size=0.25)
    gaussians.opacities[:] = 4  # dark behind the first cells
    host = HostBackend(real, threads=1)
    if strategy == "gaussian":
        run, cut = GaussianRun(gaussians, exchange, host, 1e-4), SimpleNamespace(axis=())
    else:
        means = gaussians.means[exchange.rank :: exchange.ranks]
        cut = build(means, np.ones(len(means), np.int64), CELLS, exchange)
        saturation = Saturation(1e-3, "residual") if saturated else None
        run = Run(
            edge_on(gaussians, cut), cut, exchange, exchange.ranks, exchange.rank, host, 1e-4,
            boundary, saturation, exchange_settings(strategy, precision),
        )
    first, inside, nothing, _ = cameras_for(cut)
    cameras = [first, look_at([-3.5, 3.0, -1.0], [0, 0, 0], 90, 60), inside, nothing]
    return run, cameras, {i: random_photo(camera, i) for i, camera in enumerate(cameras)}


def visits(exchange, depth, *how):
    """Gradients, losses, masks and bytes of four batches. In the second tiles are masked, before
    the third Gaussians fade, in the fourth tiles are live again."""
    run, cameras, photos = scene(exchange, *how)
    found = {}
    for visit in range(4):
        if visit == 2:
            run.gaussians.opacities[: len(run.gaussians) // 2] = -9
        gradients, losses = run.gradients(cameras, photos, 1, in_flight=depth)
        found.update({f"{name} {visit}": array for name, array in gradients.items()})
        found[f"losses {visit}"] = losses
    kinds = "ghosts", "ghosts back", "streams", "streams back", "halo", "gaussians"
    found["bytes"] = np.array([exchange.bytes[kind] for kind in kinds])
    if run.renderer.saturation:
        found["tiles"] = run.renderer.saturation.take_counts()
        for key, mask in sorted(run.renderer.saturation.masks.kept.items()):
            found[f"mask {key}"] = mask.bits
    return found


HOW = [
    ("overlap", "exact", "float32", True),
    ("overlap", "filter", "float16", False),
    ("overlap", "none", "float32", True),
    ("owner", "exact", "float16", True),
    ("owner", "none", "float32", False),
    ("gaussian", "exact", "float32", False),
]


def assert_same(one, other):
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how)))
def test_depth_changes_nothing(comm, how):
    """Four views in as many chunks, one of which sees nothing; masks are made, used, and cells
    woken while the next chunk is under way."""
    depths = DEPTHS if how == HOW[0] else DEPTHS[:2]
    found = [visits(HostExchange(comm), depth, *how) for depth in depths]
    for other in found[1:]:
        assert_same(found[0], other)
    assert any(array.any() for name, array in found[0].items() if name.startswith("means"))
    if how[-1]:
        tiles = comm.allreduce(found[0]["tiles"])
        assert (tiles > 0).all(), "nothing masked, or nothing woken"


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_transports_change_nothing(comm, kind):
    how = "owner", "exact", "float32", True
    assert_same(visits(kind(comm), 2, *how), visits(HostExchange(comm), 1, *how))


def test_ranks_begin_the_same_exchanges_in_the_same_order():
    """Ranks as threads, of which one has no Gaussian in sight: the board of ThreadExchange fails
    where two are in different calls."""

    def step(exchange):
        run, cameras, photos = scene(exchange, "owner", "exact", "float32", True)
        if exchange.rank == 0:
            run.gaussians.opacities[:] = -9
        run.gradients(cameras, photos, 1, in_flight=3)
        return exchange.calls

    first, *others = run_ranks(3, step)
    assert all(calls == first for calls in others)
    assert first["alltoallv", "streams"] == 4


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def exchange(request, comm):
    return request.param(comm)


@pytest.mark.mpi
def test_several_under_way(exchange):
    contract.check_several_under_way(exchange)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [LateStaged, LateCudaAware, CarriedStaged])
def test_whoever_waits_sends_what_it_began(comm, kind):
    """Rank 0 waits for the second exchange first, the others for the first: without what rank 0
    has begun and not yet given to MPI they would never come to the second."""
    exchange = kind(comm)
    counts = np.full(comm.size, 3)
    first = exchange.start_alltoallv("a", np.full(counts.sum(), 1.0), counts, counts)
    if comm.rank:
        assert first.wait()[0].all()
    second = exchange.start_alltoallv("b", np.full(counts.sum(), 2.0), counts, counts)
    assert (second.wait()[0] == 2).all() and first.wait()[0].all()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [HostExchange, CarriedStaged])
@pytest.mark.parametrize("busy", [False, True])
def test_who_computes_loses_nothing(comm, kind, busy):
    """Rank 0 is late by 0.3 s: the others wait as long, unless they have something else to do."""
    exchange = kind(comm, measure_wait=True)
    counts, data = np.ones(comm.size, np.int64), np.zeros(comm.size)
    exchange.alltoallv("first", data, counts, counts)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    pending = exchange.start_alltoallv("test", data, counts, counts)
    exchange.progress()
    if comm.rank and busy:
        time.sleep(0.6)
    pending.wait()
    seconds, waited = exchange.seconds["test"], exchange.waited["test"]
    assert waited <= seconds + 1e-9 and exchange.flight["test"] >= 0
    if comm.rank:
        # 0.1 s: a busy machine
        assert (seconds < 0.1) == (waited < 0.1) == busy


@pytest.mark.mpi(min_size=2)
def test_a_thread_tells_when_data_came(comm):
    """On their way for 0.3 s, the copy after them, of which the rank saw nothing."""

    class Slow(CarriedStaged):
        def _bring_out(self, pairs):
            time.sleep(0.3)
            yield from super()._bring_out(pairs)

    exchange = Slow(comm, measure_wait=True)
    counts, data = np.ones(comm.size, np.int64), np.zeros(comm.size)
    pending = exchange.start_alltoallv("test", data, counts, counts)
    exchange.progress()
    time.sleep(1)
    pending.wait()
    assert 0.3 <= exchange.flight["test"] < 0.9 and exchange.seconds["test"] < 0.2


@pytest.mark.mpi(min_size=2)
def test_a_failure_of_the_thread_is_the_rank_s(comm):
    class Broken(CarriedStaged):
        def _bring_out(self, pairs):
            raise RuntimeError("no way back")

    exchange = Broken(comm)
    counts = np.ones(comm.size, np.int64)
    pending = exchange.start_alltoallv("test", np.zeros(comm.size), counts, counts)
    exchange.progress()
    with pytest.raises(RuntimeError, match="no way back"):
        pending.wait()


def test_memory_that_ends_stops_the_overlap_too():
    steps = Steps(None, None, Train(chunk=1, in_flight=3))
    assert steps.shrink() and steps.settings.in_flight == 1
    assert not steps.shrink()
    assert not Steps(None, None, Train(chunk=1, in_flight=1)).shrink()


def test_a_depth_of_nothing_is_refused(tmp_path):
    from splaxel_mpi import config

    with pytest.raises(UserError, match="train.in_flight"):
        config.parse(f"data:\n  path: {tmp_path}\n", "test", ["train.in_flight=0"])
