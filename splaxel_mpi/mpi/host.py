"""Exchange of numpy arrays through MPI on host memory."""

import time
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

from ..arrays import module_of
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
        data, counts = self._contiguous(data), _counts(counts, self.comm.size)
        _fit(counts)
        if data.ndim != 1 or len(data) != counts.sum():
            raise ValueError(f"{kind}: {data.shape} items, counts for {counts.sum()}")
        if received is None:
            received = self._received(kind, counts)
        received = _counts(received, self.comm.size)
        _fit(received)
        out = self._empty(int(received.sum()), data)
        self._keep_own(data, counts, out, received)
        if self.comm.size > 1:
            self._run(kind, data, self._sending(data, counts, out, received))
        self.bytes[kind] += int(counts.sum() - counts[self.comm.rank]) * data.itemsize
        return out, received

    def _received(self, kind, counts):
        """What every rank sends here, when this one sends ``counts``."""
        received = np.empty_like(counts)
        with self._timed(kind, counts):
            self.comm.Alltoall(counts, received)
        self.bytes[kind] += counts.nbytes - counts.itemsize
        return received

    def _run(self, kind, data, steps):
        """Time the first of two functions, then call the other."""
        move, finish = steps
        with self._timed(kind, data):
            move()
        finish()

    def _contiguous(self, data):
        """data as an array of its own module, in C order."""
        return module_of(data).asarray(data, order="C")

    def _empty(self, shape, data):
        """Memory for what arrives, where ``data`` lies and of its type."""
        return module_of(data).empty(shape, data.dtype)

    def _keep_own(self, data, counts, out, received):
        """Copy the segment that this rank sends to itself."""
        rank = self.comm.rank
        own = int(counts[rank])
        if own != received[rank]:
            raise ValueError(f"rank {rank} sends itself {own} items, expects {received[rank]}")
        if own:
            start, to = int(counts[:rank].sum()), int(received[:rank].sum())
            out[to : to + own] = data[start : start + own]

    def _sending(self, data, counts, out, received):
        """(move, finish), functions to call one after the other, which exchange the segments of
        the other ranks; those of this one are done. Only ``move`` talks to them."""
        others = np.arange(self.comm.size) != self.comm.rank
        outgoing = [sendable(data), (counts * others, starts(counts))]
        incoming = [sendable(out), (received * others, starts(received))]
        return lambda: self.comm.Alltoallv(outgoing, incoming), nothing

    def allgather(self, kind, data):
        """See Exchange."""
        data = self._contiguous(data)
        _fit(np.array([data.size]))
        out = self._empty((self.comm.size, *data.shape), data)
        self._run(kind, data, self._gathering(data, out))
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return out

    def _gathering(self, data, out):
        """As _sending: fill out, (ranks, ...), with every rank's data."""
        return lambda: self.comm.Allgather(sendable(data), sendable(out)), nothing

    def allgatherv(self, kind, data):
        """See Exchange. Raises OverflowError where the concatenation does not fit."""
        data = self._contiguous(data)
        if data.ndim != 1:
            raise ValueError(f"{kind}: expected a flat array, got {data.shape}")
        counts, length = np.empty(self.comm.size, np.int64), np.array([len(data)], np.int64)
        self._run(kind, length, (lambda: self.comm.Allgather(length, counts), nothing))
        _fit(counts)
        out = self._empty(int(counts.sum()), data)
        self._run(kind, data, self._gathering_all(data, out, counts))
        self.bytes[kind] += (data.nbytes + counts.itemsize) * (self.comm.size - 1)
        return out, counts

    def _gathering_all(self, data, out, counts):
        """As _sending: fill out with every rank's data, counts items each."""
        incoming = [sendable(out), (counts, starts(counts))]
        return lambda: self.comm.Allgatherv(sendable(data), incoming), nothing

    def allreduce(self, kind, data, op="sum"):
        """See Exchange. A NaN of any rank comes out on all of them, for every op."""
        data = self._contiguous(data)
        if op not in ("sum", "min", "max") or (op == "sum" and data.dtype == bool):
            raise ValueError(f"{kind}: no {op} of {data.dtype}")
        # MPI libraries differ in whether a sum of narrow integers wraps or saturates
        if isinstance(data, np.ndarray) and data.dtype.kind in "iu" and data.itemsize >= 4:
            return self._reduce_integers(kind, data, op)
        return self._reduce_in_order(kind, data, op)

    def _reduce_integers(self, kind, data, op):
        """Exact in any order, so MPI may choose it: no rank holds all ranks' arrays."""
        MPI, out = load_mpi(), np.empty_like(data)
        operation = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}[op]
        with self._timed(kind, data):
            for part, into in _blocks(data, out, LARGEST_COUNT):
                self.comm.Allreduce(part, into, operation)
        # a reduce-scatter and an all-gather of 1 / size each
        self.bytes[kind] += 2 * data.nbytes * (self.comm.size - 1) // self.comm.size
        return out

    def _reduce_in_order(self, kind, data, op):
        """Gather, then combine in rank order: the same bits on every rank and in every run."""
        xp = module_of(data)
        combine = {"sum": xp.add, "min": xp.minimum, "max": xp.maximum}[op]
        out = data.copy()
        block = max(1, REDUCTION_BYTES // (data.itemsize * self.comm.size))
        for part, into in _blocks(data, out, block):
            gathered = self._empty((self.comm.size, len(part)), data)
            self._run(kind, part, self._gathering(part, gathered))
            into[:] = gathered[0]
            for other in gathered[1:]:
                combine(into, other, out=into)
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return out

    @contextmanager
    def _timed(self, kind, data):
        """Count the time of a with block that moves ``data``."""
        start = time.perf_counter()
        if self.measure_wait:
            self.comm.Barrier()
            self.waited[kind] += time.perf_counter() - start
        try:
            with self.watch.blocked(self.watch.begin()):
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


def _fit(counts):
    """Raise OverflowError where so many items are beyond what one call can name."""
    total = int(counts.sum())
    if total > LARGEST_COUNT:
        raise OverflowError(
            f"{total} items in one exchange do not fit MPI's 32-bit counts: "
            "use a smaller train.chunk or more ranks"
        )


def nothing():
    """What is left to do after a move that leaves nothing."""


def starts(counts):
    """Where each segment begins in a flat array of segments of these lengths."""
    return np.cumsum(counts) - counts


def sendable(array):
    """The array, as integers of the same width where MPI has no such type (float16)."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
