"""Content boxes: where in space a cell may draw (design section 4).

They predict in which views a cell takes part; what decides is the bitmap after projection.
"""

import numpy as np

from splaxel_mpi.partition.assign import cells_of_rank

KIND = "content"  # under which an exchange counts the traffic
REACH = 3.33  # standard deviations at which alpha = 1/255 for opacity 1: sqrt(2 ln 255) = 3.329
ROWS = 1 << 20  # Gaussians at a time, to bound temporary memory
# pixels by which an image is widened: projection adds 0.3 px^2 to the 2D covariance, which
# alone reaches 3.33 sqrt(0.3) = 1.8 px
PIXEL_MARGIN = 2.0
ROUNDING = 1e-12  # below this share a direction along an axis counts as none
FAR = 1e30  # stands for infinity in corners, so that 0 * infinity does not occur


def half_extents(scales, quats, xp=np):
    """Half-sides of the axis-aligned box of each ellipsoid at 3.33 standard deviations.

    scales: (n, 3) natural logarithms; quats: (n, 4), (w, x, y, z), of any length but 0.
    Exact: 3.33 sqrt(diag(R S S R^T)). Returns (n, 3) of their type, world units.
    """
    w, x, y, z = (quats / xp.sqrt((quats * quats).sum(axis=1, keepdims=True))).T
    variances = xp.exp(2 * scales)
    rotation = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    diagonal = [sum(r * r * variances[:, k] for k, r in enumerate(row)) for row in rotation]
    return REACH * xp.sqrt(xp.stack(diagonal, axis=1))


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

    def update(self, gaussians, cell_offsets, tree, exchange, xp=np):
        """Recompute the boxes; every rank calls.

        gaussians: those of this rank, grouped by cell; cell_offsets: (own cells + 1,) int64,
        see migrate.regroup. Extents that reach into other cells, of this or other ranks, count
        there. Raises ValueError on every rank when a Gaussian is not finite.
        """
        own = cells_of_rank(exchange.rank, tree.cells, exchange.ranks)
        bounds, local = tree.boxes(), _empty(tree.cells)
        for cell, rows in _blocks(own, cell_offsets):
            _add(local, gaussians, rows, cell, tree, bounds, xp)
        shared = exchange.allgather(KIND, local)
        low, high = shared[:, :, 0].min(axis=0), shared[:, :, 1].max(axis=0)
        bad = np.flatnonzero(np.isnan(low).any(axis=1) | np.isnan(high).any(axis=1))
        if len(bad):
            raise ValueError(f"Gaussians of cell {bad[0]} are not finite")
        low, high = np.moveaxis(_cut(np.stack([low, high], axis=1), bounds), 1, 0)
        side = np.where(low <= high, high - low, 0.0)
        wide = self.margin * np.linalg.norm(side, axis=1, keepdims=True)
        self.boxes = _cut(np.stack([low - wide, high + wide], axis=1), bounds)

    def stale(self, gaussians, cell_offsets, tree, exchange, xp=np):
        """Whether an extent of this rank's Gaussians has left the boxes; local, no exchange.

        Parameters as for update, with the same tree. Gaussians whose bounding sphere is
        inside the box of their cell need no further look; only the others' exact extents are
        taken, so the check is cheap while nothing moves far. True also when a Gaussian is not
        finite.
        """
        if len(self.boxes) != tree.cells:
            return True
        own = cells_of_rank(exchange.rank, tree.cells, exchange.ranks)
        bounds, local = tree.boxes(), _empty(tree.cells)
        for cell, rows in _blocks(own, cell_offsets):
            rows = rows.start + _suspects(gaussians, rows, self.boxes[cell], xp)
            _add(local, gaussians, rows, cell, tree, bounds, xp)
        local = _cut(local, bounds)
        inside = (local[:, 0] >= self.boxes[:, 0]) & (local[:, 1] <= self.boxes[:, 1])
        return not inside.all()

    def participants(self, camera, near=0.0):
        """Cells whose box may meet the frustum of a view: ascending int32 array.

        camera: scene.camera.Camera; near: view depth of the near plane. The image is widened
        by 2 pixels. Exact for box and widened frustum up to rounding (separating axes of two
        convex bodies), thus conservative for the image itself.
        """
        held = np.flatnonzero((self.boxes[:, 0] <= self.boxes[:, 1]).all(axis=1))
        boxes = np.clip(self.boxes[held], -FAR, FAR) - camera.center
        rays = _corner_rays(camera)
        axes = _separating_axes(rays, camera.rotation)
        low, high = _cone_bounds(axes, rays, near)
        middle = boxes.mean(axis=1) @ axes.T
        half = (boxes[:, 1] - boxes[:, 0]) / 2 @ np.abs(axes.T)
        meets = ((middle + half >= low) & (middle - half <= high)).all(axis=1)
        return held[meets].astype(np.int32)


