"""Exchange of numpy arrays through MPI on host memory."""

import time
from collections import defaultdict
from contextlib import contextmanager

import numpy as np

from ..arrays import module_of
from .base import Exchange
from .pending import Done, Pending, Requests
from .world import load_mpi

# counts and displacements of MPI before its version 4 are C ints
LARGEST_COUNT = 2**31 - 1
# bytes of all ranks that one gather of a reduction holds at a time
REDUCTION_BYTES = 64 * 2**20
# Tags of exchanges in turn, and as many again for "I have begun": every MPI library has 2^15 of
# them. They tell apart what is under way at a time; messages of one tag keep their order.
TAGS = FIRST_TAG = 2**13  # others use lower ones


class HostExchange(Exchange):
    """Collectives of comm on contiguous numpy arrays.

    comm: mpi4py communicator; measure_wait: ranks tell each other when they begin an exchange,
    so that waiting for slower ranks is told from transfer. What a rank sends to itself is
    copied, never sent. Segments travel as messages of their own, since MPI libraries differ in
    what they make of non-blocking collectives; those of no length do not travel.
    """

    name = "host"

    def __init__(self, comm, measure_wait=False):
        self.comm = comm
        self.measure_wait = measure_wait
        self.bytes = defaultdict(int)
        self._seconds, self._waited, self._flight = (defaultdict(float) for _ in range(3))
        self._under_way, self._begun = [], 0  # Pending that are not over; number of all

    @property
    def seconds(self):
        """See Exchange."""
        self._settle()
        return self._seconds

    @property
    def waited(self):
        """See Exchange."""
        self._settle()
        return self._waited

    @property
    def flight(self):
        """See Exchange."""
        self._settle()
        return self._flight

    def _settle(self):
        """Bring the figures up to date."""

    def count(self, kind, seconds, flight=0.0, waited=0.0):
        """Add to the figures of a kind."""
        self._seconds[kind] += seconds
        self._flight[kind] += flight
        if self.measure_wait:
            self._waited[kind] += waited

    def alltoallv(self, kind, data, counts, received=None):
        """See Exchange. received must be what the other ranks send, where it is given."""
        return self.start_alltoallv(kind, data, counts, received).wait()

    def start_alltoallv(self, kind, data, counts, received=None):
        """See Exchange. Waits for counts where received is None."""
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
        self.bytes[kind] += int(counts.sum() - counts[self.comm.rank]) * data.itemsize
        if self.comm.size == 1:
            return Done((out, received))
        steps = self._sending(data, counts, out, received, self._tag())
        return self._begin(kind, data, steps, (out, received))

    def progress(self):
        """See Exchange."""
        self._look_after(Pending.test)

    def post(self):
        """Bring all that has begun so far that only other ranks can delay it. Whoever waits for
        another rank must do so first: that rank may be waiting for this one's earlier part."""
        self._look_after(Pending.post)

    def _look_after(self, method):
        """Call a method of all that is under way, and forget what is over then."""
        for pending in self._under_way:
            method(pending)
        self._under_way = [pending for pending in self._under_way if not pending.over]

    def _begin(self, kind, data, steps, result):
        """Pending of the steps that move ``data``; see pending.Pending."""
        pending = Pending(self, kind, steps, result, self._carrier_of(data))
        if not pending.over:
            self._under_way.append(pending)
        return pending

    def _carrier_of(self, data):
        """pending.Carrier for exchanges of such data. None here: computing takes all cores."""

    def _tag(self):
        """Tag of the next exchange: the same on all ranks, since they begin the same ones."""
        self._begun += 1
        return FIRST_TAG + self._begun % TAGS

    def _received(self, kind, counts):
        """What every rank sends here, when this one sends ``counts``."""
        received = np.empty_like(counts)
        with self._timed(kind):
            self.comm.Alltoall(counts, received)
        self.bytes[kind] += counts.nbytes - counts.itemsize
        return received

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

    def _sending(self, data, counts, out, received, tag):
        """Steps of an exchange (pending.Pending) of the segments of the other ranks; those of
        this one are done."""
        yield from self._messages(data, self._of_others(counts), starts(counts),
                                  out, self._of_others(received), starts(received), tag)

    def _messages(self, data, counts, places, out, received, into, tag):
        """Steps: send counts items of data from places on, and take received ones into out."""
        requests = []
        for source in np.flatnonzero(received).tolist():
            part = out[into[source] : into[source] + received[source]]
            requests.append(self.comm.Irecv(sendable(part), source, tag))
        for to in np.flatnonzero(counts).tolist():
            part = data[places[to] : places[to] + counts[to]]
            requests.append(self.comm.Isend(sendable(part), to, tag))
        yield from self._meeting(tag + TAGS)
        yield Requests(requests)

    def _meeting(self, tag):
        """Steps: wait until all ranks are here, where such waiting is measured. By messages:
        ranks may come to two of their exchanges in different orders."""
        if not self.measure_wait:
            return
        nothing, others = np.empty(0, np.uint8), range(self.comm.size)
        others = [rank for rank in others if rank != self.comm.rank]
        requests = [self.comm.Irecv(np.empty(0, np.uint8), other, tag) for other in others]
        requests += [self.comm.Isend(nothing, other, tag) for other in others]
        yield Requests(requests, meets=True)

    def _of_others(self, counts):
        """counts with nothing for this rank."""
        counts = counts.copy()
        counts[self.comm.rank] = 0
        return counts

    def allgather(self, kind, data):
        """See Exchange."""
        return self.start_allgather(kind, data).wait()

    def start_allgather(self, kind, data):
        """See Exchange."""
        data = self._contiguous(data)
        _fit(np.array([data.size]))
        out = self._empty((self.comm.size, *data.shape), data)
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return self._begin(kind, data, self._gathering(data, out, self._tag()), out)

    def _gathering(self, data, out, tag):
        """Steps: fill out, (ranks, ...), with every rank's data."""
        requests = [self.comm.Iallgather(sendable(data), sendable(out))]
        yield from self._meeting(tag + TAGS)
        yield Requests(requests)

    def allgatherv(self, kind, data):
        """See Exchange. Raises OverflowError where the concatenation does not fit."""
        counts = self.allgather(kind, np.array([len(data)], np.int64)).ravel()
        return self.start_allgatherv(kind, data, counts).wait(), counts

    def start_allgatherv(self, kind, data, counts):
        """See Exchange. Raises OverflowError where the concatenation does not fit."""
        data, counts = self._contiguous(data), _counts(counts, self.comm.size)
        if data.ndim != 1 or len(data) != counts[self.comm.rank]:
            raise ValueError(f"{kind}: expected a flat array of {counts}, got {data.shape}")
        _fit(counts)
        out = self._empty(int(counts.sum()), data)
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return self._begin(kind, data, self._gathering_all(data, out, counts, self._tag()), out)

    def _gathering_all(self, data, out, counts, tag):
        """Steps: fill out with every rank's data, counts items each."""
        incoming = [sendable(out), (counts, starts(counts))]
        requests = [self.comm.Iallgatherv(sendable(data), incoming)]
        yield from self._meeting(tag + TAGS)
        yield Requests(requests)

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
        with self._timed(kind):
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
            self._begin(kind, part, self._gathering(part, gathered, self._tag()), None).wait()
            into[:] = gathered[0]
            for other in gathered[1:]:
                combine(into, other, out=into)
        self.bytes[kind] += data.nbytes * (self.comm.size - 1)
        return out

    @contextmanager
    def _timed(self, kind):
        """Count the time of a with block of blocking MPI calls on host memory."""
        self.post()
        start, waited = time.perf_counter(), 0.0
        if self.measure_wait:
            self.comm.Barrier()
            waited = time.perf_counter() - start
        try:
            with self.watch.blocked(self.watch.begin()):
                yield
        finally:
            spent = time.perf_counter() - start
            self.count(kind, spent, spent, waited)


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


def starts(counts):
    """Where each segment begins in a flat array of segments of these lengths."""
    return np.cumsum(counts) - counts


def sendable(array):
    """The array, as integers of the same width where MPI has no such type (float16)."""
    return array.view(np.uint16) if array.dtype == np.float16 else array
