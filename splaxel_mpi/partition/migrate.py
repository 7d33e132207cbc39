"""Bring every Gaussian to the rank that owns its cell, and group a rank's rows by cell."""

import zlib

import numpy as np

from splaxel_mpi.partition import morton
from splaxel_mpi.partition.assign import cells_of, local_cells, ranks_of
from splaxel_mpi.scene.rows import row_bytes

KIND = "migration"  # under which an exchange counts the traffic
WORD = 8  # bytes of an item that travels: rows are padded to it, which keeps counts small
# Bytes that a rank sends or receives in one exchange: this part of the smallest rank's rows,
# so that buffers stay small beside them, within bounds that keep messages long and short.
ROUND_SHARE = 1 / 32
LEAST_ROUND_BYTES, MOST_ROUND_BYTES = 1 << 20, 256 << 20


def regroup(rows, tree, exchange, limit=0):
    """Send every Gaussian to the owner of the cell that its mean is in, or where a Dealt tree
    deals it; every rank calls.

    rows: scene.rows.Rows with at least "means" and "ids", any rows on any rank (for the first
    distribution: all on rank 0), the same names and types on every rank, also on one without
    rows; changed in place. tree: partition.tree.Tree; exchange: mpi.base.Exchange; limit: of
    the capacity, as in Rows.reserve.

    Returns cell_offsets: rows of own cell i (assign.local_cells) are cell_offsets[i] to
    cell_offsets[i + 1], int64. Inside a cell rows follow the Morton curve through the whole
    scene, equal places ascend by id: neither order nor values depend on the rank count. Rows
    that stay do not travel; the others go in one all-to-all of packed rows, or in several where
    they are many. No more than a fifth of the rows' own memory is taken beside it. Raises
    ValueError on every rank when the ranks' arrays differ in name, type or shape.
    """
    xp = rows.xp
    leave, counts = _leaving(rows["means"], rows["ids"], tree, exchange, xp)
    matrix, bound = _agreed(rows, counts, exchange)
    live = _travel(rows, leave, matrix, bound, exchange, limit)
    order, offsets = _order(rows, live, tree, exchange)
    if len(order) != rows.count or not bool((order == xp.arange(rows.count)).all()):
        rows.reorder(order)
    return offsets


def _leaving(means, ids, tree, exchange, xp):
    """(rows that leave, by target; how many go to each rank, (ranks,) int64)."""
    target = ranks_of(tree, means, ids, exchange.ranks, xp)
    leave = xp.flatnonzero(target != exchange.rank)
    target = target[leave]
    counts = xp.bincount(target, minlength=exchange.ranks)
    return leave[xp.argsort(target, kind="stable")], np.array(counts.tolist(), np.int64)


def _columns(rows):
    """Arrays by name, in an order that is the same on every rank."""
    return [(name, rows.arrays[name]) for name in sorted(rows.arrays)]


def _words(rows):
    """Words that one row takes on its way."""
    return -(-rows.row_bytes // WORD)


def _agreed(rows, counts, exchange):
    """Rows that each rank sends to each, (ranks, ranks), and the rows that one may send or
    receive at a time, after a check that all ranks mean the same bytes by a row."""
    layout = [(name, str(array.dtype), array.shape[1:]) for name, array in _columns(rows)]
    mark = zlib.crc32(repr(layout).encode())
    local = np.append(counts, np.array([rows.count, mark], np.int64))
    shared = exchange.allgather(KIND, local)
    if (shared[:, -1] != mark).any():
        raise ValueError("the arrays of the Gaussians differ in name, type or shape among ranks")
    matrix, before = shared[:, :-2], shared[:, -2]
    after = before - matrix.sum(axis=1) + matrix.sum(axis=0)
    size = int(np.maximum(before, after).min()) * rows.row_bytes * ROUND_SHARE
    size = min(max(size, LEAST_ROUND_BYTES), MOST_ROUND_BYTES)
    return matrix, max(1, int(size) // (_words(rows) * WORD))


def _travel(rows, leave, matrix, bound, exchange, limit):
    """Exchange the rows ``leave``, sorted by target. Arrivals take the places of what left,
    then new ones at the end. Returns the indices of the rows there are, None for all."""
    xp, words = rows.xp, _words(rows)
    sent, expected = matrix[exchange.rank], matrix[:, exchange.rank]
    busiest = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()))
    rounds = -(-busiest // bound)
    turns = np.arange(rounds + 1)[:, None]
    sent_by, expected_by = sent * turns // max(rounds, 1), expected * turns // max(rounds, 1)
    grown = int((expected_by - sent_by).sum(axis=1).max(initial=0))
    rows.reserve(rows.count + max(grown, 0), limit)
    starts, free = np.cumsum(sent) - sent, leave[:0]
    for turn in range(rounds):
        first, last = sent_by[turn], sent_by[turn + 1]
        gone = xp.concatenate([leave[s + a : s + b] for s, a, b in zip(starts, first, last)])
        coming = expected_by[turn + 1] - expected_by[turn]
        data = _pack(rows, gone, words).reshape(-1)
        data, _ = exchange.alltoallv(KIND, data, (last - first) * words, coming * words)
        free, arrived = xp.concatenate([free, gone]), int(coming.sum())
        added = max(0, arrived - len(free))
        places = xp.concatenate(
            [free[: arrived - added], xp.arange(rows.count, rows.count + added)]
        )
        free, rows.count = free[arrived - added :], rows.count + added
        _unpack(rows, places, data.reshape(-1, words))
    if not len(free):
        return None
    there = xp.ones(rows.count, bool)
    there[free] = False
    return xp.flatnonzero(there)


def _pack(rows, index, words):
    """Some rows of all arrays side by side, (k, words) uint64."""
    xp = rows.xp
    table = xp.zeros((len(index), words * WORD), np.uint8)
    start = 0
    for _, array in _columns(rows):
        size = row_bytes(array)
        if size:
            part = array[index].reshape(len(index), size // array.itemsize)
            table[:, start : start + size] = part.view(np.uint8)
        start += size
    return table.view(np.uint64)


def _unpack(rows, places, table):
    """Write what _pack made to rows ``places``."""
    xp = rows.xp
    table = xp.ascontiguousarray(table).view(np.uint8)
    start = 0
    for _, array in _columns(rows):
        size = row_bytes(array)
        if size:
            part = xp.ascontiguousarray(table[:, start : start + size]).view(array.dtype)
            array[places] = part.reshape(len(places), *array.shape[1:])
        start += size


def _order(rows, live, tree, exchange):
    """(indices of the live rows by cell, Morton code and id; offsets of the rank's cells)."""
    xp = rows.xp
    means, ids = (rows[name] if live is None else rows[name][live] for name in ("means", "ids"))
    low, size = morton.frame(means, exchange, xp)
    order = xp.argsort(ids, kind="stable")
    code = morton.codes(means, low, size, xp)[order]
    order = order[xp.argsort(code, kind="stable")]
    del code
    cell = cells_of(tree, means, xp)[order]
    by_cell = xp.argsort(cell, kind="stable")
    order, cell = order[by_cell], cell[by_cell]
    own = local_cells(tree, exchange.rank, exchange.ranks)
    offsets = xp.searchsorted(cell, xp.arange(own.start, own.stop + 1))
    order = order if live is None else live[order]
    return order, np.array(offsets.tolist(), np.int64)
