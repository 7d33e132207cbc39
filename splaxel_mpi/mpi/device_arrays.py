"""What the transports of device arrays share."""

import numpy as np

from .buffers import Buffers
from .host import TAGS, HostExchange, sendable, starts
from .pending import Reached


class DeviceExchange(HostExchange):
    """HostExchange for cupy arrays; numpy arrays pass as they do there.

    What comes back is of the kind that was given. Device data goes through two buffers of the
    exchange's own, of the memory that ``_allocate`` gives, where the segments for other ranks
    lie side by side; what a rank sends itself is copied on the device. Work runs on the current
    CuPy stream, which must be the same for all calls. MPI gets the data once the stream has
    reached the exchange, at the next look or wait after that: figures begin there, since what is
    prepared before costs nothing while the device computes.
    """

    def __init__(self, comm, measure_wait=False):
        super().__init__(comm, measure_wait)
        self._outgoing, self._incoming = Buffers(self._allocate), Buffers(self._allocate)

    @classmethod
    def unfit(cls, comm, backend):
        """Why this transport cannot serve these ranks, as far as it can be told for certain;
        None where nothing speaks against it. Collective, the same on every rank."""
        return None

    @classmethod
    def untrusted(cls, comm, backend):
        """Why "auto" should not take this transport although it may work, or None. Collective,
        the same on every rank."""
        return None

    @staticmethod
    def _allocate(nbytes):
        """Flat uint8 array of the memory that MPI is to read and write."""
        raise NotImplementedError

    @staticmethod
    def _on_device(data):
        return not isinstance(data, np.ndarray)

    @staticmethod
    def _mark():
        """An event in the current stream: all that has been given to it so far."""
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    def start_allgather(self, kind, data):
        """See Exchange. Device arrays are there at once: MPI's own calls move them."""
        pending = super().start_allgather(kind, data)
        if self._on_device(data):
            pending.wait()
        return pending

    def start_allgatherv(self, kind, data, counts):
        """See Exchange. As start_allgather."""
        pending = super().start_allgatherv(kind, data, counts)
        if self._on_device(data):
            pending.wait()
        return pending

    def _sending(self, data, counts, out, received, tag):
        if not self._on_device(data):
            yield from super()._sending(data, counts, out, received, tag)
            return
        sent, arriving = self._of_others(counts), self._of_others(received)

        def move(outgoing, incoming):
            return self._messages(
                outgoing, sent, starts(sent), incoming, arriving, starts(arriving), tag
            )

        pieces, places = self._around_own(data, counts), self._around_own(out, received)
        yield from self._through_buffers(pieces, places, move)

    def _gathering(self, data, out, tag):
        if not self._on_device(data):
            yield from super()._gathering(data, out, tag)
            return

        def move(outgoing, incoming):
            yield from self._meeting(tag + TAGS)
            self.comm.Allgather(sendable(outgoing), sendable(incoming))

        yield from self._through_buffers([data.reshape(-1)], [out.reshape(-1)], move)

    def _gathering_all(self, data, out, counts, tag):
        if not self._on_device(data):
            yield from super()._gathering_all(data, out, counts, tag)
            return

        def move(outgoing, incoming):
            yield from self._meeting(tag + TAGS)
            arriving = [sendable(incoming), (counts, starts(counts))]
            self.comm.Allgatherv(sendable(outgoing), arriving)

        yield from self._through_buffers([data], [out], move)

    def _through_buffers(self, pieces, places, move):
        """Steps: bring flat device arrays side by side into one buffer, move (function of two
        arrays that returns steps) it, and spread what came into the other over ``places``."""
        dtype = pieces[0].dtype
        buffers = self._outgoing.take(), self._incoming.take()
        outgoing, incoming = (
            buffer.take(sum(map(len, arrays)), dtype)
            for buffer, arrays in zip(buffers, (pieces, places))
        )
        yield from self._bring_in(list(_paired(pieces, outgoing)))
        yield from move(outgoing, incoming)
        yield from self._bring_out(list(_paired(places, incoming)))
        self._outgoing.give_back(buffers[0])
        self._incoming.give_back(buffers[1])

    def _bring_in(self, pairs):
        """Steps: copy device arrays to their parts of a buffer. A buffer that another exchange
        has used is free again, in the order of the stream, once its first gate is open."""
        for piece, part in pairs:
            part[...] = piece
        yield Reached(self._mark(), travels=False)

    def _bring_out(self, pairs):
        """Steps: copy parts of a buffer to their device arrays."""
        for place, part in pairs:
            place[...] = part
        yield from ()

    def _around_own(self, data, counts):
        """What lies before and after this rank's own segment."""
        rank = self.comm.rank
        before = int(counts[:rank].sum())
        return [data[:before], data[before + int(counts[rank]) :]]


def _paired(arrays, buffer):
    """(array, as long a part of the buffer), for all that are not empty."""
    start = 0
    for array in arrays:
        if len(array):
            yield array, buffer[start : start + len(array)]
        start += len(array)
