"""Rectangles of tiles as they lie in a stream: the tables that pack and unpack take.

A table is (k, 2) int64. Of each piece it has the row of the array of tiles in the lower 32 bits of
the first number and above them a byte for each side of the rectangle inside the tile, x0 lowest,
then y0, x1, y1; and the pixels of the stream before it.
"""

import numpy as np

from .host_library import call


def stream_items(real, planes, half):
    """(items a pixel, their type) of a stream of tiles of 3 or 4 planes. Halves are four planes
    with the fourth as it is, in words of 16 bits."""
    if not half:
        return planes, np.dtype(real)
    return 3 + np.dtype(real).itemsize // 2, np.dtype(np.uint16)


def check_table(table, rows, pixels):
    """Raise ValueError unless all pieces of a host table lie in so many tiles and pixels."""
    wrong = call("spx_check_pieces", table, len(table), rows, pixels)
    if wrong >= 0:
        raise ValueError(f"piece {wrong} does not lie in {rows} tiles and {pixels} pixels")
