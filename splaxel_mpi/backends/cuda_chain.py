"""CUDA kernels of MCMC: what every step does to every Gaussian (contract in base.py)."""

import numpy as np

from ..scene.gaussians import GROUPS
from .checks import check_array
from .cuda_module import kernel
from .cuda_project import launch
from .host_chain import word

THREADS = 256


class CudaChain:
    """Mixin of the CUDA backend: regularise, noise."""

    def regularise(self, gaussians, gradients, opacity, scale, tally=None):
        """See Backend.regularise. Raises ValueError for arrays of another type or shape."""
        count = len(gaussians)
        for name in ("opacities", "scales"):
            for owner in (gaussians, gradients):
                check_array(name, getattr(owner, name), (count, GROUPS[name]), self.real)
        launch(kernel("mcmc.cu", "regularise"), -(-count // THREADS), THREADS, count,
               gaussians.opacities, gaussians.scales, np.float32(opacity), np.float32(scale),
               gradients.opacities, gradients.scales, tally and tally.stop_word)

    def noise(self, gaussians, seed, images, scale, tally=None):
        """See Backend.noise. Raises ValueError for arrays of another type or shape."""
        count = len(gaussians)
        for name in ("means", "scales", "quats", "opacities"):
            check_array(name, getattr(gaussians, name), (count, GROUPS[name]), self.real)
        check_array("ids", gaussians.ids, (count,), np.int64)
        launch(kernel("mcmc.cu", "noise"), -(-count // THREADS), THREADS, count, gaussians.ids,
               gaussians.scales, gaussians.quats, gaussians.opacities, np.int64(word(seed)),
               np.int64(word(images)), np.float32(scale), gaussians.means,
               tally and tally.stop_word)
