"""Held bitmaps: one bit a tile for every (view, cell), known to all ranks before pixels move."""

import numpy as np


def gather(works, layout, exchange):
    """Tiles that every cell holds, per view a (cells, tile_count) bool array.

    One collective for all views of the chunk: each rank sends its cells' bits.
    """
    sizes = [-(-work.camera.tile_count // 8) for work in works]
    flat, _ = exchange.allgatherv("bitmaps", _local_bits(works, sizes))
    held = [np.zeros((layout.cells, work.camera.tile_count), bool) for work in works]
    start = 0
    for cell in range(layout.cells):
        for v, (work, size) in enumerate(zip(works, sizes)):
            bits = np.unpackbits(flat[start : start + size], count=work.camera.tile_count)
            held[v][cell] = bits
            start += size
    return held


def _local_bits(works, sizes):
    """This rank's bits: cell after cell, view after view, each padded to whole bytes."""
    cells = len(works[0].parts) if works else 0
    rows = [np.zeros(0, np.uint8)]
    for k in range(cells):
        for work, size in zip(works, sizes):
            bits = np.zeros(8 * size, np.uint8)
            bits[work.parts[k].held] = 1
            rows.append(np.packbits(bits))
    return np.concatenate(rows)
