"""Which cells exist, who owns them and where their Gaussians lie on this rank."""

from dataclasses import dataclass

import numpy as np

from ..backends.host_library import call
from .assign import local_cells, rank_of_cell
from .tree import Tree


@dataclass(frozen=True)
class Layout:
    """The cells of a tree dealt to ranks in contiguous runs.

    A rank's Gaussians are grouped by cell: those of its k-th cell are rows
    ``offsets[k]`` to ``offsets[k + 1]``. Of dealt Gaussians (partition.deal) every rank stores a
    share of the one cell.
    """

    tree: Tree
    rank: int
    ranks: int
    offsets: np.ndarray  # (local cells + 1,) int64

    def __post_init__(self):
        cells = np.arange(self.tree.cells)
        owner = np.asarray(rank_of_cell(cells, self.tree.cells, self.ranks), np.int64)
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "boxes", self.tree.boxes())
        object.__setattr__(self, "local", local_cells(self.tree, self.rank, self.ranks))

    @property
    def cells(self):
        """Number of cells in the whole scene."""
        return self.tree.cells

    def cells_of(self, rows, xp=np):
        """Cell that stores each of this rank's rows, (n,) int32; rows and result are xp's."""
        place = xp.searchsorted(xp.asarray(self.offsets[1:]), rows, side="right")
        return (place + self.local.start).astype(np.int32)

    def cells_per_rank(self):
        """Number of cells of each rank, (ranks,) int64."""
        return np.bincount(self.owner, minlength=self.ranks)

    def by_rank(self, per_cell):
        """Combine boolean rows of cells into rows of ranks: (cells, n) -> (ranks, n); the same
        array where every rank has one cell."""
        if self.cells == self.ranks:
            return per_cell
        per_cell = np.ascontiguousarray(per_cell, bool)
        out = np.zeros((self.ranks, per_cell.shape[1]), bool)
        call("spx_union_of_cells", per_cell, self.owner, self.cells, per_cell.shape[1], out)
        return out
