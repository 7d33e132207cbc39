"""Choices among the Gaussians of all ranks that do not depend on how ranks hold them.

Ranks exchange histograms of integers only, so nothing is gathered and no sum depends on an order.
"""

import numpy as np

from ..arrays import module_of

KIND = "densify"  # under which an exchange counts the traffic
# Keys and ids have 63 bits, looked at from the top: six rounds of 16 KB for the keys, and as
# many for the ids of equal keys.
DIGIT = 11
SHIFTS = tuple(range(55, -1, -DIGIT))
BINS = 1 << DIGIT
INFINITE = 0x7FF << 52  # bits of infinity as a double, the largest of numbers >= 0


def rising(values):
    """Integers >= 0 that order as real numbers >= 0 do: (n,) int64 from (n,) real."""
    return values.astype(np.float64).view(np.int64)


def falling(values):
    """Integers >= 0 in the opposite order: the largest number has the smallest."""
    return INFINITE - rising(values)


def smallest(keys, ids, count, exchange):
    """The ``count`` smallest keys of all ranks, of equal keys those of the smaller ids.

    keys: (n,) int64 >= 0 of this rank; ids: (n,) int64 >= 0, unique in the scene; count: the
    same on every rank. Returns (n,) bool. Collective.
    """
    xp = module_of(keys)
    chosen, rows = xp.zeros(len(keys), bool), xp.arange(len(keys))
    for column in (keys, ids):
        for shift in SHIFTS:
            digit = (column[rows] >> shift) & (BINS - 1)
            ends = np.cumsum(_histogram(digit, exchange))
            cut = int(np.searchsorted(ends, count, side="right"))  # the bin that is not whole
            chosen[rows[digit < cut]] = True
            count -= int(ends[cut - 1]) if cut else 0
            if not count or cut == BINS:
                return chosen
            rows = rows[digit == cut]
    return chosen


def _histogram(digit, exchange):
    """How many digits of all ranks fall in each bin: (BINS,) int64."""
    counts = module_of(digit).bincount(digit, minlength=BINS)
    return exchange.allreduce(KIND, np.array(counts.tolist(), np.int64))


def scene_sums(exchange, *counts):
    """Sums over ranks of integers of this rank: a list of int. Collective."""
    return exchange.allreduce(KIND, np.array(counts, np.int64)).tolist()
