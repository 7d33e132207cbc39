"""What training changes: parameters, moments, statistics and counters of one rank."""

from dataclasses import dataclass, field

import numpy as np

from ..arrays import module_of
from ..backends.base import Gradients
from ..partition.migrate import regroup
from ..scene.gaussians import GROUPS, Gaussians
from .budget import Budget


@dataclass
class State:
    """Gaussians of a rank with everything that belongs to them, row for row."""

    gaussians: Gaussians
    first: dict  # group name -> (n, width) first moment of Adam
    second: dict  # group name -> (n, width) second moment
    norm: np.ndarray  # (n,) real, densification statistic, see Gradients
    count: np.ndarray  # (n,) int32
    offsets: np.ndarray  # (local cells + 1,) int64, rows of each local cell
    images_seen: int = 0
    step: int = 0
    budget: Budget = field(default_factory=Budget)  # densifiers ask it before they add rows

    @staticmethod
    def fresh(gaussians, offsets):
        """State before the first step: zero moments and statistics."""
        rows, real, xp = len(gaussians), gaussians.dtype, module_of(gaussians.means)
        first, second = (
            {name: xp.zeros((rows, width), real) for name, width in GROUPS.items()}
            for _ in range(2)
        )
        norm, count = xp.zeros(rows, real), xp.zeros(rows, np.int32)
        return State(gaussians, first, second, norm, count, offsets)

    def extras(self):
        """Arrays that travel with the Gaussians, by name."""
        out = {f"first/{name}": self.first[name] for name in GROUPS}
        out.update({f"second/{name}": self.second[name] for name in GROUPS})
        out.update(norm=self.norm, count=self.count)
        return out

    def set_rows(self, gaussians, extras, offsets):
        """Take new arrays, as extras() names them."""
        self.gaussians, self.offsets = gaussians, offsets
        self.first = {name: extras[f"first/{name}"] for name in GROUPS}
        self.second = {name: extras[f"second/{name}"] for name in GROUPS}
        self.norm, self.count = extras["norm"], extras["count"]

    def replace(self, keep, children):
        """Keep some rows and append new Gaussians, whose moments and statistics are zero.

        keep: (n,) bool; children: Gaussians, or None for none.
        """
        gaussians, extras = self.gaussians.take(keep), self.extras()
        extras = {name: array[keep] for name, array in extras.items()}
        if children is not None and len(children):
            count, xp = len(children), module_of(keep)
            gaussians = Gaussians.concatenate([gaussians, children], xp)
            for name, array in extras.items():
                new = xp.zeros((count, *array.shape[1:]), array.dtype)
                extras[name] = xp.concatenate([array, new])
        self.set_rows(gaussians, extras, self.offsets)

    def move(self, function):
        """Apply function (to_device or to_host of a backend) to every array of rows."""
        extras = {name: function(array) for name, array in self.extras().items()}
        self.set_rows(self.gaussians.map(function), extras, self.offsets)

    def migrate(self, tree, exchange):
        """Send every Gaussian to the owner of the cell of its mean. Collective."""
        xp = module_of(self.norm)
        self.set_rows(*regroup(self.gaussians, self.extras(), tree, exchange, xp))

    def gradients(self):
        """Zeroed Gradients that add to this state's densification statistics."""
        xp = module_of(self.norm)
        zeros = {name: xp.zeros_like(array) for name, array in self.gaussians.groups()}
        seen = xp.zeros(len(self.gaussians), np.uint8)
        return Gradients(**zeros, seen=seen, norm=self.norm, count=self.count)
