"""Bring every Gaussian to the rank that owns its cell, and group a rank's rows by cell."""

import zlib

import numpy as np

from splaxel_mpi.partition.assign import cells_of, cells_of_rank, rank_of_cell
from splaxel_mpi.scene.gaussians import Gaussians

KIND = "migration"  # under which an exchange counts the traffic
WORD = 8  # bytes of an item that travels: rows are padded to it, which keeps counts small
ROUND_BYTES = 1 << 31  # the most that a rank sends or receives in one exchange


def regroup(gaussians, extras, tree, exchange, xp=np):
    """Send every Gaussian to the owner of the cell that its mean is in; every rank calls.

    gaussians: any rows on any rank (for the first distribution: the points on rank 0, none
    elsewhere); extras: name -> (n, ...) array of what belongs to each row (Adam moments,
    statistics), the same names and types on every rank, also on one without rows; tree:
    partition.tree.Tree; exchange: mpi.base.Exchange.

    Returns (gaussians, extras, cell_offsets): rows of own cell i (assign.cells_of_rank) are
    cell_offsets[i] to cell_offsets[i + 1], int64, in ascending order of id, so that neither
    their order nor their values depend on the rank count. Rows that stay do not travel; the
    others go in one all-to-all of packed rows, or in several of at most 2 GiB a rank. Raises
    ValueError on every rank when the ranks' arrays differ in name, type or shape.
    """
    arrays = _columns(gaussians, extras, xp)
    cell = cells_of(tree, gaussians.means, xp)
    target = rank_of_cell(cell.astype(np.int64), tree.cells, exchange.ranks)
    stay = xp.nonzero(target == exchange.rank)[0]
    leave = xp.nonzero(target != exchange.rank)[0]
    leave = leave[xp.argsort(target[leave], kind="stable")]
    counts = xp.bincount(target[leave], minlength=exchange.ranks)
    matrix = _agreed(arrays, np.array(counts.tolist(), np.int64), exchange)
    arrived = _travel(arrays, leave, matrix, exchange, xp)
    ids = xp.concatenate([arrays["ids"][stay], arrived["ids"]])
    cell = xp.concatenate([cell[stay], cells_of(tree, arrived["means"], xp)])
    order = xp.argsort(ids, kind="stable")
    order = order[xp.argsort(cell[order], kind="stable")]
    own = cells_of_rank(exchange.rank, tree.cells, exchange.ranks)
    offsets = xp.searchsorted(cell[order], xp.arange(own.start, own.stop + 1)).astype(np.int64)
    if not len(arrived["ids"]):  # one copy less where nothing arrives, as on a single rank
        arrays = {name: array[stay[order]] for name, array in arrays.items()}
    else:
        for name in arrays:
            arrays[name] = xp.concatenate([arrays[name][stay], arrived.pop(name)])[order]
    extras = {name: arrays.pop(f"extra {name}") for name in extras}
    return Gaussians(**arrays), extras, np.array(offsets.tolist(), np.int64)


def _columns(gaussians, extras, xp):
    """All arrays of the rows by name, in an order that is the same on every rank."""
    arrays = dict(gaussians.groups(), ids=gaussians.ids)
    for name in sorted(extras):
        arrays[f"extra {name}"] = extras[name]
    for name, array in arrays.items():
        if len(array) != len(gaussians):
            raise ValueError(f"{name} has {len(array)} rows for {len(gaussians)} Gaussians")
    return {name: xp.ascontiguousarray(array) for name, array in arrays.items()}


def _row_bytes(array):
    """Bytes of one row."""
    return array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))


def _agreed(arrays, counts, exchange):
    """Rows that each rank sends to each, (ranks, ranks), after a check that all ranks mean
    the same bytes by a row."""
    layout = [(name, str(array.dtype), array.shape[1:]) for name, array in arrays.items()]
    mark = zlib.crc32(repr(layout).encode())
    shared = exchange.allgather(KIND, np.append(counts, np.int64(mark)))
    if (shared[:, -1] != mark).any():
        raise ValueError("the arrays of the Gaussians differ in name, type or shape among ranks")
    return shared[:, :-1]


def _travel(arrays, leave, matrix, exchange, xp):
    """Send the rows ``leave``, sorted by target; returns the rows that arrive, by name."""
    width = sum(_row_bytes(array) for array in arrays.values())
    words = -(-width // WORD)
    busiest = max(int(matrix.sum(axis=0).max()), int(matrix.sum(axis=1).max()))
    rounds = max(1, -(-busiest * words * WORD // ROUND_BYTES))
    sent, expected = matrix[exchange.rank], matrix[:, exchange.rank]
    starts = np.cumsum(sent) - sent
    parts = []
    for turn in range(rounds):
        first, last = sent * turn // rounds, sent * (turn + 1) // rounds
        picks = [slice(s + a, s + b) for s, a, b in zip(starts, first, last)]
        rows = xp.concatenate([leave[pick] for pick in picks])
        coming = expected * (turn + 1) // rounds - expected * turn // rounds
        data = _pack(arrays, rows, words, xp).reshape(-1)
        data, _ = exchange.alltoallv(KIND, data, (last - first) * words, coming * words)
        parts.append(_unpack(arrays, data.reshape(-1, words), xp))
    return {name: xp.concatenate([part.pop(name) for part in parts]) for name in arrays}


def _pack(arrays, rows, words, xp):
    """The rows of all arrays side by side, (rows, words) uint64."""
    table = xp.zeros((len(rows), words * WORD), np.uint8)
    start = 0
    for array in arrays.values():
        size = _row_bytes(array)
        if size:
            part = xp.ascontiguousarray(array[rows])
            part = part.reshape(len(rows), size // array.dtype.itemsize)
            table[:, start : start + size] = part.view(np.uint8)
        start += size
    return table.view(np.uint64)


def _unpack(arrays, table, xp):
    """Inverse of _pack: new arrays, typed as ``arrays``."""
    table = xp.ascontiguousarray(table).view(np.uint8)
    out, start = {}, 0
    for name, array in arrays.items():
        size = _row_bytes(array)
        part = xp.ascontiguousarray(table[:, start : start + size])
        shape = (len(table),) + array.shape[1:]
        out[name] = part.view(array.dtype).reshape(shape) if size else xp.zeros(shape, array.dtype)
        start += size
    return out
