"""The CUDA backend: kernels of cuda_src on CuPy arrays of the current device."""

import numpy as np

from .base import Backend
from .cuda_adam import CudaAdam
from .cuda_chain import CudaChain
from .cuda_copies import Reading, upload
from .cuda_ghosts import CudaGhosts
from .cuda_lists import CudaLists
from .cuda_memory import DeviceMemory
from .cuda_pixels import CudaPixels
from .cuda_project import CudaProject
from .cuda_raster import CudaRaster
from .cuda_step import FreeRunning


class CudaBackend(
    CudaProject, CudaGhosts, CudaLists, CudaRaster, CudaAdam, CudaPixels, CudaChain, Backend
):
    """Stages on cupy arrays in float32, on the current stream.

    threads: what the rank may use on the host beside the GPU. The device that is current when
    the backend is made is its own; mpi.device.bind makes it so. xp: cupy, which nothing
    imports before a CUDA backend is made.
    """

    name = "cuda"

    def __init__(self, real=np.float32, threads=1):
        import cupy

        self.xp = cupy
        self.real = np.dtype(real)
        self.threads = threads
        if self.real != np.float32:
            raise ValueError(f"the cuda backend computes in float32, not {self.real}")
        self.device = cupy.cuda.Device()
        self.memory = DeviceMemory()

    def forget_sizes(self):
        """See Backend.forget_sizes."""
        self._capacity, self._most_visible, self._most_reached = None, 0, 0
        self._arenas.clear()

    def free_running(self, near, stop, background, ssim_weight):
        """See Backend.free_running."""
        return FreeRunning(self, near, stop, background, ssim_weight)

    def start_reading(self, arrays):
        """See Backend.start_reading."""
        return Reading(arrays)

    def to_device_together(self, arrays):
        """See Backend.to_device_together."""
        return upload(arrays)
