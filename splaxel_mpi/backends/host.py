"""The host backend: C++ kernels, threads over tiles, SIMD over pixels."""

import numpy as np

from .base import Backend
from .host_chain import HostChain
from .host_ghosts import HostGhosts
from .host_memory import HostMemory
from .host_pixels import HostPixels
from .host_project import HostProject
from .host_raster import HostRaster


class HostBackend(HostProject, HostGhosts, HostRaster, HostPixels, HostChain, Backend):
    """Stages on numpy arrays. real: float32 or float64; threads: per rank."""

    name = "host"
    xp = np

    def __init__(self, real=np.float32, threads=1):
        self.real = np.dtype(real)
        self.threads = threads
        self.memory = HostMemory()
