"""Exchange of device arrays by an MPI library that takes device memory."""

from . import probe
from .buffers import KEPT_BYTES
from .device_arrays import DeviceExchange
from .host import starts
from .pending import Reached
from .world import first_of


class CudaAwareExchange(DeviceExchange):
    """Device pointers to MPI: messages and blocking calls, of contiguous basic types.

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

    def _sending(self, data, counts, out, received, tag):
        sent, arriving = self._of_others(counts), self._of_others(received)
        largest = max(sent.sum(), arriving.sum()) * data.itemsize
        if not self._on_device(data) or largest <= KEPT_BYTES:
            yield from super()._sending(data, counts, out, received, tag)
            return
        yield Reached(self._mark(), travels=False)
        yield from self._messages(
            data, sent, starts(counts), out, arriving, starts(received), tag
        )
