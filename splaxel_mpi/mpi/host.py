"""Exchange of numpy arrays through MPI on host memory."""

import time
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

from .base import Exchange
from .world import load_mpi

# counts and displacements of MPI before its version 4 are C ints
LARGEST_COUNT = 2**31 - 1
# bytes of all ranks that one gather of a reduction holds at a time
REDUCTION_BYTES = 64 * 2**20


class HostExchange(Exchange):
    """Collectives of comm on contiguous numpy arrays.

    comm: mpi4py communicator; measure_wait: a barrier before each call tells waiting for
    slower ranks from transfer. What a rank sends to itself is copied, never sent.
    """

    name = "host"

    def __init__(self, comm, measure_wait=False):
        self.comm = comm
        self.measure_wait = measure_wait
        self.bytes = defaultdict(int)
        self.seconds = defaultdict(float)
        self.waited = defaultdict(float)

    def alltoallv(self, kind, data, counts, received=None):
        """See Exchange. received must be what the other ranks send, where it is given."""
        data, counts = np.asarray(data, order="C"), _counts(counts, self.comm.size)
        _fit(counts)
        if data.ndim != 1 or len(data) != counts.sum():
            raise ValueError(f"{kind}: {data.shape} items, counts for {counts.sum()}")
        with self._timed(kind):
            if received is None:
                received = np.empty_like(counts)
                self.comm.Alltoall(counts, received)
                self.bytes[kind] += counts.nbytes - counts.itemsize
            received = _counts(received, self.comm.size)
            _fit(received)
            out = self._empty(received.sum(), data.dtype)
            self._alltoallv(data, counts, out, received)
            self.bytes[kind] += int(counts.sum() - counts[self.comm.rank]) * data.itemsize
        return out, received

    def _empty(self, shape, dtype):
        """Host memory for what an alltoallv brings."""
        return np.empty(shape, dtype)

    def _alltoallv(self, data, counts, out, received):
        """Own segment by copy, the others by MPI."""
        rank = self.comm.rank
        sent_at, received_at = _starts(counts), _starts(received)
        own, to = int(counts[rank]), int(received_at[rank])
        if own != received[rank]:
            raise ValueError(f"rank {rank} sends itself {own} items, expects {received[rank]}")
        out[to : to + own] = data[sent_at[rank] : sent_at[rank] + own]
        if self.comm.size == 1:
            return
        others = np.arange(self.comm.size) != rank
        self.comm.Alltoallv(
            [_sendable(data), (counts * others, sent_at)],
            [_sendable(out), (received * others, received_at)],
        )

    def allgather(self, kind, data):
        """See Exchange."""
        data = np.asarray(data, order="C")
        out = np.empty((self.comm.size, *data.shape), data.dtype)
        with self._timed(kind):
            if data.size > LARGEST_COUNT:
                raise OverflowError(f"{data.size} items do not fit MPI's 32-bit counts")
            self.comm.Allgather(_sendable(data), _sendable(out))
            self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return out

    def allgatherv(self, kind, data):
        """See Exchange. Raises OverflowError where the concatenation does not fit."""
        data = np.asarray(data, order="C")
        if data.ndim != 1:
            raise ValueError(f"{kind}: expected a flat array, got {data.shape}")
        with self._timed(kind):
            counts = np.empty(self.comm.size, np.int64)
            self.comm.Allgather(np.array([len(data)], np.int64), counts)
            _fit(counts)
            out = np.empty(counts.sum(), data.dtype)
            self.comm.Allgatherv(_sendable(data), [_sendable(out), (counts, _starts(counts))])
            self.bytes[kind] += (data.nbytes + counts.itemsize) * (self.comm.size - 1)
        return out, counts

    def allreduce(self, kind, data, op="sum"):
        """See Exchange. A NaN of any rank comes out on all of them, for every op."""
        data = np.asarray(data, order="C")
        if op not in ("sum", "min", "max") or (op == "sum" and data.dtype == bool):
            raise ValueError(f"{kind}: no {op} of {data.dtype}")
        with self._timed(kind):
            # MPI libraries differ in whether a sum of narrow integers wraps or saturates
            if data.dtype.kind in "iu" and data.itemsize >= 4:
                return self._reduce_integers(kind, data, op)
            return self._reduce_in_order(kind, data, op)

    def _reduce_integers(self, kind, data, op):
        """Exact in any order, so MPI may choose it: no rank holds all ranks' arrays."""
        MPI, out = load_mpi(), np.empty_like(data)
        operation = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[op]
        for part, into in _blocks(data, out, LARGEST_COUNT):
            self.comm.Allreduce(part, into, operation)
        # a reduce-scatter and an all-gather of 1 / size each
        self.bytes[kind] += 2 * data.nbytes * (self.comm.size - 1) // self.comm.size
        return out

    def _reduce_in_order(self, kind, data, op):
        """Gather, then combine in rank order: the same bits on every rank and in every run."""
        combine = {"sum": np.add, "min": np.minimum, "max": np.maximum}[op]
        out = data.copy()
        block = max(1, REDUCTION_BYTES // (data.itemsize * self.comm.size))
        for part, into in _blocks(data, out, block):
            gathered = np.empty((self.comm.size, len(part)), data.dtype)
            self.comm.Allgather(_sendable(part), _sendable(gathered))
            into[:] = gathered[0]
            for other in gathered[1:]:
                combine(into, other, out=into)
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return out

    @contextmanager
    def _timed(self, kind):
        start = time.perf_counter()
        if self.measure_wait:
            self.comm.Barrier()
            self.waited[kind] += time.perf_counter() - start
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - start


def _blocks(data, out, length):
    """Pairs of flat views of both arrays, at most so long."""
    data, out = data.reshape(-1), out.reshape(-1)
    for start in range(0, len(data), length):
        yield data[start : start + length], out[start : start + length]


def _counts(counts, ranks):
    counts = np.ascontiguousarray(counts, np.int64)
    if counts.shape != (ranks,) or (counts < 0).any():
        raise ValueError(f"expected {ranks} counts >= 0, got {counts}")
    return counts


def _starts(counts):
    return np.concatenate([[0], np.cumsum(counts)[:-1]])


def _fit(counts):
    total = int(counts.sum())
    if total > LARGEST_COUNT:
        raise OverflowError(
            f"{total} items in one exchange do not fit MPI's 32-bit counts: "
            "use a smaller train.chunk or more ranks"
        )


def _sendable(array):
    """The array, as integers of the same width where MPI has no such type (float16)."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
