"""From the tiles that cells hold to the tiles that ranks supervise and need.

Every rank computes the same answer from the gathered bitmaps, so no counts travel.
"""

from dataclasses import dataclass

import numpy as np

from ..backends.host_library import call
from .owners import assign


@dataclass
class Demand:
    """What each rank does with one view."""

    supervised: np.ndarray  # (ranks, tile_count) bool, tiles whose loss gradient it computes
    needed: np.ndarray  # (ranks, tile_count) bool, tiles it composes
    counted: np.ndarray  # (tile_count,) integers, the one rank that adds the tile to the sums
    # (ranks, tile_count) bool, tiles of which it gets strips of final colour; None: nobody does
    halo: np.ndarray = None


def training(held, camera):
    """Demand of a training view from held (ranks, tile_count) bool, strategy overlap.

    A rank supervises what it holds. Tiles that nobody holds show the background; they still
    count in the loss, at the rank that holds most (the lowest of equals). Supervising needs
    the composed image one tile further, for SSIM (visibility/tiles.py).
    """
    held = np.ascontiguousarray(held, bool)
    supervised, needed = np.empty_like(held), np.empty_like(held)
    counted = np.empty(camera.tile_count, np.int32)
    call("spx_demand_overlap", held, len(held), camera.width, camera.height, supervised, needed,
         counted)
    return Demand(supervised, needed, counted)


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
        supervised, halo = np.empty(held.shape, bool), np.empty(held.shape, bool)
        beside = call("spx_demand_owner", owner, len(held), camera.width, camera.height,
                      self.load, supervised, halo)
        return Demand(supervised, supervised, owner, halo if beside else None)


def whole_image(root):
    """Demand that brings the whole image to one rank, for evaluation and pictures."""

    def demand(held, camera):
        supervised = np.zeros_like(held)
        supervised[root] = True
        return Demand(supervised, supervised, np.full(held.shape[1], root))

    return demand
