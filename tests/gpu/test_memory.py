"""The rows of a rank on a GPU: as on the host, in place, and what happens when memory ends."""

from types import SimpleNamespace

import numpy as np
import pytest
from exchanges import SelfExchange

from scenes import random_gaussians
from states import arrays_of, changes, filled, newborn
from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.settings import Train
from splaxel_mpi.train.pressure import give_up, relieve
from splaxel_mpi.train.step import Steps

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

MANY, MIB = 300_000, 1 << 20


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy")


def on_device(cupy, gaussians):
    state = filled(gaussians)
    state.move(cupy.asarray)
    return state


def move(state, cells=3):
    means = state.gaussians.means
    means = means if isinstance(means, np.ndarray) else means.get()
    state.migrate(build(means, None, cells, SelfExchange()), SelfExchange())


@pytest.mark.parametrize("seed", range(3))
def test_any_sequence_of_changes_equals_copies(cupy, seed):
    state = on_device(cupy, random_gaussians(300, 5, np.float32))
    naive = {name: array.get() for name, array in arrays_of(state).items()}

    def check(state, naive):
        for name, array in arrays_of(state).items():
            np.testing.assert_array_equal(array.get(), naive[name], err_msg=name)
            assert array.flags.c_contiguous and array.data.ptr % 16 == 0

    changes(state, naive, seed, 12, move, check)


def test_rows_have_the_order_of_the_host(cupy):
    """The curve is computed in doubles that round alike."""
    random = np.random.default_rng(3)
    host = filled(newborn(random, 20_000))
    device = on_device(cupy, newborn(np.random.default_rng(3), 20_000))
    for state in (host, device):
        move(state, 5)
    np.testing.assert_array_equal(device.gaussians.ids.get(), host.gaussians.ids)
    np.testing.assert_array_equal(device.offsets, host.offsets)
    np.testing.assert_array_equal(device.second["shN"].get(), host.second["shN"])


def peak_of(cupy, work):
    """Most bytes in use while work runs, arrays that are there before included."""
    pool, most = cupy.get_default_memory_pool(), [0]

    class Peak(cupy.cuda.MemoryHook):
        name = "peak"

        def malloc_postprocess(self, **_):
            most[0] = max(most[0], pool.used_bytes())

    with Peak():
        work()
    return most[0]


@pytest.mark.parametrize("cells", [1, 6])
def test_changes_in_place_have_low_peaks(cupy, cells):
    """Of the rows' own size: reordering 20 % beside them, replacing 5 % (its copies are 32 MiB
    at most), growth 10 % beside the new arrays."""
    pool, random = cupy.get_default_memory_pool(), np.random.default_rng(2)
    pool.free_all_blocks()
    state = on_device(cupy, newborn(random, MANY))
    other = pool.used_bytes() - state.nbytes
    assert peak_of(cupy, lambda: move(state, cells)) - other < 1.2 * state.nbytes
    state.gradients()
    children = newborn(random, MANY // 10).map(cupy.asarray)
    all_rows = cupy.ones(MANY, bool)
    other = pool.used_bytes() - state.nbytes
    peak = peak_of(cupy, lambda: state.replace(all_rows, children)) - other
    assert state.rows.capacity == MANY * 3 // 2
    assert peak < 1.1 * state.nbytes
    keep = cupy.asarray(random.random(len(state.gaussians)) < 0.8)
    other, capacity = pool.used_bytes() - state.nbytes, state.rows.capacity
    peak = peak_of(cupy, lambda: state.replace(keep, children)) - other
    assert state.rows.capacity == capacity
    assert peak < 1.05 * state.nbytes + 32 * MIB


@pytest.fixture
def memory(cupy):
    """The device's memory with room for 64 MiB more."""
    from splaxel_mpi.backends.cuda_memory import DeviceMemory

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + 64 * MIB)
    yield DeviceMemory()
    cupy.cuda.set_allocator(pool.malloc)
    pool.set_limit(size=0)


def test_the_reserve_serves_once_and_is_renewed(cupy, memory):
    assert memory.available() >= 64 * MIB
    memory.hold(16 * MIB)
    first = cupy.empty(40 * MIB, np.uint8)
    assert not memory.spent
    second = cupy.zeros(20 * MIB, np.uint8)  # more than the 8 MiB that are left
    assert memory.spent and memory.reserve is None
    with pytest.raises(MemoryError):
        cupy.empty(20 * MIB, np.uint8)
    memory.renew()
    assert memory.reserve is None and not memory.spent
    assert int(second.sum()) == 0
    del first, second
    memory.renew()
    assert memory.reserve is not None
    third = cupy.empty(44 * MIB, np.uint8)
    assert not memory.spent and third.nbytes == 44 * MIB
    figures = memory.figures()
    assert figures["device/used"] >= 60 * MIB and figures["device/free"] > 0


def test_a_run_needs_less_and_then_stops_with_a_checkpoint(cupy, memory):
    """Full once: views are taken singly; again: the scene stops growing; no room for a new
    reserve: the state is stored and one line ends the run."""
    memory.hold(16 * MIB)
    state = on_device(cupy, random_gaussians(200, 5, np.float32))
    backend = SimpleNamespace(memory=memory, xp=cupy, forget_sizes=lambda: None)
    saved = []
    trainer = SimpleNamespace(
        world=SimpleNamespace(backend=backend, exchange=SelfExchange(), ranks=1), state=state,
        steps=Steps(None, None, Train(chunk=4)), settle=lambda: None,
        store=lambda: saved.append(state.images_seen),
    )
    state.images_seen = 7
    relieve(trainer)
    assert trainer.steps.settings.chunk == 4
    for chunk, limit in ((1, 0), (1, 200)):
        block = cupy.empty(56 * MIB, np.uint8)
        del block
        assert memory.spent
        relieve(trainer)
        assert (trainer.steps.settings.chunk, state.budget.rank) == (chunk, limit)
        assert memory.reserve is not None and not memory.spent
    block = cupy.empty(56 * MIB, np.uint8)
    with pytest.raises(UserError, match="out of memory after image 7 .* image 7 is stored"):
        relieve(trainer)
    assert saved == [7] and block.nbytes
    with pytest.raises(MemoryError) as full:
        cupy.empty(56 * MIB, np.uint8)
    with pytest.raises(UserError, match="allocating 58,720,256 bytes.* 200 Gaussians.* stored"):
        give_up(trainer, full.value, True)
    assert saved == [7, 7]
