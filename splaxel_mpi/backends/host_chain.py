"""Host kernels of MCMC: what every step does to every Gaussian (contract in base.py)."""

import numpy as np

from ..scene.gaussians import GROUPS
from ..scene.identity import WORD
from .checks import check_array
from .host_library import call, suffix


def word(value):
    """An integer modulo 2^64 as the signed one of the same bits, which kernels take."""
    value &= WORD
    return value - (value >> 63 << 64)


class HostChain:
    """Mixin of HostBackend: regularise, noise."""

    def regularise(self, gaussians, gradients, opacity, scale, tally=None):
        """See Backend.regularise. Raises ValueError for arrays of another type or shape."""
        count = len(gaussians)
        for name in ("opacities", "scales"):
            for owner in (gaussians, gradients):
                check_array(name, getattr(owner, name), (count, GROUPS[name]), self.real)
        call(f"spx_regularise_{suffix(self.real)}", count, gaussians.opacities, gaussians.scales,
             float(opacity), float(scale), gradients.opacities, gradients.scales, self.threads)

    def noise(self, gaussians, seed, images, scale, tally=None):
        """See Backend.noise. Raises ValueError for arrays of another type or shape."""
        count = len(gaussians)
        for name in ("means", "scales", "quats", "opacities"):
            check_array(name, getattr(gaussians, name), (count, GROUPS[name]), self.real)
        check_array("ids", gaussians.ids, (count,), np.int64)
        call(f"spx_noise_{suffix(self.real)}", count, gaussians.ids, gaussians.scales,
             gaussians.quats, gaussians.opacities, word(seed), word(images), float(scale),
             gaussians.means, self.threads)
