"""Content boxes: where in space a cell may draw (design section 4).

They predict in which views a cell takes part; what decides is the bitmap after projection.
"""

import numpy as np

from splaxel_mpi.arrays import module_of
from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.assign import local_cells
from splaxel_mpi.visibility import regions

KIND = "content"  # under which an exchange counts the traffic
REACH = 3.33  # standard deviations at which alpha = 1/255 for opacity 1: sqrt(2 ln 255) = 3.329
# Gaussians at a time: temporaries of the host stay in its cache, those of a device in bounds
ROWS, DEVICE_ROWS = 1 << 14, 1 << 20


def half_extents(scales, quats, xp=np):
    """Half-sides of the axis-aligned box of each ellipsoid at 3.33 standard deviations.

    scales: (n, 3) natural logarithms; quats: (n, 4), (w, x, y, z), of any length but 0.
    Exact: 3.33 sqrt(diag(R S S R^T)). Returns (n, 3) of their type, world units.
    """
    w, x, y, z = quats.T  # by columns: sums over rows of three or four are slow
    length = xp.sqrt(w * w + x * x + y * y + z * z)
    w, x, y, z = (part / length for part in (w, x, y, z))
    deviations = [xp.exp(column) for column in scales.T]
    rotation = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    out = xp.empty_like(scales)
    for axis, row in enumerate(rotation):
        out[:, axis] = REACH * xp.sqrt(sum((r * s) ** 2 for r, s in zip(row, deviations)))
    return out


def _all_inside(low, high, box, xp):
    """Whether rows of low and high (n, 3) are inside a box, [lower, upper): (n,)."""
    inside = xp.ones(len(low), bool)
    for axis in range(3):
        inside &= (low[:, axis] >= box[0, axis]) & (high[:, axis] < box[1, axis])
    return inside


class ContentBoxes:
    """A box per cell that holds the extents of all Gaussians, cut to the cell.

    boxes: (cells, 2, 3) float64, lower and upper corners, identical on every rank; a cell
    without content has +inf below -inf. Each box is wider than its content by ``margin`` of
    its diagonal on every side (not beyond the cell); while nothing leaves it (``stale``), the
    boxes stay valid.
    """

    def __init__(self, margin=0.02):
        """margin: share of the diagonal, at least 0 (ValueError else)."""
        if not margin >= 0:
            raise ValueError(f"content box margin {margin} is negative")
        self.margin = margin
        self.boxes = np.zeros((0, 2, 3))

    def refresh(self, gaussians, cell_offsets, tree, exchange):
        """Recompute the boxes if they are stale on any rank; every rank calls. Returns whether
        they were. Parameters as for update."""
        stale = self.stale(gaussians, cell_offsets, tree, exchange)
        stale = bool(exchange.allreduce(KIND, np.array([stale], np.int64), "max")[0])
        if stale:
            self.update(gaussians, cell_offsets, tree, exchange)
        return stale

    def update(self, gaussians, cell_offsets, tree, exchange):
        """Recompute the boxes; every rank calls.

        gaussians: those of this rank, grouped by cell; cell_offsets: (own cells + 1,) int64,
        see migrate.regroup. Extents that reach into other cells, of this or other ranks, count
        there. Raises UserError on every rank when a Gaussian is not finite.
        """
        own = local_cells(tree, exchange.rank, exchange.ranks)
        bounds = tree.boxes()
        xp = module_of(gaussians.means)
        local = _extents(gaussians, _blocks(own, cell_offsets, xp), tree, bounds, xp)
        shared = exchange.allgather(KIND, local)
        low, high = shared[:, :, 0].min(axis=0), shared[:, :, 1].max(axis=0)
        bad = np.flatnonzero(np.isnan(low).any(axis=1) | np.isnan(high).any(axis=1))
        if len(bad):
            raise UserError(
                f"Gaussians of cell {bad[0]} are not finite: training diverged; lower train.rates"
            )
        low, high = np.moveaxis(_cut(np.stack([low, high], axis=1), bounds), 1, 0)
        side = np.where(low <= high, high - low, 0.0)
        wide = self.margin * np.linalg.norm(side, axis=1, keepdims=True)
        self.boxes = _cut(np.stack([low - wide, high + wide], axis=1), bounds)

    def stale(self, gaussians, cell_offsets, tree, exchange):
        """Whether an extent of this rank's Gaussians has left the boxes; local, no exchange.

        Parameters as for update, with the same tree. Gaussians whose bounding sphere is
        inside the box of their cell need no further look; only the others' exact extents are
        taken, so the check is cheap while nothing moves far. True also when a Gaussian is not
        finite.
        """
        if len(self.boxes) != tree.cells:
            return True
        own = local_cells(tree, exchange.rank, exchange.ranks)
        bounds, xp = tree.boxes(), module_of(gaussians.means)
        suspects = (
            (cell, _suspects(gaussians, rows, self.boxes[cell], xp))
            for cell, rows in _blocks(own, cell_offsets, xp)
        )
        local = _cut(_extents(gaussians, suspects, tree, bounds, xp), bounds)
        inside = (local[:, 0] >= self.boxes[:, 0]) & (local[:, 1] <= self.boxes[:, 1])
        return not inside.all()

    def participants(self, camera, near=0.0):
        """Cells whose box may meet the frustum of a view: ascending int32 array.

        camera: scene.camera.Camera; near: view depth of the near plane. The image is widened
        by 2 pixels. Exact for box and widened frustum up to rounding, thus conservative for the
        image itself.
        """
        held = self.held()
        _, box = regions.meeting(self.boxes[held], regions.Frusta.of([camera]), near)
        return held[box]

    def regions(self, camera, near):
        """Participants of a view and the tiles in which they may draw.

        near: above 0 (ValueError else). Returns (cells (k,) int32 ascending, tiles
        (k, tile_count) bool).
        """
        held = self.held()
        box, tiles = regions.tile_sets(self.boxes[held], camera, near)
        return held[box], tiles

    def areas(self, cameras, near):
        """Pixels of each view in which each cell may draw, (views, cells) float32; 0 where it
        takes no part, else at least a tile's. For many views at once."""
        held = self.held()
        out = np.zeros((len(cameras), len(self.boxes)), np.float32)
        out[:, held] = regions.areas(self.boxes[held], cameras, near)
        return out

    def held(self):
        """Cells with content, ascending int32."""
        return np.flatnonzero((self.boxes[:, 0] <= self.boxes[:, 1]).all(axis=1)).astype(np.int32)


