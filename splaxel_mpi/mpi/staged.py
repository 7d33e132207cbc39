"""Exchange of device arrays through page-locked host buffers, for an MPI that takes no device
memory."""

import numpy as np

from .host import HostExchange


class StagedExchange(HostExchange):
    """HostExchange for cupy arrays: down to the host, through MPI, up again.

    Copies run on the current CuPy stream and are waited for before MPI reads them. numpy arrays
    pass as they do in HostExchange, and what comes back is of the kind that was given.
    """

    name = "staged"

    def alltoallv(self, kind, data, counts, received=None):
        """See Exchange."""
        out, received = super().alltoallv(kind, self._down(data), counts, received)
        return _like(data, out), received

    def allgather(self, kind, data):
        """See Exchange."""
        return _like(data, super().allgather(kind, self._down(data)))

    def allgatherv(self, kind, data):
        """See Exchange."""
        out, counts = super().allgatherv(kind, self._down(data))
        return _like(data, out), counts

    def allreduce(self, kind, data, op="sum"):
        """See Exchange."""
        return _like(data, super().allreduce(kind, self._down(data), op))

    def _down(self, data):
        """The array in host memory."""
        if isinstance(data, np.ndarray):
            return data
        host = self._empty(data.shape, data.dtype)
        data.get(out=host)
        return host

    def _empty(self, shape, dtype):
        """Page-locked memory, which the device copies at full speed; cupy pools it."""
        import cupyx

        return cupyx.empty_pinned(shape, dtype)


def _like(given, array):
    """array on the device when ``given`` is there."""
    if isinstance(given, np.ndarray):
        return array
    import cupy

    return cupy.asarray(array)
