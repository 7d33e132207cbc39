"""What the transports of device arrays share."""

from contextlib import contextmanager

import numpy as np

from .buffers import Buffer
from .host import HostExchange, nothing, sendable, starts


class DeviceExchange(HostExchange):
    """HostExchange for cupy arrays; numpy arrays pass as they do there.

    What comes back is of the kind that was given. Device data goes through two buffers of the
    exchange's own, of the memory that ``_allocate`` gives, where the segments for other ranks
    lie side by side; what a rank sends itself is copied on the device. Work runs on the current
    CuPy stream, which must be the same for all calls. ``seconds`` begin once the stream has
    reached the exchange: what is prepared before that costs nothing while the device computes.
    """

    # whether the copies to and from the buffers are part of the way to other ranks
    copies_travel = False

    def __init__(self, comm, measure_wait=False):
        super().__init__(comm, measure_wait)
        self._outgoing, self._incoming = Buffer(self._allocate), Buffer(self._allocate)

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
    def _wait_for_stream():
        """Until all work of the current stream is done: MPI does not know of streams."""
        import cupy

        cupy.cuda.get_current_stream().synchronize()

    @contextmanager
    def _timed(self, kind, data):
        if self._on_device(data):
            self._wait_for_stream()  # computing is not communication
        with super()._timed(kind, data):
            yield

    def _sending(self, data, counts, out, received):
        if not self._on_device(data):
            return super()._sending(data, counts, out, received)
        sent, arriving = self._of_others(counts), self._of_others(received)
        return self._through_buffers(
            self._around_own(data, counts),
            self._around_own(out, received),
            self.comm.Alltoallv,
            (sent, starts(sent)),
            (arriving, starts(arriving)),
        )

    def _gathering(self, data, out):
        if not self._on_device(data):
            return super()._gathering(data, out)
        return self._through_buffers([data.reshape(-1)], [out.reshape(-1)], self.comm.Allgather)

    def _gathering_all(self, data, out, counts):
        if not self._on_device(data):
            return super()._gathering_all(data, out, counts)
        return self._through_buffers(
            [data], [out], self.comm.Allgatherv, None, (counts, starts(counts))
        )

    def _through_buffers(self, pieces, places, call, sent=None, arriving=None):
        """(move, finish): bring flat device arrays side by side into one buffer, call MPI, and
        spread what came into the other over ``places``. sent, arriving: counts and starts."""
        dtype = pieces[0].dtype
        outgoing = self._outgoing.take(sum(map(len, pieces)), dtype)
        incoming = self._incoming.take(sum(map(len, places)), dtype)
        there, back = list(_paired(pieces, outgoing)), list(_paired(places, incoming))
        send = [sendable(outgoing), sent] if sent else sendable(outgoing)
        receive = [sendable(incoming), arriving] if arriving else sendable(incoming)

        def copy_in():
            for piece, part in there:
                self._copy_in(piece, part)

        def copy_out():
            for place, part in back:
                self._copy_out(part, place)

        if not self.copies_travel:
            copy_in()
            return lambda: call(send, receive), copy_out

        def move():
            copy_in()
            call(send, receive)
            copy_out()

        return move, nothing

    @staticmethod
    def _copy_in(piece, part):
        """From device array to buffer, on the current stream."""
        part[...] = piece

    @staticmethod
    def _copy_out(part, place):
        """From buffer to device array, on the current stream."""
        place[...] = part

    def _of_others(self, counts):
        """counts with nothing for this rank."""
        counts = counts.copy()
        counts[self.comm.rank] = 0
        return counts

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
