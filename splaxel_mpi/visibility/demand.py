"""From the tiles that cells hold to the tiles that ranks supervise and need.

Every rank computes the same answer from the gathered bitmaps, so no counts travel.
"""

from dataclasses import dataclass

import numpy as np

from .owners import assign
from .tiles import areas, dilate


@dataclass
class Demand:
    """What each rank does with one view."""

    supervised: np.ndarray  # (ranks, tile_count) bool, tiles whose loss gradient it computes
    needed: np.ndarray  # (ranks, tile_count) bool, tiles it composes
    counted: np.ndarray  # (tile_count,) int64, the one rank that adds the tile to the sums
    halo: np.ndarray  # (ranks, tile_count) bool, tiles of which it gets strips of final colour


def training(held, camera):
    """Demand of a training view from held (ranks, tile_count) bool, strategy overlap.

    A rank supervises what it holds. Tiles that nobody holds show the background; they still
    count in the loss, at the rank that holds most (the lowest of equals). Supervising needs
    the composed image one tile further, for SSIM (visibility/tiles.py).
    """
    home = int(held.sum(1).argmax())
    supervised = held.copy()
    supervised[home] |= ~held.any(0)
    needed = np.stack([dilate(row, camera) if row.any() else row for row in supervised])
    return Demand(supervised, needed, supervised.argmax(0), np.zeros_like(held))


class Owned:
    """Demand of the training views of a batch, strategy owner: one rank composes and supervises a
    tile, and gets strips of the tiles beside its own for SSIM."""

    def __init__(self, ranks):
        self.load = np.zeros(ranks, np.int64)

    def start_batch(self):
        """Forget what ranks had to do in earlier batches."""
        self.load[:] = 0

    def __call__(self, held, camera):
        """See training."""
        owner = assign(held, camera, self.load)
        supervised = owner == np.arange(len(held))[:, None]
        self.load += supervised @ areas(camera)
        halo = np.zeros_like(held)
        for rank in np.flatnonzero(supervised.any(1)):
            halo[rank] = dilate(supervised[rank], camera) & ~supervised[rank]
        return Demand(supervised, supervised, owner, halo)


def whole_image(root):
    """Demand that brings the whole image to one rank, for evaluation and pictures."""

    def demand(held, camera):
        supervised = np.zeros_like(held)
        supervised[root] = True
        halo = np.zeros_like(held)
        return Demand(supervised, supervised, np.full(held.shape[1], root), halo)

    return demand
