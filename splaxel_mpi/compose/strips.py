"""Strips: the pixels of a view dealt to ranks as runs of tiles in row-major order.

Where each run begins follows from the work in every row of tiles, so that all ranks finish a view
at about the same time; which runs a splat goes to follows from the tiles that its box meets.
"""

from dataclasses import dataclass

import numpy as np

from ..backends.base import EXTENT_X, EXTENT_Y, U, V
from ..scene.camera import TILE

# Work that a tile takes whatever it lists, in instances. Blending ends where a pixel is opaque, so
# long lists cost little more than short ones: least squares over strips of the city of Gaussians
# give 0.3 ms a tile and 0.57 us an instance on a CPU; on an H200 rasterizer, loss and composition
# take 0.7 ms for 8160 tiles, the lists of 1.06 M splats 0.5 ms.
TILE_WORK = 400
# Share of the newest visit in the smoothed time of a row.
NEWEST = 0.5


@dataclass
class TileBoxes:
    """Tiles that splats may be drawn in, those that meet none left out."""

    index: np.ndarray  # (n,) the splats, ascending
    top: np.ndarray  # (n,) int32, first row of tiles, and so on, all inclusive
    bottom: np.ndarray
    left: np.ndarray
    right: np.ndarray


def tile_boxes(splats, camera, xp):
    """TileBoxes of the splats of a view.

    A box is that of the splat's ellipse (backends.base.Splats), so the tile lists draw it in no
    tile outside; its corners may hold tiles that they do not.
    """
    data = splats.data
    # more than the 2e-3 px and 8 spacings of the tile lists, which round elsewhere
    spacing = float(np.finfo(data.dtype).eps)
    size = xp.abs(data[:, U]) + xp.abs(data[:, V]) + data[:, EXTENT_X] + data[:, EXTENT_Y]
    margin = 4e-3 + 16 * spacing * size
    tiles_x, tiles_y = camera.tiles
    left, right = _range(data[:, U], data[:, EXTENT_X] + margin, tiles_x, xp)
    top, bottom = _range(data[:, V], data[:, EXTENT_Y] + margin, tiles_y, xp)
    index = xp.flatnonzero((left <= right) & (top <= bottom))
    ends = [end[index].astype(np.int32) for end in (top, bottom, left, right)]
    return TileBoxes(index, *ends)


def _range(middle, half, count, xp):
    """First and last of ``count`` tiles in a line whose pixel centres a stretch meets, as reals;
    the first is behind the last where it meets none."""
    first = xp.ceil((middle - half - (TILE - 0.5)) / TILE)
    last = xp.floor((middle + half - 0.5) / TILE)
    return xp.maximum(first, 0), xp.minimum(last, count - 1)


def row_instances(boxes, camera, xp):
    """(Splat, tile) pairs of every row of tiles, (tiles_y,) float64 with whole numbers."""
    wide = (boxes.right - boxes.left + 1).astype(np.float64)
    change = xp.zeros(camera.tiles[1] + 1)  # from row to row; cupy's bincount would wait
    xp.add.at(change, boxes.top, wide)
    xp.add.at(change, boxes.bottom + 1, -wide)
    return xp.cumsum(change)[:-1]


def cut(work, camera, ranks):
    """First tile of each rank's run and the end of the last, (ranks + 1,) int64.

    work: (tiles_y,) float64, positive, of each row of tiles; inside a row it counts as even.
    """
    upto = np.concatenate([[0.0], np.cumsum(work)])
    wanted = upto[-1] * np.arange(ranks + 1) / ranks
    tiles_x, tiles_y = camera.tiles
    starts = np.rint(np.interp(wanted, upto, np.arange(tiles_y + 1)) * tiles_x).astype(np.int64)
    starts[0], starts[-1] = 0, camera.tile_count
    return starts


def touched(boxes, starts, camera, xp):
    """(splats, ranks): each splat with every rank whose run its box meets, (k,) each."""
    tiles_x = camera.tiles[0]
    ends = xp.asarray(starts[1:])
    first = xp.searchsorted(ends, boxes.top.astype(np.int64) * tiles_x + boxes.left, side="right")
    last = xp.searchsorted(
        ends, boxes.bottom.astype(np.int64) * tiles_x + boxes.right, side="right"
    )
    upto = xp.cumsum(last - first + 1)
    total = int(upto[-1]) if len(upto) else 0
    place = xp.arange(total)
    which = xp.searchsorted(upto, place, side="right")
    rank = last[which] - (upto[which] - 1 - place)
    # a run as long as a row has a tile in every column; shorter ones may pass a box by
    if np.diff(starts).min() < tiles_x:
        meets = _meet(boxes, which, rank, starts, tiles_x, xp)
        which, rank = which[meets], rank[meets]
    return boxes.index[which], rank


def _meet(boxes, which, rank, starts, tiles_x, xp):
    """Whether the run of each rank has a tile in the box, (k,) bool."""
    top, bottom, left, right = (
        side[which] for side in (boxes.top, boxes.bottom, boxes.left, boxes.right)
    )
    begin, end = (xp.asarray(side)[rank] for side in (starts[:-1], starts[1:] - 1))
    row, column = begin // tiles_x, begin % tiles_x
    last_row, last_column = end // tiles_x, end % tiles_x
    alone = row == last_row
    in_first = (top <= row) & (row <= bottom) & (right >= column)
    in_first &= ~alone | (left <= last_column)
    in_last = ~alone & (top <= last_row) & (last_row <= bottom) & (left <= last_column)
    between = xp.maximum(top, row + 1) <= xp.minimum(bottom, last_row - 1)
    return (begin <= end) & (in_first | in_last | between)


def rows_of_run(start, stop, work, camera):
    """Share of a run's work that lies in each row of tiles, (tiles_y,) float64, sum 1 or 0."""
    tiles_x, tiles_y = camera.tiles
    edges = np.clip(np.arange(tiles_y + 1) * tiles_x, start, stop)
    share = np.diff(edges) * work
    return share / max(share.sum(), 1e-300)


class Balance:
    """Work of the rows of tiles, corrected by what earlier visits of a view took."""

    def __init__(self):
        self.ratios = {}  # view -> (tiles_y,) seconds a predicted unit of work

    def correct(self, camera, work):
        """Expected work of each row, from the predicted one, (tiles_y,) float64."""
        ratio = self.ratios.get(_key(camera))
        return work if ratio is None else work * ratio

    def visit(self, camera, work, seconds):
        """Remember what a visit took. work: predicted, seconds: measured, (tiles_y,) each."""
        key = _key(camera)
        # a row that took no time on the clock still has some work
        ratio = np.maximum(seconds, 1e-3 * seconds.mean() + 1e-12) / work
        before = self.ratios.get(key, ratio)
        self.ratios[key] = before + NEWEST * (ratio - before)


def _key(camera):
    return camera.width, camera.height, camera.packed().tobytes()
