"""Steps that never wait for the GPU: the same as those of the general path, also when a view does
not fit the arrays made for it.

The rasterizer adds in a fixed order here, so both paths run the same operations; where one kernel
replaces two (fused Adam) the compiler may round a product differently.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from chain import BACKGROUND, NEAR, Run
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends import cuda_tally
from splaxel_mpi.backends.cuda_launch import Recording
from splaxel_mpi.backends.cuda_step import FreeRunning
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.settings import Train
from splaxel_mpi.train.one_rank import OneRank
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import Steps, make_steps

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
STOP = 1e-4
# first and second moments, parameters; the fused kernel against gradient then Adam
FUSED = 2e-5


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("mpi4py")
    from splaxel_mpi.backends.cuda import CudaBackend

    backend = CudaBackend()
    backend.deterministic = True
    return backend


def views():
    """Near, far, odd sizes, one that sees nothing: what views need differs a hundredfold."""
    cameras = [
        look_at([9, -7, 2], [0, 0, 0], 49, 33),
        look_at([3.5, -3.2, 1.0], [0, 0, 0], 97, 61),
        look_at([-5, 0.5, 0], [-9, 0.5, 0.2], 33, 17),
        look_at([0.3, 0.2, -0.4], [1.5, 0.4, 0.3], 333, 201),
        look_at([-3, 3, 1], [0, 0, 0], 160, 96),
        look_at([0, 4, 0.5], [0, 0.2, 0], 97, 61),
    ]
    return [SimpleNamespace(camera=camera, index=i) for i, camera in enumerate(cameras)]


def settings(**changes):
    # epsilon 1e-15 turns the rounding of a gradient that cancels into a full step
    return Train(epsilon=1e-6, images=1000, **changes)


def start(backend, gaussians, train, kind):
    """(state, steps) of one rank and one cell."""
    from mpi4py import MPI

    from splaxel_mpi.mpi.staged import StagedExchange

    exchange = StagedExchange(MPI.COMM_SELF)
    run = Run(gaussians, Tree.single(), exchange, 1, 0, backend, STOP)
    state = State.fresh(run.gaussians, run.renderer.layout.offsets)
    optimizer = Optimizer(backend, train, 1.0, 1)
    if kind is Steps:
        return state, Steps(run.renderer, optimizer, train)
    return state, make_steps(run.renderer, optimizer, train)


def train(backend, gaussians, settings_, batch, kind=OneRank, rounds=2):
    """State, losses and visible splats after some steps of ``batch`` views."""
    state, steps = start(backend, gaussians, settings_, kind)
    assert isinstance(steps, kind)
    order = views() * rounds
    photos = {view.index: backend.to_device(random_photo(view.camera, view.index))
              for view in order}
    shares = []
    for first in range(0, len(order), batch):
        degree = min(3, first // 2)
        shares.append(steps.step(state, order[first : first + batch], photos, degree))
    shares.append(steps.settle())
    return state, np.concatenate(shares), steps.renderer.take_counts()[0]


def compare(found, expected, bar, loss=1e-6):
    (state, shares, visible), (want, want_shares, want_visible) = found, expected
    np.testing.assert_allclose(shares, want_shares, rtol=loss, atol=1e-12)
    assert (visible, state.step, state.images_seen) == (
        want_visible, want.step, want.images_seen)
    np.testing.assert_array_equal(state.count.get(), want.count.get())
    arrays = [(state.norm, want.norm)]
    for name in GROUPS:
        arrays += [(one[name], other[name]) for one, other in
                   ((state.first, want.first), (state.second, want.second))]
        arrays.append((getattr(state.gaussians, name), getattr(want.gaussians, name)))
    for one, other in arrays:
        one, other = one.get(), other.get()
        assert np.abs(one - other).max() <= bar * max(np.abs(other).max(), 1e-30)


@pytest.mark.parametrize("optimizer", ["selective", "dense"])
@pytest.mark.parametrize("batch", [1, 4])
def test_steps_equal_those_of_the_general_path(backend, optimizer, batch):
    gaussians = random_gaussians(2000, 3, np.float32)
    how = settings(optimizer=optimizer)
    found, expected = (train(backend, gaussians, how, batch, kind) for kind in (OneRank, Steps))
    fused = batch == 1 and optimizer == "selective"
    compare(found, expected, FUSED if fused else 1e-6)
    moved = found[0].gaussians.means.get() - gaussians.means
    assert np.abs(moved).max() > 0 and len(found[1]) == 12 and found[2] > 2000


def counted(monkeypatch):
    """Views repeated after alarms, a list that grows."""
    repeats, whole = [], FreeRunning.view

    def view(self, camera, photo, degree, room, update=None):
        if room is None:
            repeats.append(camera)
        whole(self, camera, photo, degree, room, update)

    monkeypatch.setattr(FreeRunning, "view", view)
    return repeats


@pytest.mark.parametrize("least, batch, optimizer", [
    (1, 1, "selective"), (1, 4, "selective"), (1, 4, "dense"), (300, 4, "selective"),
    (1500, 2, "selective"), (4000, 1, "selective"),
])
def test_views_that_do_not_fit_are_repeated(backend, monkeypatch, least, batch, optimizer):
    """Room for few splats, few rows of tiles or few instances: the same bits as with enough."""
    gaussians = random_gaussians(2000, 4, np.float32)
    how = settings(optimizer=optimizer)
    expected = train(backend, gaussians, how, batch)
    repeats = counted(monkeypatch)
    monkeypatch.setattr(cuda_tally, "LEAST", least)
    found = train(backend, gaussians, how, batch)
    assert repeats
    compare(found, expected, 0.0)


def test_a_batch_may_have_more_views_than_losses_had_room_for(backend, monkeypatch):
    """The same bits: kernels are given the new losses, recordings of the old ones are gone."""
    gaussians = random_gaussians(2000, 3, np.float32)
    expected = train(backend, gaussians, settings(), 4)
    monkeypatch.setattr(cuda_tally, "VIEWS", 2)
    compare(train(backend, gaussians, settings(), 4), expected, 0.0)


@pytest.mark.parametrize("batch, optimizer", [(1, "selective"), (1, "dense"), (4, "selective")])
def test_repeated_launches_are_the_same_as_new_ones(batch, optimizer, monkeypatch):
    """Views of one size, recorded once and then replayed with other cameras, photographs and
    rates. Sums are in no fixed order here: float32 rounding, which Adam may enlarge."""
    pytest.importorskip("mpi4py")
    from splaxel_mpi.backends.cuda import CudaBackend

    backend, replays, replay = CudaBackend(), [], Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda self: (replays.append(1), replay(self)))
    monkeypatch.setattr(sys.modules[__name__], "views", lambda: [
        SimpleNamespace(camera=look_at([4 - i, i - 3, 1], [0, 0, 0], 97, 61), index=i)
        for i in range(6)])
    gaussians = random_gaussians(2000, 3, np.float32)
    how = settings(optimizer=optimizer)
    found, expected = (train(backend, gaussians, how, batch, kind) for kind in (OneRank, Steps))
    assert len(replays) >= 12 - 2 * 4 + (batch == 4)
    compare(found, expected, 1e-3, 1e-4)


def test_long_ties_out_of_order_are_repeated(backend, monkeypatch):
    """A wall of one depth whose ids fall: only the exact path sorts those."""
    gaussians = random_gaussians(500, 6, np.float32, size=0.05)
    gaussians.means[:, 0] = 0
    camera = look_at([4, 0, 0], [0, 0, 0], 160, 96)
    one = [SimpleNamespace(camera=camera, index=0)]
    photos = {0: backend.to_device(random_photo(camera, 0))}
    results = []
    repeats = counted(monkeypatch)
    for kind in (OneRank, Steps):
        state, steps = start(backend, gaussians, settings(), kind)
        state.gaussians.ids[:] = backend.to_device(np.arange(500)[::-1].copy())
        shares = [steps.step(state, one, photos, 3) for _ in range(3)] + [steps.settle()]
        results.append((state, np.concatenate(shares), steps.renderer.take_counts()[0]))
    assert repeats
    compare(*results, FUSED)


def test_lists_in_a_room_equal_exact_ones(backend):
    gaussians = random_gaussians(3000, 5, np.float32).map(backend.to_device)
    tally = cuda_tally.Tally()
    tally.note(2900, 60_000, 60_000)
    for view in views():
        camera = view.camera
        room = tally.room(3000)
        exact, deferred = (backend.project(gaussians, camera, 3, NEAR, r) for r in (None, room))
        visible = int(deferred.count.get()[0])
        assert visible == len(exact) <= len(deferred) == 3000
        for name in ("rows", "data", "ids"):
            np.testing.assert_array_equal(
                getattr(deferred, name)[:visible].get(), getattr(exact, name).get())
        lists = backend.tile_lists(exact, camera)
        other = backend.tile_lists(deferred, camera, room=room)
        held, instances = len(lists.tiles), len(lists.items)
        assert other.counters[3:5].get().tolist() == [instances, held]
        assert len(other.items) == room.instances > instances
        np.testing.assert_array_equal(other.tiles[:held].get(), lists.tiles.get())
        np.testing.assert_array_equal(other.items[:instances].get(), lists.items.get())
        if held:
            np.testing.assert_array_equal(other.offsets[: held + 1].get(), lists.offsets.get())
        np.testing.assert_array_equal(other.slots.get(), lists.slots.get())
        slots = np.full(camera.tile_count, -1, np.int32)
        slots[lists.tiles.get()] = np.arange(held)
        np.testing.assert_array_equal(lists.slots.get(), slots)
        images = [
            backend.compose_layer(one, backend.rasterize(splats, one, camera, STOP), camera,
                                  np.array(BACKGROUND, np.float32)).get()
            for splats, one in ((exact, lists), (deferred, other))
        ]
        np.testing.assert_array_equal(*images)


def test_photographs_come_to_the_device(backend):
    from splaxel_mpi.data.device_images import STAGES, DeviceImages

    random = np.random.default_rng(0)
    pictures = [random.integers(0, 256, (5 + i, 7, 3), np.uint8) for i in range(STAGES + 3)]
    asked = []

    class Cache:
        def fetch(self, wanted, upcoming):
            asked.append((list(wanted), list(upcoming)))
            return {view: pictures[view] for view in wanted}

    kept = DeviceImages(Cache(), backend, budget=sum(p.nbytes for p in pictures[:2]))
    for turn in range(3):
        held = [kept.fetch([i], [i + 1]) for i in range(len(pictures))]
        for i, one in enumerate(held):
            np.testing.assert_array_equal(one[i].get(), pictures[i])
    assert asked[0] == ([0], [1]) and len(asked) == 3 * len(pictures) - 2
    assert asked[-1] == ([len(pictures) - 1], [len(pictures)])
    kept.close()
