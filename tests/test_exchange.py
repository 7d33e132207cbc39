"""The host transport against what numpy computes from every rank's data."""

import time
from types import SimpleNamespace

import numpy as np
import pytest

from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import host
from splaxel_mpi.mpi.host import HostExchange
from splaxel_mpi.mpi.transport import make_exchange

TYPES = ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]


def counts_of(rank, ranks):
    """Items that a rank sends to each: some nothing, rank 1 nothing at all."""
    return np.array([0 if rank == 1 else (3 * rank + 5 * to) % 4 for to in range(ranks)])


def segment(sender, receiver, count, dtype):
    return (1000 * sender + 100 * receiver + np.arange(count)).astype(dtype)


@pytest.mark.mpi
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
def test_alltoallv(comm, dtype, known):
    ranks, rank = comm.size, comm.rank
    counts = counts_of(rank, ranks)
    expected = np.array([counts_of(sender, ranks)[rank] for sender in range(ranks)])
    data = np.concatenate([segment(rank, to, n, dtype) for to, n in enumerate(counts)])
    exchange = HostExchange(comm)
    got, received = exchange.alltoallv("test", data, counts, expected if known else None)
    assert got.dtype == np.dtype(dtype) and received.dtype == np.int64
    np.testing.assert_array_equal(received, expected)
    np.testing.assert_array_equal(
        got, np.concatenate([segment(s, rank, n, dtype) for s, n in enumerate(expected)])
    )
    sent = (counts.sum() - counts[rank]) * data.itemsize
    assert exchange.bytes["test"] == sent + (0 if known else 8 * (ranks - 1))
    assert exchange.seconds["test"] > 0 and "test" not in exchange.waited


@pytest.mark.mpi
def test_alltoallv_of_nothing_and_of_own_items(comm):
    exchange = HostExchange(comm)
    zeros = np.zeros(comm.size, np.int64)
    got, received = exchange.alltoallv("test", np.empty(0, np.float32), zeros)
    assert len(got) == 0 and not received.any()
    own = zeros.copy()
    own[comm.rank] = 5
    data = np.arange(5.0)
    got, received = exchange.alltoallv("own", data, own, own)
    np.testing.assert_array_equal(got, data)
    assert exchange.bytes["own"] == 0
    got[:] = -1
    assert data[1] == 1, "the result must not share memory with what was sent"


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
@pytest.mark.parametrize("dtype", TYPES)
def test_gathers(comm, dtype):
    exchange = HostExchange(comm)
    block = (np.arange(6).reshape(2, 3) + comm.rank).astype(dtype)
    got = exchange.allgather("equal", block)
    assert got.dtype == block.dtype
    for rank in range(comm.size):
        np.testing.assert_array_equal(got[rank], (np.arange(6).reshape(2, 3) + rank).astype(dtype))
    # rank 0 has nothing
    got, counts = exchange.allgatherv("flat", segment(comm.rank, 0, comm.rank, dtype))
    np.testing.assert_array_equal(counts, np.arange(comm.size))
    np.testing.assert_array_equal(
        got, np.concatenate([segment(rank, 0, rank, dtype) for rank in range(comm.size)])
    )
    assert exchange.bytes["equal"] == block.nbytes * (comm.size - 1)


@pytest.mark.mpi
@pytest.mark.parametrize("op", ["sum", "min", "max"])
@pytest.mark.parametrize("dtype", TYPES[1:])
def test_allreduce(comm, dtype, op, monkeypatch):
    monkeypatch.setattr(host, "REDUCTION_BYTES", 64)  # several blocks
    values = [
        (np.random.default_rng(rank).standard_normal((7, 11)) * 10.0 ** (rank % 3)).astype(dtype)
        for rank in range(comm.size)
    ]
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    expected = values[0].copy()
    for value in values[1:]:
        expected = combine(expected, value)
    mine = values[comm.rank].copy()
    got = HostExchange(comm).allreduce("test", mine, op)
    # bitwise: the order of the sum is part of the contract
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(mine, values[comm.rank])


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
def test_waiting_is_told_from_transfer(comm):
    exchange = HostExchange(comm, measure_wait=True)
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


def test_choice_of_transport(comm):
    backend = SimpleNamespace(name="host", xp=np)
    for name in ("auto", "host"):
        exchange = make_exchange(name, backend, comm, measure_wait=True)
        assert type(exchange) is HostExchange and exchange.measure_wait
    for name in ("carrier-pigeon", "base", "world"):
        with pytest.raises(UserError, match=f"no transport called '{name}'"):
            make_exchange(name, backend, comm)
    device = SimpleNamespace(name="cuda", xp=object())
    assert make_exchange("auto", device, comm).name == "staged"
    with pytest.raises(UserError, match="set mpi.transport=staged"):
        make_exchange("host", device, comm)
