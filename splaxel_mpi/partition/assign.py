"""Which cell a point lies in, and which rank owns a cell."""

import numpy as np

from .deal import dealt_ranks


def cells_of(tree, means, xp=np):
    """Cell of every point: (n,) int32.

    means: (n, 3) float32 or float64 positions in the world, an array of xp. A coordinate equal
    to a split belongs to the right child (Tree). Float32 is compared as the float64 that
    equals it, so every rank and every precision decides alike.
    """
    node = xp.full(len(means), 0 if len(tree.axis) else -1, np.int32)
    axis, split, left, right = (
        xp.asarray(array) for array in (tree.axis, tree.split, tree.left, tree.right)
    )
    rows = xp.arange(len(means)) if len(tree.axis) else xp.arange(0)
    while len(rows):
        at = node[rows]
        below = means[rows, axis[at]] < split[at]
        child = xp.where(below, left[at], right[at])
        node[rows] = child
        rows = rows[child >= 0]
    return -1 - node


def rank_of_cell(cell, cells, ranks):
    """Rank that owns a cell, floor(cell ranks / cells): consecutive cells stay together.

    cell: integer or integer array. With more cells than ranks a rank owns several, with fewer
    some ranks own none.
    """
    return cell * ranks // cells


def ranks_of(tree, means, ids, ranks, xp=np):
    """Rank that stores each Gaussian: (n,) int64.

    means: (n, 3) positions in the world; ids: (n,) int64; arrays of xp.
    """
    if tree.dealt:
        return dealt_ranks(ids, ranks, xp)
    return rank_of_cell(cells_of(tree, means, xp).astype(np.int64), tree.cells, ranks)


def local_cells(tree, rank, ranks):
    """The cells whose Gaussians a rank stores, a range: its own, or the one that all share."""
    return range(1) if tree.dealt else cells_of_rank(rank, tree.cells, ranks)


def cells_of_rank(rank, cells, ranks):
    """The cells of a rank, a range (empty for a rank without a cell)."""
    return range(-(-rank * cells // ranks), -(-(rank + 1) * cells // ranks))
