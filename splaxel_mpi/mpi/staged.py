"""Exchange of device arrays through page-locked host buffers, for an MPI that takes no device
memory."""

import numpy as np

from .device_arrays import DeviceExchange


class StagedExchange(DeviceExchange):
    """Down to the host, through MPI, up again. Works with every MPI library."""

    name = "staged"
    copies_travel = True

    @staticmethod
    def _allocate(nbytes):
        """Page-locked memory, which the device copies at full speed. Not of CuPy's pool, which
        would keep what is given back."""
        from cupy.cuda import PinnedMemory, PinnedMemoryPointer

        return np.frombuffer(PinnedMemoryPointer(PinnedMemory(nbytes), 0), np.uint8, nbytes)

    @staticmethod
    def _copy_in(piece, part):
        piece.get(out=part)  # and waits

    @staticmethod
    def _copy_out(part, place):
        place.set(part)
