"""Held bitmaps: one bit a tile for every (view, cell), known to all ranks before pixels move."""

import numpy as np

from ..backends.host_library import call


def gather(works, layout, exchange):
    """Tiles that every cell holds, per view a (cells, tile_count) bool array.

    One collective for all views of the chunk, in which every
    rank sends bits for as many cells as any rank has. A generator, see mpi.pipeline.
    """
    counts = np.array([work.camera.tile_count for work in works], np.int64)
    sizes = (counts + 7) // 8  # bytes of a view
    starts, size = np.cumsum(sizes) - sizes, int(sizes.sum())
    most = int(layout.cells_per_rank().max())
    parts = [part.held for work in works for part in work.parts]
    lengths = np.array([len(held) for held in parts], np.int64)
    bits = np.zeros((most, size), np.uint8)
    call("spx_held_bits", np.concatenate([np.zeros(0, np.int32), *parts]), lengths, len(works),
         len(layout.local), starts, size, bits)
    pending = exchange.start_allgather("bitmaps", bits)
    yield
    bits = pending.wait()
    first = np.searchsorted(layout.owner, layout.owner)  # the first cell of each cell's rank
    rows = layout.owner * most + np.arange(layout.cells) - first
    held = np.empty(int(counts.sum()) * layout.cells, bool)
    call("spx_held_bytes", bits, rows, layout.cells, len(works), starts, counts, size, held)
    ends = [0, *(np.cumsum(counts) * layout.cells).tolist()]
    return [held[a:b].reshape(layout.cells, -1) for a, b in zip(ends, ends[1:])]
