"""Rectangles of tiles as they lie in a stream: the tables that pack and unpack take."""

import numpy as np

from ..scene.camera import TILE


def piece_table(rows, rects):
    """Table of a stream, (k, 3) int64, and its number of pixels.

    rows: (k,) rows of the array of tiles; rects: (k, 4) integers x0, y0, x1, y1 inside the tile.
    The columns are row, rectangle (a byte for each side, x0 lowest), pixels of the stream before.
    """
    rects = np.asarray(rects, np.int64).reshape(-1, 4)
    areas = (rects[:, 2] - rects[:, 0]) * (rects[:, 3] - rects[:, 1])
    ends = np.cumsum(areas)
    sides = rects @ (1 << np.array([0, 8, 16, 24], np.int64))
    table = np.stack([np.asarray(rows, np.int64), sides, ends - areas], axis=1)
    return np.ascontiguousarray(table), int(areas.sum())


def stream_items(real, planes, half):
    """(items a pixel, their type) of a stream of tiles of 3 or 4 planes. Halves are four planes
    with the fourth as it is, in words of 16 bits."""
    if not half:
        return planes, np.dtype(real)
    return 3 + np.dtype(real).itemsize // 2, np.dtype(np.uint16)


def check_table(table, rows, pixels):
    """Raise ValueError unless all pieces of a host table lie in so many tiles and pixels."""
    x0, y0, x1, y1 = (table[:, 1] >> shift & 255 for shift in (0, 8, 16, 24))
    good = (table[:, 0] >= 0) & (table[:, 0] < rows) & (x0 <= x1) & (y0 <= y1)
    good &= (x1 <= TILE) & (y1 <= TILE) & (table[:, 2] >= 0)
    good &= table[:, 2] + (x1 - x0) * (y1 - y0) <= pixels
    if not good.all():
        wrong = table[np.flatnonzero(~good)[0]].tolist()
        raise ValueError(f"piece {wrong} does not lie in {rows} tiles and {pixels} pixels")
