"""Bytes that strategy gaussian sends for a view, counted by where its splats would go."""

from dataclasses import dataclass

import numpy as np

from ...backends.base import SPLAT, SPLAT_GRADIENT
from ...compose.halo import PARTS, borders
from ...compose.strips import TILE_WORK, cut, row_instances, tile_boxes, touched
from ...partition.deal import dealt_ranks
from ...visibility.tiles import dilate

REAL, ID = 4, 8  # bytes
# What Grendel sends of a splat, out and back: 9 floats of it, radius and depth; 9 floats of
# gradient. Ours carries extents and an id besides, by which ties of depth are the same everywhere.
LEAN_RECORD = 4 * (11 + 9)


@dataclass
class Traffic:
    """One training view over a number of ranks; sums over all ranks of what each sends others."""

    visible: int  # splats of the view
    drawn: int  # (splat, strip) pairs, those that stay on their rank included
    sent: int  # (splat, strip) pairs that travel
    out: int  # bytes of splats
    back: int  # bytes of their gradients
    halo: int  # bytes of colours at the borders of strips
    lean: int  # bytes of splats and gradients if each took what Grendel sends

    @property
    def total(self):
        """Bytes of everything: what the exchange object counts but for a few numbers a row."""
        return self.out + self.back + self.halo


def gaussian_traffic(splats, camera, ranks, equal=False, xp=np, exchange=None):
    """Traffic of a view, float32.

    splats: backends.base.Splats of all Gaussians of the scene, ids included; equal: strips of
    equal size instead of equal predicted work: they cut where less is drawn, so less travels,
    and ranks wait for one another; xp: module of the splats; exchange: of the processes that
    have a part of the splats each, however many; None: these are all. Collective then.
    """

    def total(array):
        array = np.asarray(array.tolist())
        return exchange.allreduce("count", array) if exchange else array

    boxes = tile_boxes(splats, camera, xp)
    work = np.full(camera.tiles[1], float(TILE_WORK * camera.tiles[0]))
    if not equal:
        work += total(row_instances(boxes, camera, xp))
    starts = cut(work, camera, ranks)
    index, rank = touched(boxes, starts, camera, xp)
    away = (dealt_ranks(splats.ids, ranks, xp)[index] != rank).sum()
    visible, drawn, sent = total(np.array([len(splats), len(index), int(away)])).tolist()
    return Traffic(
        visible=visible,
        drawn=drawn,
        sent=sent,
        out=sent * (REAL * SPLAT + ID),
        back=sent * REAL * SPLAT_GRADIENT,
        halo=_halo(starts, camera),
        lean=sent * LEAN_RECORD,
    )


def _halo(starts, camera):
    """Bytes of the colours that all strips need of others."""
    pixels = 0
    for start, stop in zip(starts[:-1], starts[1:]):
        own = np.zeros(camera.tile_count, bool)
        own[start:stop] = True
        if own.any():
            for tiles, part in zip(borders(dilate(own, camera), own, camera), PARTS):
                pixels += int((~own[tiles]).sum()) * (part.stop - part.start)
    return 3 * REAL * pixels
