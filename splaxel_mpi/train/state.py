"""What training changes: parameters, moments, statistics and counters of one rank."""

import numpy as np

from ..backends.base import Gradients
from ..partition.migrate import regroup
from ..scene.gaussians import GROUPS, Gaussians
from ..scene.rows import Rows
from .budget import Budget


class State:
    """Gaussians of a rank with everything that belongs to them, row for row.

    gaussians: Gaussians; first, second: Adam's moments, group name -> (n, width); norm: (n,)
    real and count: (n,) int32, the densification statistic (see Gradients); seen_count: (n,)
    int32, views that saw a Gaussian and are no longer in count; offsets: (local cells + 1,)
    int64, rows of each local cell; budget: densifiers ask it before they add rows.

    All arrays are views of the rows in use of one scene.rows.Rows. Change them in place; they
    are other arrays after replace, migrate and move, under the same names of the same objects.
    """

    def __init__(self, rows, offsets=None, budget=None):
        """rows: scene.rows.Rows of parameters and ids, and perhaps of moments ("first/means",
        ...), "norm", "count" and "seen_count"; what is missing is zero. offsets, budget (None:
        no limits): see the class."""
        self.rows, self.offsets = rows, offsets
        self.images_seen = self.step = 0
        self.budget = budget or Budget()
        self.gaussians, self.first, self.second = Gaussians(*[None] * 7), {}, {}
        self._buffers, self._gradients = {}, None
        real = rows.arrays["means"].dtype
        wanted = {f"first/{name}": (width, real) for name, width in GROUPS.items()}
        wanted |= {f"second/{name}": (width, real) for name, width in GROUPS.items()}
        wanted |= {"norm": (None, real), "count": (None, np.int32)}
        wanted |= {"seen_count": (None, np.int32)}
        for name, (width, dtype) in wanted.items():
            if name not in rows.arrays:
                rows.add(name, width, dtype)
        self._show()

    @staticmethod
    def fresh(gaussians, offsets):
        """State before the first step, on the arrays of ``gaussians``: zero moments and
        statistics."""
        return State(Rows(gaussians.columns()), offsets)

    @property
    def seen(self):
        """Views in which projection found each Gaussian visible, (n,) int32."""
        return self.seen_count + self.count

    def clear_statistics(self):
        """Begin the densification statistics anew."""
        self.seen_count += self.count
        self.norm[:], self.count[:] = 0, 0

    def replace(self, keep, children, parents=None):
        """Keep some rows and append new Gaussians, whose moments and statistics are zero.

        keep: (n,) bool; children: Gaussians, or None for none; parents: present row of each
        child's parent, which was seen as often as the child would have been (None: they start
        at 0). Rows that stay keep their order. Done in place: beside the rows no more is taken
        than a bounded copy or, where capacity grows, one array.
        """
        born = 0 if children is None else len(children)
        inherited = {} if parents is None else {"seen_count": self.seen[parents]}
        self._hide()
        try:
            # first, so that no row is lost where memory is not enough
            self._reserve(int(keep.sum()) + born)
            self.rows.keep(keep)
            if born:
                self.rows.append(born, {**children.columns(), **inherited})
        finally:
            self._show()

    def move(self, function):
        """Apply function (to_device or to_host of a backend) to every array of rows."""
        self._hide()
        self._buffers = {}
        self.rows.map(function)
        self._show()

    def migrate(self, tree, exchange):
        """Send every Gaussian to the owner of the cell of its mean. Collective."""
        self._hide()
        self._buffers = {}  # all zeros: their memory serves the exchange
        self.offsets = regroup(self.rows, tree, exchange, self.budget.rank)
        self._show()

    def gradients(self):
        """Gradients that add to this state's densification statistics, in zeroed buffers.

        They are made at the first call and the same ever after: whoever has used them leaves
        them zeroed (Optimizer.step does; clear_gradients where a step was given up). Updates
        that store no gradients never call it and save their memory.
        """
        if self._gradients is None:
            names = [*GROUPS, "seen"]
            if not self._buffers:
                self._buffers = {name: self._buffer(name) for name in names}
            views = {name: self._buffers[name][: self.rows.count] for name in names}
            self._gradients = Gradients(**views, norm=self.norm, count=self.count)
        return self._gradients

    def clear_gradients(self):
        """Zero what gradients() hands out."""
        for array in self._buffers.values():
            array.fill(0)

    @property
    def intact(self):
        """False where a migration was given up halfway: rows may be lost."""
        return self.norm is not None

    @property
    def nbytes(self):
        """Bytes of rows and gradients, unused capacity included."""
        return self.rows.nbytes + sum(array.nbytes for array in self._buffers.values())

    def _reserve(self, rows):
        """Room for so many rows; the views are hidden."""
        if rows > self.rows.capacity:
            self._buffers = {}
            self.rows.reserve(rows, self.budget.rank)

    def _buffer(self, name):
        shape = (self.rows.capacity, GROUPS[name]) if name in GROUPS else self.rows.capacity
        dtype = self.gaussians.dtype if name in GROUPS else np.uint8
        return self.rows.xp.zeros(shape, dtype)

    def _show(self):
        """Point all names to the rows in use."""
        for name in [*GROUPS, "ids"]:
            setattr(self.gaussians, name, self.rows[name])
        for name in GROUPS:
            self.first[name], self.second[name] = (
                self.rows[f"{moment}/{name}"] for moment in ("first", "second")
            )
        self.norm, self.count = self.rows["norm"], self.rows["count"]
        self.seen_count = self.rows["seen_count"]

    def _hide(self):
        """Let go of all views, so that arrays that are replaced are free at once."""
        for name in [*GROUPS, "ids"]:
            setattr(self.gaussians, name, None)
        self.first.clear()
        self.second.clear()
        self.norm = self.count = self.seen_count = None
        self._gradients = None
