"""The k-d tree of cells as flat arrays, identical on every rank."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Tree:
    """Axis-aligned splits of all space into cells.

    Node k splits at ``split[k]`` along ``axis[k]``: points with coordinate < split are in
    child ``left[k]``, the others in ``right[k]``. A child >= 0 is a node, a child < 0 is the
    cell ``-1 - child``. Node 0 is the root; a tree of one cell has no nodes. Cells are
    numbered left to right. Outer faces lie at infinity.
    """

    axis: np.ndarray  # (nodes,) int32
    split: np.ndarray  # (nodes,) float64
    left: np.ndarray  # (nodes,) int32
    right: np.ndarray  # (nodes,) int32

    dealt = False  # whether Gaussians go to ranks by their id (deal.Dealt), not by their place

    @property
    def cells(self):
        """Number of cells."""
        return len(self.axis) + 1

    @staticmethod
    def single():
        """The tree of one cell that is all of space."""
        none = np.zeros(0, np.int32)
        return Tree(none, np.zeros(0), none, none)

    def boxes(self):
        """Bounds of every cell, (cells, 2, 3) float64: [:, 0] lower, [:, 1] upper, with
        infinities at outer faces."""
        out = np.empty((self.cells, 2, 3))
        out[:, 0], out[:, 1] = -np.inf, np.inf
        stack = [(0 if len(self.axis) else -1, out[0].copy())]
        while stack:
            child, box = stack.pop()
            if child < 0:
                out[-1 - child] = box
                continue
            axis, split = self.axis[child], self.split[child]
            low, high = box.copy(), box.copy()
            low[1, axis], high[0, axis] = split, split
            stack += [(self.left[child], low), (self.right[child], high)]
        return out
