"""How well a sequence of views fills the ranks.

work: (n, ranks) predicted or measured work of each rank on each view, in the order in which
views are shown. lengths: numbers of consecutive views after which ranks wait for one another
(batches, or buckets), adding up to n.
"""

import numpy as np

from .bits import packed

# Kinds of views, by participants, that are compared with one another: the pairs of 2048 kinds
# take some ten milliseconds.
KINDS = 2048


def balance(work, lengths):
    """Sum of the means over sum of the maxima of the ranks' work between waits: 1 where no rank
    ever waits. Nothing to do counts as balanced."""
    loads = np.add.reduceat(work, _starts(lengths), axis=0)
    return _share(loads.mean(axis=1).sum(), loads.max(axis=1).sum())


def bound(work):
    """What no order of these views can exceed in balance(): mean over maximum of the ranks'
    total work. It is set by the partition."""
    total = work.sum(axis=0)
    return _share(total.mean(), total.max())


def active(work, lengths):
    """The paper's utilisation U = |A| / M (section 4.4): share of ranks that have anything to
    do between two waits, mean over waits."""
    return float((np.add.reduceat(work, _starts(lengths), axis=0) > 0).mean())


def disjoint(work):
    """The paper's zero-intersection ratio (section 4.4): share of the pairs of two views that
    have no participant in common. Of every n-th view where these have too many kinds."""
    masks, counts = np.unique(packed(work > 0), axis=0, return_counts=True)
    if len(masks) > KINDS:
        masks = packed(work[:: -(-len(work) // KINDS)] > 0)
        counts = np.ones(len(masks), np.int64)
    apart = np.ones((len(masks), len(masks)), bool)
    for word in masks.T:
        apart &= (word[:, None] & word[None, :]) == 0
    np.fill_diagonal(apart, ~masks.any(axis=1))  # views without participants are apart
    pairs = counts @ apart @ counts - counts[~masks.any(axis=1)].sum()
    return _share(float(pairs), float(counts.sum() * (counts.sum() - 1)))


def summary(work, lengths):
    """All of them by the names they have in the metrics."""
    return dict(
        schedule_active=active(work, lengths),
        schedule_disjoint=disjoint(work),
        schedule_balance=balance(work, lengths),
        schedule_bound=bound(work),
    )


def _starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)


def _share(part, whole):
    return float(part / whole) if whole > 0 else 1.0
