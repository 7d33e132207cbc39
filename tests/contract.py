"""What every transport must do, against what numpy computes from all ranks' data.

Each check is collective over the ranks of an exchange. put: numpy array -> array of the kind
that is to travel; get: the way back.
"""

import numpy as np

TYPES = ["bool", "uint8", "int32", "int64", "float16", "float32", "float64"]


def counts_of(rank, ranks):
    """Items that a rank sends to each: some nothing, rank 1 nothing at all."""
    return np.array([0 if rank == 1 else (3 * rank + 5 * to) % 4 for to in range(ranks)])


def segment(sender, receiver, count, dtype):
    return (1000 * sender + 100 * receiver + np.arange(count)).astype(dtype)


def check_alltoallv(exchange, dtype, known, put=np.asarray, get=np.asarray, scale=1):
    """Segments of a few items times ``scale``; the receiver's counts are known or not."""
    ranks, rank = exchange.ranks, exchange.rank
    counts = scale * counts_of(rank, ranks)
    expected = np.array([scale * counts_of(sender, ranks)[rank] for sender in range(ranks)])
    data = np.concatenate([segment(rank, to, n, dtype) for to, n in enumerate(counts)])
    before = exchange.bytes["test"]
    sent = put(data)
    got, received = exchange.alltoallv("test", sent, counts, expected if known else None)
    assert type(got) is type(sent)
    assert got.dtype == np.dtype(dtype) and received.dtype == np.int64
    np.testing.assert_array_equal(received, expected)
    np.testing.assert_array_equal(
        get(got), np.concatenate([segment(s, rank, n, dtype) for s, n in enumerate(expected)])
    )
    bytes_sent = (counts.sum() - counts[rank]) * data.itemsize
    assert exchange.bytes["test"] - before == bytes_sent + (0 if known else 8 * (ranks - 1))
    assert (exchange.seconds["test"] > 0) == (ranks > 1 or not known)
    assert "test" not in exchange.waited


def check_own_items(exchange, put=np.asarray, get=np.asarray):
    """Nothing at all, then only what a rank sends itself."""
    zeros = np.zeros(exchange.ranks, np.int64)
    got, received = exchange.alltoallv("test", put(np.empty(0, np.float32)), zeros)
    assert len(got) == 0 and not received.any()
    own = zeros.copy()
    own[exchange.rank] = 5
    data = put(np.arange(5.0))
    got, received = exchange.alltoallv("own", data, own, own)
    np.testing.assert_array_equal(get(got), np.arange(5.0))
    assert exchange.bytes["own"] == 0
    got[:] = -1
    assert get(data)[1] == 1, "the result must not share memory with what was sent"


def check_results_stay(exchange, put=np.asarray, get=np.asarray):
    """What a call returned is not touched by the next ones, which use the same buffers."""
    ranks, kept = exchange.ranks, []
    for turn in range(4):
        counts = np.full(ranks, 3 + turn)
        data = put(np.full(counts.sum(), 10.0 * exchange.rank + turn))
        kept.append(exchange.alltoallv("test", data, counts, counts)[0])
        data[:] = -1  # the caller's again
    for turn, got in enumerate(kept):
        expected = np.repeat(10.0 * np.arange(ranks) + turn, 3 + turn)
        np.testing.assert_array_equal(get(got), expected)


def check_several_under_way(exchange, put=np.asarray, get=np.asarray):
    """Exchanges of different lengths begun before any is waited for, taken in another order than
    they began in, with blocking calls between."""
    ranks, rank, begun = exchange.ranks, exchange.rank, []
    for turn in range(4):
        counts, lengths = np.full(ranks, 1000 * turn + 1), np.arange(ranks) + turn
        data = put(np.full(counts.sum(), 10.0 * rank + turn))
        begun.append((
            exchange.start_alltoallv("flat", data, counts, counts),
            exchange.start_allgather("block", np.array([turn, rank])),
            exchange.start_allgatherv("joined", np.full(rank + turn, rank), lengths),
        ))
    exchange.progress()
    assert exchange.allreduce("sum", np.array([1.0]))[0] == ranks
    for turn in (2, 0, 3, 1):
        flat, block, joined = begun[turn]
        each = np.arange(ranks) + turn
        np.testing.assert_array_equal(joined.wait(), np.repeat(np.arange(ranks), each))
        got, counts = flat.wait()
        assert counts.tolist() == [1000 * turn + 1] * ranks
        values = np.repeat(10.0 * np.arange(ranks) + turn, counts)
        np.testing.assert_array_equal(get(got), values)
        assert block.wait().tolist() == [[turn, r] for r in range(ranks)]
        assert flat.wait()[0] is got, "a second wait gives the same"


def check_gathers(exchange, dtype, put=np.asarray, get=np.asarray):
    """allgather of blocks, allgatherv of flat arrays of which rank 0 has nothing."""
    ranks, rank = exchange.ranks, exchange.rank
    block = (np.arange(6).reshape(2, 3) + rank).astype(dtype)
    got = exchange.allgather("equal", put(block))
    assert got.dtype == block.dtype
    for r in range(ranks):
        expected = (np.arange(6).reshape(2, 3) + r).astype(dtype)
        np.testing.assert_array_equal(get(got)[r], expected)
    got, counts = exchange.allgatherv("flat", put(segment(rank, 0, rank, dtype)))
    np.testing.assert_array_equal(counts, np.arange(ranks))
    np.testing.assert_array_equal(
        get(got), np.concatenate([segment(r, 0, r, dtype) for r in range(ranks)])
    )
    assert exchange.bytes["equal"] == block.nbytes * (ranks - 1)


def check_allreduce(exchange, dtype, op, put=np.asarray, get=np.asarray):
    """Bitwise what adding in rank order gives: the order of the sum is part of the contract."""
    values = [
        (np.random.default_rng(rank).standard_normal((7, 11)) * 10.0 ** (rank % 3)).astype(dtype)
        for rank in range(exchange.ranks)
    ]
    combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
    expected = values[0].copy()
    for value in values[1:]:
        expected = combine(expected, value)
    mine = put(values[exchange.rank].copy())
    got = exchange.allreduce("test", mine, op)
    np.testing.assert_array_equal(get(got), expected)
    assert got.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(get(mine), values[exchange.rank])
