"""k-d tree of cells from histograms that every rank shares (paper section 8.1, design 4).

The split of a node is a weighted quantile of the means along the longest axis of its content.
It is found bin by bin: all ranks count their means in bins, the counts are gathered, the bin
that holds the quantile is cut into bins, and so on. Bins are ranges of the integers that order
the floating-point numbers (partition.keys), counts are integers: everything is exact, so every
rank count gives the same tree, bit for bit, and the search ends when a bin is one number. Means on
a device stay there: histograms are made there and are all that comes to the host.
"""

from dataclasses import dataclass

import numpy as np

from splaxel_mpi.arrays import module_of
from splaxel_mpi.partition.base import Partitioner
from splaxel_mpi.partition.keys import from_key, to_keys
from splaxel_mpi.partition.tree import Tree

KIND = "partition"  # under which an exchange counts the traffic
BIN_BITS = 10  # 1024 bins a round: float32 is resolved in at most 4 rounds
AXIS_MARGIN = 1e-6  # a later axis must be longer by this share, else rounding would choose
NEGLIGIBLE = 1e-4  # of the smaller side's weight: ends the search; 10 levels stay below 0.2 %
WEIGHT_BITS = 53  # sums of weights stay exact in a double, which bincount uses
GATHER_BYTES = 1 << 26  # of gathered histograms in memory at a time


