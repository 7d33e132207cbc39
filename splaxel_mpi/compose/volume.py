"""Bytes that a view moves, from its bitmaps alone: what strategies would send without sending."""

from dataclasses import dataclass

import numpy as np

from ..backends.pieces import stream_items
from ..visibility.tiles import areas, strips


@dataclass
class Volume:
    """Bytes that all ranks together send to others for one view."""

    streams: int  # partial pixels
    back: int  # gradients of partial pixels, where a strategy returns them
    halo: int  # strips of final colour

    @property
    def total(self):
        """All of them."""
        return self.streams + self.back + self.halo


def pixel_volume(held, layout, demand, camera, returns, real=np.float32, half=False):
    """Volume of a view.

    held: (cells, tile_count) bool; layout: partition.layout.Layout; demand: what its ranks do
    (visibility.demand.Demand); returns: gradients come back (strategy owner); half: colour travels
    as float16. Bitmaps and ghosts come on top.
    """
    pixels, real = areas(camera), np.dtype(real)
    items, kind = stream_items(real, 4, half)
    foreign = halo = 0
    everybody = held.sum(0)
    for rank in np.flatnonzero(demand.needed.any(1)):
        depth = everybody - held[layout.owner == rank].sum(0)
        foreign += int((pixels * depth)[demand.needed[rank]].sum())
        if demand.halo is not None:
            wanted = demand.halo[rank] & held.any(0)
            sides = strips(demand.supervised[rank], camera)[wanted]
            halo += int((sides[:, 2:] - sides[:, :2]).prod(1).sum())
    streams = items * kind.itemsize * foreign
    return Volume(streams, streams if returns else 0, 3 * real.itemsize * halo)