def _empty(cells):
    """Boxes that hold nothing."""
    out = np.empty((cells, 2, 3))
    out[:, 0], out[:, 1] = np.inf, -np.inf
    return out


def _cut(boxes, bounds):
    """Boxes cut to their cells (an empty box stays empty)."""
    low, high = np.maximum(boxes[:, 0], bounds[:, 0]), np.minimum(boxes[:, 1], bounds[:, 1])
    return np.stack([low, high], axis=1)


def _blocks(own, cell_offsets, xp):
    """(cell, slice of rows) such that each block lies in one cell."""
    step = ROWS if xp is np else DEVICE_ROWS
    for index, cell in enumerate(own):
        stop = int(cell_offsets[index + 1])
        for start in range(int(cell_offsets[index]), stop, step):
            yield cell, slice(start, min(start + step, stop))


def _suspects(gaussians, rows, box, xp):
    """Indices of the Gaussians among rows whose bounding sphere is not inside a box."""
    means, scales = gaussians.means[rows], gaussians.scales[rows]
    largest = xp.maximum(xp.maximum(scales[:, 0], scales[:, 1]), scales[:, 2])
    radius = (REACH * xp.exp(largest))[:, None]
    return rows.start + xp.nonzero(~_all_inside(means - radius, means + radius, box, xp))[0]


def _extents(gaussians, blocks, tree, bounds, xp):
    """Boxes around the extents of the rows of blocks, (cell that stores them, rows), not cut to
    the cells: (cells, 2, 3). Not a number in cells of Gaussians that are not finite."""
    local, across = _empty(tree.cells), []
    for cell, rows in blocks:
        half = half_extents(gaussians.scales[rows], gaussians.quats[rows], xp)
        low, high = gaussians.means[rows] - half, gaussians.means[rows] + half
        if bool((xp.isnan(low) | xp.isnan(high)).any()):
            local[cell] = np.nan
            continue
        within = _all_inside(low, high, bounds[cell], xp)
        _join(local[cell], low[within], high[within])
        across.append((low[~within], high[~within]))
    if across:
        low, high = (xp.concatenate(parts) for parts in zip(*across))
        _walk(local, low, high, tree)
    return local


def _join(box, low, high):
    """Widen a box by those of all rows, in place."""
    if len(low):
        box[0] = np.minimum(box[0], [float(column.min()) for column in low.T])
        box[1] = np.maximum(box[1], [float(column.max()) for column in high.T])


def _walk(local, low, high, tree):
    """Widen the box of every cell that each row's extents meet."""
    stack = [(0 if len(tree.axis) else -1, low, high)]
    while stack:
        child, low, high = stack.pop()
        if child < 0:
            _join(local[-1 - child], low, high)
        elif len(low):
            axis, split = tree.axis[child], tree.split[child]
            left, right = low[:, axis] < split, high[:, axis] >= split
            stack.append((tree.left[child], low[left], high[left]))
            stack.append((tree.right[child], low[right], high[right]))
