"""Whether cells still hold their parts of the weight, and a new tree where they do not.

Paper section 8.1: balance is checked now and then by what ranks hold; beyond a threshold new
faces come from histograms and Gaussians are redistributed. Balance is judged by the weight that
the tree itself divides (design section 4).
"""

import logging
import time
from typing import NamedTuple

import numpy as np

from splaxel_mpi.arrays import module_of
from splaxel_mpi.partition.assign import cells_of, rank_of_cell
from splaxel_mpi.partition.kdtree import build

log = logging.getLogger(__name__)

KIND = "balance"  # under which an exchange counts the traffic
# A new tree must at least halve the imbalance. Where many Gaussians share a place no tree can
# divide them, and redistribution at every check would gain nothing.
GAIN = 0.5
SHARE = 10**6  # parts of a cell's share when a tree is to be skewed


class Repartition(NamedTuple):
    """Figures of one redistribution, the same on every rank."""

    before: float  # imbalance of the old tree
    after: float  # of the new one
    moved: int  # Gaussians that changed their rank
    total: int  # Gaussians of the scene
    bytes: int  # that ranks sent to one another for it
    seconds: float  # of the slowest rank


def gaussian_weights(seen, mix, exchange):
    """What each Gaussian weighs: (1 - mix) + mix seen / mean(seen), (n,) float64. Collective.

    seen: (n,) integers, views that saw it; mix: partition.seen_weight. Both parts have mean 1
    over the scene, so the weights too. None stands for all 1 (mix 0, or nothing seen yet). They
    depend on the Gaussian and on sums over the scene, never on ranks.
    """
    if not mix:
        return None
    count, views = _scene_sums(np.array([[len(seen), int(seen.sum())]]), exchange)[0].tolist()
    return (1 - mix) + mix * (count / views) * seen if views else None


def cell_loads(state, tree, mix, exchange):
    """Weight of the Gaussians that each cell stores now: (cells,) float64. Collective.

    state: train.state.State, grouped by the tree's cells; mix as in gaussian_weights.
    """
    sums = np.zeros((tree.cells, 2), np.int64)
    own = np.flatnonzero(_owner(tree.cells, exchange.ranks) == exchange.rank)
    sums[own, 0] = np.diff(state.offsets)
    if mix:
        seen = state.seen
        bounds = zip(state.offsets[:-1].tolist(), state.offsets[1:].tolist())
        sums[own, 1] = [int(seen[start:stop].sum()) for start, stop in bounds]
    return _loads(_scene_sums(sums, exchange), mix)


def imbalance(loads, ranks):
    """Most loaded rank over what the tree intends for it, less 1 (paper: N_max / mean - 1).

    loads: (cells,). A tree gives all cells the same, so a rank is to have its share of the cells.
    0 where nothing weighs.
    """
    owner, total = _owner(len(loads), ranks), loads.sum()
    if not total > 0:
        return 0.0
    cells = np.bincount(owner, minlength=ranks)
    held = np.bincount(owner, loads, minlength=ranks)[cells > 0]
    return float((held / cells[cells > 0]).max() * len(loads) / total - 1)


def new_tree(means, seen, cells, settings, exchange):
    """Tree of balanced cells. Collective.

    means: (n, 3) of this rank's Gaussians; seen: (n,) integers, views that saw each; settings:
    the partition section.
    """
    weights = gaussian_weights(seen, settings.seen_weight, exchange)
    return build(means, weights, cells, exchange)


def first_tree(means, cells, skew, exchange):
    """Tree whose first cell has 1 + skew times the mean count, the others alike. Collective.

    For experiments with imbalance (paper tables 5 and 7); the first cell can have everything at
    most. skew 0: balanced.
    """
    first = min(round(SHARE * (1 + skew)), SHARE * cells)
    rest = (SHARE * cells - first) // max(cells - 1, 1)
    shares = [first] + [rest] * (cells - 1) if skew else None
    return build(means, None, cells, exchange, shares=shares)


def rebalance(state, tree, settings, exchange):
    """Check the balance and redistribute where it is lost. Collective.

    state: train.state.State; tree: its present one; settings: the partition section. Where a
    rank has more than 1 + settings.imbalance times its part, and a new tree at least halves
    that and fits the budgets, the state migrates to the new tree. Returns (tree, Repartition),
    or (the same tree, None) where all stays. Parameters must be finite.
    """
    start, sent = time.perf_counter(), sum(exchange.bytes.values())
    before = imbalance(cell_loads(state, tree, settings.seen_weight, exchange), exchange.ranks)
    if before <= settings.imbalance:
        return tree, None
    found = new_tree(state.gaussians.means, state.seen, tree.cells, settings, exchange)
    sums, moved = _foreseen(state, found, exchange)
    after = imbalance(_loads(sums, settings.seen_weight), exchange.ranks)
    if after > GAIN * before or not _fits(sums, state.budget.rank, exchange):
        return tree, None
    state.migrate(found, exchange)
    sent = np.array([sum(exchange.bytes.values()) - sent], np.int64)
    sent = int(exchange.allreduce(KIND, sent)[0])
    seconds = float(exchange.allgather(KIND, np.array([time.perf_counter() - start])).max())
    return found, Repartition(before, after, moved, int(sums[:, 0].sum()), sent, seconds)


def _foreseen(state, tree, exchange):
    """What cells of a tree would hold, (cells, 2) int64 Gaussians and views that saw them, and
    how many Gaussians must change their rank for it."""
    means, ranks = state.gaussians.means, exchange.ranks
    xp = module_of(means)
    cell = cells_of(tree, means, xp)
    sums = np.zeros((tree.cells + 1, 2), np.int64)
    sums[:-1, 0] = xp.bincount(cell, minlength=tree.cells).tolist()
    # sums of integers are exact in the doubles that bincount makes
    sums[:-1, 1] = xp.bincount(cell, state.seen, tree.cells).astype(np.int64).tolist()
    leaving = rank_of_cell(cell.astype(np.int64), tree.cells, ranks) != exchange.rank
    sums[-1, 0] = int(leaving.sum())
    sums = _scene_sums(sums, exchange)
    return sums[:-1], int(sums[-1, 0])


def _fits(sums, limit, exchange):
    """Whether the Gaussians of every rank's cells fit its budget (0: no limit). Collective."""
    owner = _owner(len(sums), exchange.ranks)
    held = int(sums[owner == exchange.rank, 0].sum())
    fits = np.array([not limit or held <= limit], np.int64)
    fits = bool(exchange.allreduce(KIND, fits, "min")[0])
    if not fits and exchange.rank == 0:
        log.warning("balanced cells would not fit the memory of a rank: the tree stays; lower "
                    "partition.seen_weight or use more ranks")
    return fits


def _scene_sums(local, exchange):
    """Sum of int64 arrays over ranks."""
    return exchange.allreduce(KIND, local.astype(np.int64))


def _loads(sums, mix):
    """Weight of cells from their (cells, 2) counts of Gaussians and of views that saw them."""
    count, views = sums.sum(axis=0).tolist()
    if not mix or not views:
        return sums[:, 0].astype(np.float64)
    return (1 - mix) * sums[:, 0] + mix * (count / views) * sums[:, 1]


def _owner(cells, ranks):
    """Rank of every cell, (cells,) int64."""
    return np.asarray(rank_of_cell(np.arange(cells), cells, ranks), np.int64)
