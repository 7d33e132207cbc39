"""The Gaussians a rank owns, as arrays grouped by parameter."""

from dataclasses import dataclass

import numpy as np

from ..arrays import module_of

# parameter group -> values per Gaussian. shN holds the 15 coefficients of bands 1 to 3,
# coefficient-major: value 3 * k + channel.
GROUPS = {"means": 3, "scales": 3, "quats": 4, "opacities": 1, "sh0": 3, "shN": 45}


@dataclass
class Gaussians:
    """Parameters of n Gaussians before activation, world frame.

    All parameter arrays are C-contiguous with one float type (float32 or float64). scales are
    natural logarithms, quats are (w, x, y, z) and need not be unit, opacities are logits.
    """

    means: np.ndarray  # (n, 3)
    scales: np.ndarray  # (n, 3)
    quats: np.ndarray  # (n, 4)
    opacities: np.ndarray  # (n, 1)
    sh0: np.ndarray  # (n, 3)
    shN: np.ndarray  # (n, 45)
    ids: np.ndarray  # (n,) int64, unique in the whole scene

    def __len__(self):
        return len(self.ids)

    @property
    def dtype(self):
        return self.means.dtype

    def groups(self):
        """Pairs (name, array) of the six parameter groups."""
        return [(name, getattr(self, name)) for name in GROUPS]

    def columns(self):
        """All arrays by name, ids included."""
        return dict(self.groups(), ids=self.ids)

    def take(self, rows):
        """A copy with the given rows (index array or boolean mask)."""
        arrays = {name: array[rows] for name, array in self.groups()}
        return Gaussians(**arrays, ids=self.ids[rows])

    def map(self, function):
        """The same Gaussians with function applied to every array."""
        arrays = {name: function(array) for name, array in self.groups()}
        return Gaussians(**arrays, ids=function(self.ids))

    def finite(self):
        """Which have finite values alone: (n,) bool."""
        xp = module_of(self.means)
        good = xp.ones(len(self), bool)
        for _, array in self.groups():
            good &= xp.isfinite(array).all(1)
        return good

    @staticmethod
    def empty(count, dtype=np.float32, xp=np):
        """Zeroed arrays for count Gaussians (ids are -1)."""
        arrays = {name: xp.zeros((count, width), dtype) for name, width in GROUPS.items()}
        return Gaussians(**arrays, ids=xp.full(count, -1, np.int64))

    @staticmethod
    def concatenate(parts, xp=np):
        """One Gaussians from a list of them, in order."""
        arrays = {
            name: xp.concatenate([getattr(part, name) for part in parts]) for name in GROUPS
        }
        return Gaussians(**arrays, ids=xp.concatenate([part.ids for part in parts]))
