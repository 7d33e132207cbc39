"""From the tiles that cells hold to the tiles that ranks supervise and need.

Every rank computes the same answer from the gathered bitmaps, so no counts travel.
"""

from dataclasses import dataclass

import numpy as np

from .tiles import dilate


@dataclass
class Demand:
    """What each rank does with one view."""

    supervised: np.ndarray  # (ranks, tile_count) bool, tiles whose loss gradient it computes
    needed: np.ndarray  # (ranks, tile_count) bool, tiles it composes
    counted: np.ndarray  # (tile_count,) int64, the one rank that adds the tile to the sums


def training(held, camera):
    """Demand of a training view from held (ranks, tile_count) bool.

    A rank supervises what it holds. Tiles that nobody holds show the background; they still
    count in the loss, at the rank that holds most (the lowest of equals). Supervising needs
    the composed image one tile further, for SSIM (visibility/tiles.py).
    """
    home = int(held.sum(1).argmax())
    supervised = held.copy()
    supervised[home] |= ~held.any(0)
    needed = np.stack([dilate(row, camera) if row.any() else row for row in supervised])
    return Demand(supervised, needed, supervised.argmax(0))


def whole_image(root):
    """Demand that brings the whole image to one rank, for evaluation and pictures."""

    def demand(held, camera):
        supervised = np.zeros_like(held)
        supervised[root] = True
        return Demand(supervised, supervised, np.full(held.shape[1], root))

    return demand
