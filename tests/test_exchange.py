"""The transports on host memory: their contract, and which one is chosen."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

import contract
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import buffers, cuda_aware, host, transport
from splaxel_mpi.mpi.host import HostExchange
from splaxel_mpi.mpi.transport import make_exchange
from transports import HostCudaAware, HostNccl, HostStaged

KINDS = [HostExchange, HostStaged, HostCudaAware, HostNccl]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def exchange(request, comm):
    """Each transport, those of device arrays on host memory."""
    return request.param(comm)


@pytest.mark.mpi
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", contract.TYPES)
def test_alltoallv(exchange, dtype, known):
    contract.check_alltoallv(exchange, dtype, known)


@pytest.mark.mpi
def test_long_segments_bypass_the_buffers(exchange, monkeypatch):
    for module in (buffers, cuda_aware):
        monkeypatch.setattr(module, "KEPT_BYTES", 64)
    for scale in (1, 100, 2):
        contract.check_alltoallv(exchange, "int64", True, scale=scale)


@pytest.mark.mpi
def test_alltoallv_of_nothing_and_of_own_items(exchange):
    contract.check_own_items(exchange)


@pytest.mark.mpi
def test_results_stay(exchange):
    contract.check_results_stay(exchange)


@pytest.mark.mpi
def test_alltoallv_refuses_what_does_not_fit(comm):
    exchange = HostExchange(comm)
    counts = np.zeros(comm.size, np.int64)
    counts[0] = 2**31
    with pytest.raises(OverflowError, match="train.chunk"):
        exchange.alltoallv("test", np.empty(1, np.uint8), counts)
    with pytest.raises(OverflowError):
        exchange.alltoallv("test", np.empty(0, np.uint8), counts * 0, counts)
    with pytest.raises(ValueError):
        exchange.alltoallv("test", np.empty(3, np.uint8), counts * 0)
    with pytest.raises(ValueError):
        exchange.alltoallv("test", np.empty(0, np.uint8), np.zeros(comm.size + 1, np.int64))


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", contract.TYPES)
def test_gathers(exchange, dtype):
    contract.check_gathers(exchange, dtype)


@pytest.mark.mpi
@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("dtype", contract.TYPES[1:])
def test_allreduce(exchange, dtype, op, monkeypatch):
    monkeypatch.setattr(host, "REDUCTION_BYTES", 64)  # several blocks
    contract.check_allreduce(exchange, dtype, op)


@pytest.mark.mpi
def test_allreduce_of_flags_scalars_and_nothing(comm):
    exchange = HostExchange(comm)
    flags = np.array([comm.rank == 0, True, False])
    np.testing.assert_array_equal(exchange.allreduce("f", flags, "max"), [True, True, False])
    np.testing.assert_array_equal(
        exchange.allreduce("f", flags, "min"), [comm.size == 1, True, False]
    )
    assert exchange.allreduce("s", np.float64(2.5)) == 2.5 * comm.size
    assert exchange.allreduce("s", np.int64(3)).shape == ()
    assert exchange.allreduce("e", np.empty((0, 3))).shape == (0, 3)
    with pytest.raises(ValueError):
        exchange.allreduce("f", flags, "sum")


@pytest.mark.mpi
@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_nan_of_one_rank_reaches_all(comm, op):
    value = np.array([1.0, np.nan if comm.rank == comm.size - 1 else 2.0])
    got = HostExchange(comm).allreduce("test", value, op)
    assert np.isfinite(got[0]) and np.isnan(got[1])


@pytest.mark.mpi
@pytest.mark.parametrize("kind", KINDS)
def test_waiting_is_told_from_transfer(comm, kind):
    exchange = kind(comm, measure_wait=True)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.3)
    exchange.allgather("test", np.zeros(1))
    assert exchange.seconds["test"] >= exchange.waited["test"]
    if comm.rank:
        assert exchange.waited["test"] > 0.1


def test_one_rank(comm):
    if comm.size > 1:
        pytest.skip("for a single process")
    exchange = HostExchange(comm)
    got, counts = exchange.alltoallv("test", np.arange(4), [4])
    assert got.tolist() == [0, 1, 2, 3] and counts.tolist() == [4]
    assert exchange.allreduce("test", np.array([0.1, np.inf])).tolist() == [0.1, np.inf]
    assert exchange.allgatherv("test", np.arange(3))[0].tolist() == [0, 1, 2]
    assert not any(exchange.bytes.values())


def test_choice_for_host_memory(comm):
    backend = SimpleNamespace(name="host", xp=np)
    for name in ("auto", "host", "nccl"):
        exchange = make_exchange(name, backend, comm, measure_wait=True)
        assert type(exchange) is HostExchange and exchange.measure_wait
    for name in ("carrier-pigeon", "base", "world"):
        with pytest.raises(UserError, match=f"no transport called '{name}'"):
            make_exchange(name, backend, comm)
    device = SimpleNamespace(name="cuda", xp=object())
    with pytest.raises(UserError, match="set mpi.transport=staged"):
        make_exchange("host", device, comm)


DEVICE = SimpleNamespace(
    name="cuda", xp=object(), real=np.float32, device=SimpleNamespace(id=0),
    to_device=np.asarray, to_host=np.asarray,
)


@pytest.fixture
def choose(comm, monkeypatch, caplog):
    """Function (what is wrong with cuda-aware, with nccl) -> (name that auto takes, the line)."""
    kinds = {kind.name: kind for kind in (HostStaged, HostCudaAware, HostNccl)}
    monkeypatch.setattr(transport, "_find", kinds.get)

    def choose(cuda_aware=None, nccl=None, untrusted=None):
        monkeypatch.setattr(HostCudaAware, "unfit", lambda comm, backend: cuda_aware)
        monkeypatch.setattr(HostCudaAware, "untrusted", lambda comm, backend: untrusted)
        monkeypatch.setattr(HostNccl, "unfit", lambda comm, backend: nccl)
        caplog.clear()
        with caplog.at_level("INFO"):
            exchange = make_exchange("auto", DEVICE, comm)
        assert not any(exchange.bytes.values()), "the trial counts as traffic"
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == (comm.rank == 0)
        return exchange.name, "".join(lines)

    return choose


@pytest.mark.mpi(min_size=2)
def test_auto_takes_the_best_that_works(choose, comm):
    assert choose()[0] == "cuda-aware"
    name, line = choose(cuda_aware="MPI 1 takes no device memory")
    assert name == "nccl"
    if comm.rank == 0:
        assert line == "transport: nccl (not cuda-aware: MPI 1 takes no device memory)"
    name, line = choose(untrusted="a child process was ended by SIGSEGV", nccl="no NCCL")
    assert name == "staged"
    if comm.rank == 0:
        assert "not cuda-aware: a child process was ended by SIGSEGV; not nccl: no NCCL" in line


@pytest.mark.mpi(min_size=2)
def test_auto_checks_what_arrives(choose, comm, monkeypatch):
    """One rank gets something else than was sent; another transport fails with an error."""

    def wrong(self, data, counts, out, received, tag):
        yield from HostExchange._sending(self, data, counts, out, received, tag)
        if comm.rank == comm.size - 1:
            out[0] += 1

    def broken(self, comm, measure_wait):
        raise RuntimeError("unhandled system error")

    monkeypatch.setattr(HostCudaAware, "_sending", wrong)
    monkeypatch.setattr(HostNccl, "__init__", broken)
    name, line = choose()
    assert name == "staged"
    if comm.rank == 0:
        assert "not cuda-aware: data did not arrive as they were sent" in line
        assert "not nccl: RuntimeError: unhandled system error" in line


def test_one_rank_tries_nothing(choose, comm):
    if comm.size == 1:
        assert choose()[1] == "transport: staged (one rank sends nothing)"


@pytest.mark.mpi
def test_what_was_asked_for_is_refused_with_a_reason(choose, comm):
    choose(cuda_aware="MPI 1 takes no device memory", nccl="ranks 0 and 1 share GPU-1")
    with pytest.raises(UserError, match="nccl cannot be used: ranks 0 and 1 share GPU-1; set"):
        make_exchange("nccl", DEVICE, comm)
    choose(untrusted="a child process did not end")  # no trial where the user knows better
    assert make_exchange("cuda-aware", DEVICE, comm).name == "cuda-aware"


def test_a_buffer_grows_and_shrinks():
    made = []

    def allocate(nbytes):
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    kept, real = buffers.Buffer(allocate), np.dtype(np.float32)
    million = 2**20
    assert kept.take(10, real).shape == (10,) and made == [million]
    assert kept.take(4 * million, real).nbytes == 16 * million and kept.nbytes == 24 * million
    for _ in range(buffers.WINDOW - 1):
        kept.take(5 * million, real)
    assert len(made) == 2, "sizes that fit allocate nothing"
    for _ in range(2 * buffers.WINDOW):
        kept.take(million, real)
    assert made[2:] == [6 * million] and kept.nbytes == 6 * million
    for _ in range(2 * buffers.WINDOW):
        kept.take(0, real)
    assert kept.nbytes == buffers.SMALLEST
    large = buffers.KEPT_BYTES + 4
    assert kept.take(large // 4, real).nbytes == large and kept.nbytes == buffers.SMALLEST