def _empty(cells):
    """Boxes that hold nothing."""
    out = np.empty((cells, 2, 3))
    out[:, 0], out[:, 1] = np.inf, -np.inf
    return out


def _cut(boxes, bounds):
    """Boxes cut to their cells (an empty box stays empty)."""
    low, high = np.maximum(boxes[:, 0], bounds[:, 0]), np.minimum(boxes[:, 1], bounds[:, 1])
    return np.stack([low, high], axis=1)


def _blocks(own, cell_offsets):
    """(cell, slice of rows) such that each block lies in one cell."""
    for index, cell in enumerate(own):
        stop = int(cell_offsets[index + 1])
        for start in range(int(cell_offsets[index]), stop, ROWS):
            yield cell, slice(start, min(start + ROWS, stop))


def _suspects(gaussians, rows, box, xp):
    """Indices into rows of the Gaussians whose bounding sphere is not inside a box."""
    means = gaussians.means[rows]
    radius = REACH * xp.exp(gaussians.scales[rows].max(axis=1))[:, None]
    box = xp.asarray(box)
    return xp.nonzero(~((means - radius >= box[0]) & (means + radius <= box[1])).all(axis=1))[0]


def _add(local, gaussians, rows, cell, tree, bounds, xp):
    """Widen the boxes ``local`` by the extents of rows, which ``cell`` stores."""
    half = half_extents(gaussians.scales[rows], gaussians.quats[rows], xp)
    low, high = gaussians.means[rows] - half, gaussians.means[rows] + half
    if bool(xp.isnan(low).any()) or bool(xp.isnan(high).any()):
        local[cell] = np.nan
        return
    lower, upper = xp.asarray(bounds[cell])
    within = ((low >= lower) & (high < upper)).all(axis=1)
    _join(local[cell], low[within], high[within])
    _walk(local, low[~within], high[~within], tree)


def _join(box, low, high):
    """Widen a box by those of all rows, in place."""
    if len(low):
        box[0] = np.minimum(box[0], low.min(axis=0).tolist())
        box[1] = np.maximum(box[1], high.max(axis=0).tolist())


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


def _corner_rays(camera):
    """Directions through the corners of the widened image, in order around it: (4, 3) in the
    world, with view depth 1."""
    x = (np.array([-PIXEL_MARGIN, camera.width + PIXEL_MARGIN]) - camera.cx) / camera.fx
    y = (np.array([-PIXEL_MARGIN, camera.height + PIXEL_MARGIN]) - camera.cy) / camera.fy
    corners = [(x[0], y[0], 1), (x[1], y[0], 1), (x[1], y[1], 1), (x[0], y[1], 1)]
    return np.array(corners) @ camera.rotation


def _separating_axes(rays, rotation):
    """Unit normals among which one separates a box from a frustum that it does not meet:
    (k, 3). They are the normals of the faces of both and the products of their edges."""
    edges = np.concatenate([rays, rotation[:2]])  # of the frustum: its rays, the near rectangle
    products = np.cross(edges[:, None], np.eye(3)[None]).reshape(-1, 3)
    sides = np.cross(rays, np.roll(rays, -1, axis=0))
    axes = np.concatenate([np.eye(3), rotation[2:], sides, products])
    length = np.linalg.norm(axes, axis=1)
    kept = length > ROUNDING  # an edge along a box's edge gives no axis
    return axes[kept] / length[kept, None]


def _cone_bounds(axes, rays, near):
    """Bounds of the frustum, seen from the camera's centre, along each axis: (k,) each."""
    slopes = axes @ rays.T
    slopes[np.abs(slopes) < ROUNDING * np.linalg.norm(rays, axis=1)] = 0.0
    least, most = slopes.min(axis=1), slopes.max(axis=1)
    return np.where(least < 0, -np.inf, near * least), np.where(most > 0, np.inf, near * most)
