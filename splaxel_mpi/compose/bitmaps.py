"""Held bitmaps: one bit a tile for every (view, cell), known to all ranks before pixels move."""

import numpy as np


def gather(works, layout, exchange):
    """Tiles that every cell holds, per view a (cells, tile_count) bool array.

    One collective for all views of the chunk, in which every
    rank sends bits for as many cells as any rank has. A generator, see mpi.pipeline.
    """
    counts = np.array([work.camera.tile_count for work in works])
    sizes = -(-counts // 8) * 8  # the bits of a view fill whole bytes
    starts = np.cumsum(sizes) - sizes
    most = int(layout.cells_per_rank().max())
    local = np.zeros((most, int(sizes.sum())), bool)
    for work, start in zip(works, starts):
        for row, part in zip(local, work.parts):
            row[start + part.held] = True
    pending = exchange.start_allgather("bitmaps", np.packbits(local, axis=1))
    yield
    bits = pending.wait()
    first = np.searchsorted(layout.owner, layout.owner)  # the first cell of each cell's rank
    rows = bits[layout.owner, np.arange(layout.cells) - first]
    held = np.unpackbits(rows, axis=1).astype(bool)
    return [held[:, start : start + count] for start, count in zip(starts, counts)]


def read_held(works, backend):
    """Fill part.held of all parts of a chunk by one copy from the device."""
    parts = [part for work in works for part in work.parts]
    if not parts:
        return
    tiles = backend.to_host(backend.xp.concatenate([part.lists.tiles for part in parts]))
    ends = np.cumsum([len(part.lists.tiles) for part in parts])
    for part, held in zip(parts, np.split(tiles, ends[:-1])):
        part.held = held