@dataclass
class _Node:
    """A node of the level that is being split."""

    first: int  # its cells are first to first + cells - 1
    shares: tuple  # parts of the weight that its cells should have, integers
    box: np.ndarray  # (2, 3) region of space
    rows: np.ndarray  # this rank's means in it
    axis: int = 0
    total: int = 0  # weight over all ranks
    low: int = 0  # keys that may still hold the quantile, low <= key < high
    high: int = 0
    below: int = 0  # weight of the keys below low
    upto: int = 0  # weight of the keys below high
    keys: np.ndarray = None  # of the rows with low <= key < high
    weights: np.ndarray = None  # of the same rows; None for one each
    split: float = None

    @property
    def cells(self):
        """Number of cells."""
        return len(self.shares)

    @property
    def parts(self):
        """Sum of the shares, at least 1."""
        return max(1, sum(self.shares))

    @property
    def target(self):
        """Weight that the left side should have, times parts (to stay an integer)."""
        return self.total * sum(self.shares[: self.cells // 2])

    def miss(self, weight):
        """How far a left side of this weight is from the target, times parts."""
        return abs(weight * self.parts - self.target)


def build(means, weights, cells, exchange, sample=None, shares=None):
    """Cut space into cells; see Partitioner.build for parameters and guarantees.

    A node for K cells gives floor(K/2) of them, and weight in that proportion, to the left.
    shares: (cells,) integers, not negative, when the cells are to have unequal parts of the
    weight (None: equal ones).
    The axis is the longest of its content; a later axis (y after x, z after y) wins only if
    longer by a share of 1e-6. The split is a coordinate value of the means' type (so float32
    and float64 comparisons agree), exact to one Gaussian or to 1e-4 of the side's weight.
    Where many means share a coordinate the nearest possible split is taken, and sides may be
    empty. Float weights are rounded to multiples of a power of two, below 2^-49 of the
    Gaussian count times the largest weight. Sends nothing but extents and histograms.
    """
    if cells < 1:
        raise ValueError(f"a tree needs at least one cell, not {cells}")
    means, weights = _selected(means, weights, sample)
    weights = _checked(means, weights, exchange)
    space = np.array([[-np.inf] * 3, [np.inf] * 3])
    rows = module_of(means).arange(len(means))
    shares = (1,) * cells if shares is None else _checked_shares(shares, cells)
    level = [_Node(0, shares, space, rows)] if cells > 1 else []
    records = []  # (axis, split, left child, right child)
    while level:
        _share_extents(level, means, weights, exchange)
        _find_splits(level, means.dtype, exchange)
        below = []
        following = len(records) + len(level)  # number of the next level's first node
        for node in level:
            children = []
            for child in _halves(node, means):
                leaf = child.cells == 1
                children.append(-1 - child.first if leaf else following + len(below))
                below += [] if leaf else [child]
            records.append((node.axis, node.split, *children))
        level = below
    axis, split, left, right = zip(*records) if records else ((),) * 4
    return Tree(
        np.array(axis, np.int32),
        np.array(split, np.float64),
        np.array(left, np.int32),
        np.array(right, np.int32),
    )


class KdTree(Partitioner):
    """Median splits of the longest axis."""

    name = "kdtree"

    def build(self, means, weights, cells, exchange, sample=None):
        return build(means, weights, cells, exchange, sample)


def _checked_shares(shares, cells):
    """Shares as a tuple of Python integers."""
    shares = tuple(int(share) for share in shares)
    if len(shares) != cells or min(shares) < 0 or not sum(shares):
        raise ValueError(f"{cells} cells need as many shares, none negative, not all 0: {shares}")
    return shares


def _selected(means, weights, sample):
    """The rows that count, as arrays of a type that has keys."""
    xp = module_of(means)
    means = xp.asarray(means)
    if means.dtype not in (np.float32, np.float64):
        means = means.astype(np.float64)
    weights = None if weights is None else xp.asarray(weights)
    if sample is not None:
        sample = xp.asarray(sample)
        means, weights = means[sample], None if weights is None else weights[sample]
    if weights is not None and weights.shape != means.shape[:1]:
        raise ValueError(f"{weights.shape} weights for {len(means)} means")
    return means, weights


def _checked(means, weights, exchange):
    """Weights as doubles that hold integers whose global sum is exact; None if all are one.

    The verdict on bad input is shared, so all ranks raise together.
    """
    xp = module_of(means)
    bad = int(xp.count_nonzero(~xp.isfinite(means).all(axis=1)))
    wrong = top = whole = 0
    if weights is not None:
        good = xp.isfinite(weights) & (weights >= 0)
        wrong = int(xp.count_nonzero(~good))
        top = float(xp.where(good, weights, 0).max()) if len(weights) else 0
        whole = int(np.issubdtype(weights.dtype, np.integer))
    facts = np.array([bad, wrong, len(means), top, weights is None, whole], np.float64)
    facts = exchange.allgather(KIND, facts)
    bad, wrong, count = (int(facts[:, column].sum()) for column in range(3))
    if bad:
        raise ValueError(f"{bad} of {count} means are not finite")
    if wrong:
        raise ValueError(f"{wrong} of {count} weights are negative or not finite")
    given = facts[:, 4] == 0
    if given.any() != given.all():
        raise ValueError("some ranks give weights and others do not")
    top = float(facts[:, 3].max())
    if weights is None or top == 0:
        return None
    scale = _scale(count, top, bool(facts[:, 5].all()))
    return xp.rint(xp.ldexp(weights.astype(np.float64), scale))


def _scale(count, top, whole):
    """Exponent of the power of two by which weights up to top are multiplied, so that count
    of them, rounded, add up exactly."""
    room = WEIGHT_BITS - 1 - count.bit_length() - int(np.frexp(top)[1])
    return min(room, 0) if whole else room


def _share_extents(level, means, weights, exchange):
    """Axis, total weight and key range of every node from the extents of its content."""
    facts = np.empty((len(level), 7))
    for row, node in zip(facts, level):
        inside = means[node.rows]
        row[:3], row[3:6] = np.inf, -np.inf
        if len(inside):
            row[:3], row[3:6] = _to_host(inside.min(axis=0)), _to_host(inside.max(axis=0))
        row[6] = len(inside) if weights is None else float(weights[node.rows].sum())
    facts = exchange.allgather(KIND, facts)
    low, high = facts[:, :, :3].min(axis=0), facts[:, :, 3:6].max(axis=0)
    total = facts[:, :, 6].sum(axis=0)
    for index, node in enumerate(level):
        node.total = int(total[index])
        empty = low[index, 0] > high[index, 0]
        node.axis = 0 if empty else _longest(high[index] - low[index])
        bounds = low[index, node.axis], high[index, node.axis]
        if empty:
            node.split = _middle(*node.box[:, 0])
        elif node.total == 0:
            node.split = float(means.dtype.type(_middle(*bounds)))
        else:
            _start(node, *bounds, means, weights)


def _longest(extent):
    """The first axis, unless a later one is clearly longer."""
    best = 0
    for axis in (1, 2):
        if extent[axis] > extent[best] * (1 + AXIS_MARGIN):
            best = axis
    return best


def _start(node, low, high, means, weights):
    """Begin the search between the smallest and the largest coordinate."""
    bounds = to_keys(np.array([low, high], means.dtype))
    node.low, node.high = int(bounds[0]), int(bounds[1]) + 1
    node.below, node.upto = 0, node.total
    node.keys = to_keys(means[node.rows, node.axis])
    node.weights = None if weights is None else weights[node.rows]


def _middle(low, high):
    """A split between two bounds where no weight asks for another."""
    if np.isinf(low) and np.isinf(high):
        return 0.0
    if np.isinf(low):
        return high - max(1.0, abs(high))
    if np.isinf(high):
        return low + max(1.0, abs(low))
    return 0.5 * low + 0.5 * high


def _find_splits(level, dtype, exchange):
    """Refine all nodes together until each has its split."""
    searching = [node for node in level if node.split is None]
    while searching:
        tables = [_histogram(node) for node in searching]
        for node, table in zip(searching, _summed(np.stack(tables), exchange)):
            _narrow(node, table, dtype)
        searching = [node for node in searching if node.split is None]


def _shift(node):
    """Bits of a bin's width: the fewest for which the key range fits the bins."""
    return max(0, (node.high - 1 - node.low).bit_length() - BIN_BITS)


def _histogram(node):
    """This rank's weight in each bin: (bins,) int64."""
    number = node.keys.dtype.type
    bins = (node.keys - number(node.low)) >> number(_shift(node))
    counts = module_of(bins).bincount(bins.astype(np.intp), node.weights, 1 << BIN_BITS)
    return _to_host(counts).astype(np.int64)


def _to_host(array):
    """A numpy array of the same values."""
    return array if isinstance(array, np.ndarray) else array.get()


def _summed(table, exchange):
    """Sum over ranks of (nodes, bins) int64, a block of nodes at a time to bound memory."""
    block = max(1, GATHER_BYTES // (exchange.ranks * table[0].nbytes))
    parts = [table[start : start + block] for start in range(0, len(table), block)]
    return np.concatenate([exchange.allgather(KIND, part).sum(axis=0) for part in parts])


def _narrow(node, table, dtype):
    """Keep the bin that holds the quantile, or settle on one of its edges."""
    shift = _shift(node)
    edges = node.below + np.concatenate([[0], np.cumsum(table)])
    # last edge with weight <= target / parts; the quantile lies before the edge after it
    index = int(np.searchsorted(edges, node.target // node.parts, side="right")) - 1
    index = min(max(index, 0), len(table) - 1)
    low, high = node.low + (index << shift), node.low + ((index + 1) << shift)
    below, upto = int(edges[index]), int(edges[index + 1])
    left, right = node.miss(below), node.miss(upto)
    if shift == 0 or min(left, right) <= NEGLIGIBLE * node.target:
        # equal misses: the lower edge
        node.split = from_key(low if left <= right else min(high, node.high), dtype)
        node.keys = node.weights = None
        return
    number = node.keys.dtype.type
    kept = (node.keys >= number(low)) & (node.keys < number(min(high, node.high)))
    node.keys = node.keys[kept]
    node.weights = None if node.weights is None else node.weights[kept]
    node.low, node.high = low, min(high, node.high)
    node.below, node.upto = below, upto


def _halves(node, means):
    """The two children of a node that has its split."""
    left = means[node.rows, node.axis] < node.split
    boxes = node.box.copy(), node.box.copy()
    boxes[0][1, node.axis] = boxes[1][0, node.axis] = node.split
    half = node.cells // 2
    return (
        _Node(node.first, node.shares[:half], boxes[0], node.rows[left]),
        _Node(node.first + half, node.shares[half:], boxes[1], node.rows[~left]),
    )
