"""Exchange of device arrays through page-locked host buffers, for an MPI that takes no device
memory."""

import numpy as np

from .device_arrays import DeviceExchange
from .pending import Carrier, Reached
from .world import calls_of_threads, cores_per_rank


class StagedExchange(DeviceExchange):
    """Down to the host, through MPI, up again. Works with every MPI library.

    The copies are part of the way. They run in a stream of their own, beside what computes, and
    a thread sees to them and to MPI meanwhile, where a rank has a core for it.
    """

    name = "staged"

    def __init__(self, comm, measure_wait=False):
        super().__init__(comm, measure_wait)
        # the stream and the thread; made at the first exchange, when the device is chosen
        self._copies = self._carrier = None
        self._threaded = comm.size > 1 and self._spare_core(comm)

    @staticmethod
    def _allocate(nbytes):
        """Page-locked memory, which the device copies at full speed. Not of CuPy's pool, which
        would keep what is given back."""
        from cupy.cuda import PinnedMemory, PinnedMemoryPointer

        return np.frombuffer(PinnedMemoryPointer(PinnedMemory(nbytes), 0), np.uint8, nbytes)

    @staticmethod
    def _spare_core(comm):
        """Whether a thread may wait for exchanges: host threads have little to do on a GPU."""
        return cores_per_rank(comm) > 1 and calls_of_threads()

    def _carrier_of(self, data):
        """See HostExchange."""
        if not self._threaded or not self._on_device(data):
            return None
        self._carrier = self._carrier or Carrier(self._follow_device())
        return self._carrier

    @staticmethod
    def _follow_device():
        """Function that makes the present device current in another thread."""
        import cupy

        return cupy.cuda.Device().use

    def _stream(self, after=None):
        """The stream of copies, which goes on once the event ``after`` has come."""
        import cupy

        self._copies = self._copies or cupy.cuda.Stream(non_blocking=True)
        if after is not None:
            self._copies.wait_event(after)
        return self._copies

    def _bring_in(self, pairs):
        ready = self._mark()
        stream = self._stream(ready)
        for piece, part in pairs:
            piece.get(stream=stream, out=part, blocking=False)
        copied = stream.record()
        yield Reached(ready, travels=False)
        yield Reached(copied, travels=True)

    def _bring_out(self, pairs):
        stream = self._stream()
        for place, part in pairs:
            place.set(part, stream=stream)
        yield Reached(stream.record(), travels=True)
