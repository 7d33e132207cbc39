"""The transports on a GPU, on one rank or under mpirun, where ranks may share it.

    mpirun -n 2 python -m mpi4py -m pytest -m gpu tests/gpu/test_transports.py

(tests/gpu/ranks.sh does it for several rank counts.) SPLAXEL_EXPECT_TRANSPORT, where it is set,
is what "auto" must take.
"""

import os
import sys

import numpy as np
import pytest

import contract
from chain import DEFAULT_STOP, EXACT, Run, cameras_for, compare
from scenes import random_gaussians
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import device, probe, transport
from splaxel_mpi.partition.kdtree import build

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

EXPECTED = "SPLAXEL_EXPECT_TRANSPORT"
TYPES = ["bool", "uint8", "int64", "float16", "float32"]
_reasons = {}  # transport -> why it is not usable here


@pytest.fixture
def backend(comm):
    from splaxel_mpi.backends.cuda import CudaBackend

    device.bind(comm, share=True)
    return CudaBackend()


def usable(name, backend, comm):
    """The class of a transport; skips on every rank where it cannot work."""
    kind = transport._find(name)
    if name not in _reasons:
        _reasons[name] = kind.unfit(comm, backend) or kind.untrusted(comm, backend)
    if _reasons[name]:
        pytest.skip(f"{name}: {_reasons[name]}")
    return kind


@pytest.fixture(params=["staged", "cuda-aware", "nccl"])
def exchange(request, backend, comm):
    return usable(request.param, backend, comm)(comm)


@pytest.fixture
def ways(backend):
    """Keyword arguments of the contract's checks: to the device and back."""
    return dict(put=backend.to_device, get=backend.to_host)


@pytest.mark.parametrize("dtype", TYPES)
def test_contract(exchange, ways, dtype):
    contract.check_alltoallv(exchange, dtype, False, **ways)
    if dtype == "float32":
        exchange.bytes.clear()
        contract.check_alltoallv(exchange, dtype, True, **ways, scale=100_000)
    contract.check_gathers(exchange, dtype, **ways)
    if dtype != "bool":
        contract.check_allreduce(exchange, dtype, "sum", **ways)
    contract.check_allreduce(exchange, dtype, "max", **ways)


def test_host_arrays_pass(exchange):
    contract.check_alltoallv(exchange, "int64", False)
    contract.check_gathers(exchange, "uint8")
    contract.check_allreduce(exchange, "float64", "sum")


def test_results_stay(exchange, ways):
    contract.check_own_items(exchange, **ways)
    contract.check_results_stay(exchange, **ways)
    contract.check_several_under_way(exchange, **ways)


def test_what_a_kernel_wrote_just_before_arrives(exchange, backend):
    """Transports wait for the stream; a result is used there without another wait."""
    import cupy

    ranks, rank = exchange.ranks, exchange.rank
    for turn in range(3):
        data = cupy.full((ranks, 400_000), rank, np.float32)
        for _ in range(20):
            data += 1  # in the stream when the exchange begins
        counts = np.full(ranks, 400_000)
        got, _ = exchange.alltoallv("test", data.ravel(), counts, counts)
        sums = (got.reshape(ranks, -1) * 2).min(axis=1).get()
        assert sums.tolist() == [2 * (r + 20) for r in range(ranks)]


@pytest.mark.parametrize("more", [0, 1])
def test_ranks_equal_one(exchange, backend, comm, more):
    """Image and gradients of these ranks on GPUs equal those of one rank of the host."""
    bars, cells = EXACT[np.float32], comm.size + more
    compare(exchange, cells, np.float32, 0.0, bars, seed=cells, backend=backend)


def test_default_stop_stays_close(exchange, backend, comm):
    compare(exchange, comm.size + 1, np.float32, 1e-4, DEFAULT_STOP, True, 5, backend)


def test_all_transports_make_the_same_image(backend, comm):
    """Bit for bit: they move the same numbers, and nothing is summed on the way."""
    gaussians, images = random_gaussians(400, 3, np.float32), {}
    for name in ("staged", "cuda-aware", "nccl"):
        try:
            exchange = usable(name, backend, comm)(comm)
        except pytest.skip.Exception:
            continue
        tree = build(gaussians.means[comm.rank :: comm.size], None, comm.size + 1, exchange)
        run = Run(gaussians, tree, exchange, comm.size, comm.rank, backend, 0.0)
        images[name] = run.image(cameras_for(tree)[0])
    if comm.rank == 0:
        assert np.ptp(images["staged"]) > 0.1
        for image in images.values():
            np.testing.assert_array_equal(image, images["staged"])


def test_auto(backend, comm):
    name = transport.make_exchange("auto", backend, comm).name
    if comm.size == 1:
        assert name == "staged"
    elif os.environ.get(EXPECTED):
        assert name == os.environ[EXPECTED]


def test_a_library_without_device_memory_harms_nobody(backend, comm):
    """The child really sends device memory through such a library, and dies of it."""
    found = probe.claim()
    if found.support is not False:
        pytest.skip(found.text)
    with pytest.raises(UserError, match="cuda-aware cannot be used: .* takes no device memory"):
        transport.make_exchange("cuda-aware", backend, comm)
    if comm.rank == 0:
        command = [sys.executable, "-m", "splaxel_mpi.mpi.probe", str(backend.device.id)]
        assert probe.run_child(command) is not None


def test_nccl_refuses_ranks_that_share_a_gpu(backend, comm):
    names = comm.allgather(device.identity(backend.device.id)[0])
    if len(set(names)) == comm.size:
        pytest.skip("every rank has a GPU of its own")
    with pytest.raises(UserError, match="nccl cannot be used: "):
        transport.make_exchange("nccl", backend, comm)
