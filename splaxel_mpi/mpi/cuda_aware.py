"""Exchange of device arrays by an MPI library that takes device memory."""

from . import probe
from .buffers import KEPT_BYTES
from .device_arrays import DeviceExchange
from .host import sendable, starts
from .world import first_of


class CudaAwareExchange(DeviceExchange):
    """Device pointers to MPI: blocking calls on contiguous basic types.

    Buffers of the exchange's own keep the number of allocations that peers map constant; what
    is larger than they become goes straight from and to the caller's arrays.
    """

    name = "cuda-aware"

    @classmethod
    def unfit(cls, comm, backend):
        """See DeviceExchange: the MPI library itself says that it takes no device memory."""
        found = probe.claim()
        return first_of(comm, found.text if found.support is False else None)

    @classmethod
    def untrusted(cls, comm, backend):
        """See DeviceExchange: the library makes no claim, or a child process that sent device
        memory through it did not end well."""
        found = probe.claim()
        silent = first_of(comm, None if found.support else found.text)
        return silent or probe.try_on_every_node(comm, backend.device.id)

    @staticmethod
    def _allocate(nbytes):
        import cupy

        return cupy.empty(nbytes, cupy.uint8)

    def _send(self, data, counts, out, received):
        sizes = self._of_others(counts).sum(), self._of_others(received).sum()
        if not self._on_device(data) or max(sizes) * data.itemsize <= KEPT_BYTES:
            return super()._send(data, counts, out, received)
        self._wait_for_stream()
        self.comm.Alltoallv(
            [sendable(data), (self._of_others(counts), starts(counts))],
            [sendable(out), (self._of_others(received), starts(received))],
        )
