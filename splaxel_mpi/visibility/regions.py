"""Where on the screen a box can be: participants and regions from geometry alone.

The part of a box inside a frustum is convex, and so is its picture (paper section 3.1). Every ray
through a box leaves it through one far face, so the far faces cover the picture once, and its
outline is made of the edges where a far face meets another one, cut at the near plane. That holds
for a camera before, beside and inside the box.

Boxes are (cells, 2, 3) float64, lower and upper corners, none of them empty. Images are widened by
PIXEL_MARGIN on every side.
"""

from dataclasses import dataclass, fields

import numpy as np

from ..scene.camera import TILE

# pixels by which an image is widened: projection adds 0.3 px^2 to the 2D covariance, which
# alone reaches 3.33 sqrt(0.3) = 1.8 px
PIXEL_MARGIN = 2.0
ROUNDING = 1e-12  # below this share a direction along an axis counts as none
FAR = 1e30  # stands for infinity in corners, so that 0 * infinity does not occur
PAIRS = 1 << 12  # (view, box) pairs at a time: temporaries stay in the cache
NARROW = 1e-6  # of the image's height: over less the mean height is exact to 1e-12

# Corner k of a box is on the upper side of axis b where bit b of k is set. Edges, 12 pairs of
# corners, run upwards along axis b between a side of axis c = b + 1 and one of a = b + 2.
SIDES = np.array([[k >> axis & 1 for axis in range(3)] for k in range(8)])
EDGES = np.array([(k, k | 1 << b) for b in range(3) for k in range(8) if not k >> b & 1])


def _senses():
    """How the loop around each face, all of them turning alike, runs along each edge: (6, 12)
    of 1, -1 and 0. Face 2 axis + side."""
    out = np.zeros((6, 12), np.int8)
    for edge, (start, end) in enumerate(EDGES):
        b = int(end - start).bit_length() - 1
        c, a = (b + 1) % 3, (b + 2) % 3
        sense = (2 * SIDES[start, c] - 1) * (2 * SIDES[start, a] - 1)
        out[2 * c + SIDES[start, c], edge] = sense
        out[2 * a + SIDES[start, a], edge] = -sense
    return out


SENSES = _senses()


@dataclass
class Frusta:
    """Many views as arrays."""

    center: np.ndarray  # (views, 3) in the world
    rotation: np.ndarray  # (views, 3, 3), world to camera
    low: np.ndarray  # (views, 2): least x / z and y / z of the widened image
    high: np.ndarray  # (views, 2): largest
    pixels: np.ndarray  # (views,) of the widened image

    @staticmethod
    def of(cameras):
        """Frusta of a list of scene.camera.Camera."""
        rotation = np.array([c.rotation for c in cameras], np.float64).reshape(-1, 3, 3)
        translation = np.array([c.translation for c in cameras], np.float64).reshape(-1, 3)
        size = np.array([(c.width, c.height) for c in cameras], np.float64).reshape(-1, 2)
        lens = np.array([(c.fx, c.fy, c.cx, c.cy) for c in cameras], np.float64).reshape(-1, 4)
        low = (-PIXEL_MARGIN - lens[:, 2:]) / lens[:, :2]
        high = (size + PIXEL_MARGIN - lens[:, 2:]) / lens[:, :2]
        center = -np.einsum("vji,vj->vi", rotation, translation)
        return Frusta(center, rotation, low, high, (size + 2 * PIXEL_MARGIN).prod(axis=1))

    def __len__(self):
        return len(self.center)

    def __getitem__(self, chosen):
        """Some of the views, by slice or indices."""
        return Frusta(*(getattr(self, part.name)[chosen] for part in fields(self)))

    def rays(self):
        """Directions through the corners of the widened images, in order around them:
        (views, 4, 3) in the world, with view depth 1."""
        x = np.stack([self.low[:, 0], self.high[:, 0]], axis=1)[:, [0, 1, 1, 0]]
        y = np.stack([self.low[:, 1], self.high[:, 1]], axis=1)[:, [0, 0, 1, 1]]
        return np.stack([x, y, np.ones_like(x)], axis=2) @ self.rotation


# ---- participants ----


def meeting(boxes, frusta, near):
    """Pairs in which box and frustum share a point beyond the near plane: (view, box), two int
    arrays in ascending order.

    near: view depth, 0 or more. Exact up to rounding: convex bodies that do not meet are
    separated along the normal of a face of either or the product of an edge of each.
    """
    boxes = np.clip(boxes, -FAR, FAR)
    found = [(np.zeros(0, np.int64),) * 2]
    for part in _chunks(len(frusta), max(1, PAIRS // max(1, len(boxes)))):
        views = frusta[part]
        view, box = np.nonzero(_faces_let_meet(boxes, views, near))
        kept = _edges_let_meet(boxes[box] - views.center[view, None], views, view, near)
        found.append((view[kept] + part.start, box[kept]))
    return tuple(np.concatenate(parts) for parts in zip(*found))


def _chunks(count, step):
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _faces_let_meet(boxes, frusta, near):
    """Whether no plane of a face separates, (views, boxes)."""
    low, high = _cone_bounds(frusta.rays(), near)  # along the axes of the world
    low, high = low + frusta.center, high + frusta.center
    meet = np.ones((len(frusta), len(boxes)), bool)
    for axis in range(3):
        meet &= boxes[:, 1, axis] >= low[:, axis, None]
        meet &= boxes[:, 0, axis] <= high[:, axis, None]
    across, down, ahead = np.moveaxis(frusta.rotation, 1, 0)
    x0, y0, x1, y1 = (side[:, None] for side in (*frusta.low.T, *frusta.high.T))
    sides = across - x0 * ahead, x1 * ahead - across, down - y0 * ahead, y1 * ahead - down
    middle, half = boxes.mean(axis=1).T, (boxes[:, 1] - boxes[:, 0]).T / 2
    for inwards, least in ((ahead, near), *((side, 0.0) for side in sides)):
        least = least + (inwards * frusta.center).sum(axis=1, keepdims=True)
        meet &= inwards @ middle + np.abs(inwards) @ half >= least
    return meet


def _edges_let_meet(boxes, frusta, view, near):
    """Whether no product of edges separates, (n,). boxes: (n, 2, 3) seen from the centre of view
    (n,)."""
    rays = frusta.rays()
    edges = np.concatenate([rays, frusta.rotation[:, :2]], axis=1)  # those of the near rectangle
    axes = np.cross(edges[:, :, None], np.eye(3)).reshape(len(frusta), 18, 3)
    length = np.linalg.norm(axes, axis=2, keepdims=True)
    axes = np.divide(axes, length, out=np.zeros_like(axes), where=length > ROUNDING)
    low, high = _cone_bounds(rays @ axes.swapaxes(1, 2), near)
    middle, half = boxes.mean(axis=1), (boxes[:, 1] - boxes[:, 0]) / 2
    meet = np.empty(len(view), bool)
    for part in _chunks(len(view), PAIRS):
        v = view[part]
        along = (axes[v] @ middle[part, :, None])[..., 0]
        reach = (np.abs(axes[v]) @ half[part, :, None])[..., 0]
        meet[part] = ((along + reach >= low[v]) & (along - reach <= high[v])).all(axis=1)
    return meet


def _cone_bounds(slopes, near):
    """Bounds of frusta along axes, seen from the centre. slopes: (views, 4, k), what their corner
    rays have of each axis. Returns two (views, k)."""
    slopes = np.where(np.abs(slopes) < ROUNDING, 0.0, slopes)
    least, most = slopes.min(axis=1), slopes.max(axis=1)
    return np.where(least < 0, -np.inf, near * least), np.where(most > 0, np.inf, near * most)


# ---- outlines ----


@dataclass
class Edges:
    """Edges of boxes in view space, cut at the near plane."""

    start: np.ndarray  # (n, 12, 3)
    end: np.ndarray  # (n, 12, 3)
    kept: np.ndarray  # (n, 12) bool: some of the edge is beyond the near plane
    leaves: np.ndarray  # (n, 12) int8: 1 where the end is cut off, -1 where the start is


def _cut_edges(boxes, rotation, near):
    """Edges of boxes (n, 2, 3) seen from the centre under rotations (n, 3, 3)."""
    sides = boxes.swapaxes(1, 2)[..., None] * rotation.swapaxes(1, 2)[:, :, None]
    corners = sum(sides[:, axis, SIDES[:, axis]] for axis in range(3))
    start, end = corners[:, EDGES[:, 0]], corners[:, EDGES[:, 1]]
    before, after = start[..., 2] >= near, end[..., 2] >= near
    leaves = before.astype(np.int8) - after
    at = np.nonzero(leaves)
    here, there = start[at], end[at]
    share = (near - here[:, 2]) / (there[:, 2] - here[:, 2])
    crossing = here + share[:, None] * (there - here)
    crossing[:, 2] = near
    cut_start = leaves[at] < 0
    start[tuple(i[cut_start] for i in at)] = crossing[cut_start]
    end[tuple(i[~cut_start] for i in at)] = crossing[~cut_start]
    return Edges(start, end, before | after, leaves)


def _closing_edges(edges):
    """Where faces meet the near plane: starts and ends (n, 6, 3) that close their loops, and
    which faces do (n, 6)."""
    turns = SENSES * edges.leaves[:, None]  # (n, 6, 12): 1 where the loop leaves the frustum
    crossing = np.where((edges.leaves > 0)[..., None], edges.end, edges.start)
    leave, enter = ((turns == way).astype(np.float64) @ crossing for way in (1, -1))
    return leave, enter, (turns == 1).any(axis=2)


def _project(points, kept):
    """x / z and y / z of points (..., 3), of those kept; anything finite elsewhere."""
    return points[..., :2] / np.where(kept, points[..., 2], 1.0)[..., None]


# ---- areas ----


def areas(boxes, cameras, near):
    """Pixels of each image that each box may cover: (views, boxes) float32.

    0 where the box takes no part, and at least a tile where it does. cameras: list of Camera;
    near: view depth of the near plane, above 0 (ValueError else). The image's margin counts.
    """
    _check_near(near)
    frusta, boxes = Frusta.of(cameras), np.clip(boxes, -FAR, FAR)
    out = np.zeros((len(frusta), len(boxes)), np.float32)
    view, box = meeting(boxes, frusta, near)
    for part in _chunks(len(view), PAIRS):
        v = view[part]
        covered = _shares(boxes[box[part]] - frusta.center[v, None], frusta[v], near)
        out[v, box[part]] = np.maximum(covered * frusta.pixels[v], TILE * TILE)
    return out


def _shares(boxes, frusta, near):
    """Share of the widened image that each box (n, 2, 3) covers in the view of its row."""
    edges = _cut_edges(boxes, frusta.rotation, near)
    far = np.stack([boxes[:, 0] < 0, boxes[:, 1] > 0], axis=2).reshape(-1, 6)  # as SENSES
    weight = far.astype(np.float64) @ SENSES
    total = (weight * _under(edges.start, edges.end, edges.kept, frusta)).sum(axis=1)
    cut = np.flatnonzero(edges.leaves.any(axis=1))
    if len(cut):
        some = Edges(*(getattr(edges, part.name)[cut] for part in fields(edges)))
        leave, enter, closes = _closing_edges(some)
        total[cut] += (far[cut] * _under(leave, enter, closes, frusta[cut])).sum(axis=1)
    return np.abs(total)


def _under(start, end, kept, frusta):
    """Signed area between each segment and the image's upper side, inside the image, as a share
    of it. start, end: (n, k, 3) view positions. A polygon's area inside the image is the sum over
    its sides: their heights clamped to the image, integrated over its width."""
    size = (frusta.high - frusta.low)[:, None]
    (u, v), (u_end, v_end) = (
        np.moveaxis((_project(points, kept) - frusta.low[:, None]) / size, 2, 0)
        for points in (start, end)
    )
    first, last = np.clip(u, 0, 1), np.clip(u_end, 0, 1)
    run = u_end - u
    slope = np.divide(v_end - v, run, out=np.zeros_like(run), where=run != 0)
    here, there = v + (first - u) * slope, v + (last - u) * slope
    low, high = np.clip(here, 0, 1), np.clip(there, 0, 1)
    rise = there - here
    mean = np.clip((here + there) / 2, 0, 1)
    # integral of the clamped height from 0: low (here - low / 2)
    steep = np.abs(rise) > NARROW
    np.divide(high * (there - high / 2) - low * (here - low / 2), rise, out=mean, where=steep)
    return np.where(kept, (last - first) * mean, 0.0)


def _check_near(near):
    if not near > 0:
        raise ValueError(f"regions need a near plane above 0, got {near}")


# ---- tile sets ----


def tile_sets(boxes, camera, near):
    """Tiles in which boxes may draw: (indices of the boxes that take part, (k,) int32; their
    tiles, (k, tile_count) bool).

    A tile, widened by the margin, is in the set where it meets the picture of the box. near: as
    in areas.
    """
    _check_near(near)
    frusta, boxes = Frusta.of([camera]), np.clip(boxes, -FAR, FAR)
    box = meeting(boxes, frusta, near)[1].astype(np.int32)
    frusta = frusta[np.zeros(len(box), int)]
    edges = _cut_edges(boxes[box] - frusta.center[:, None], frusta.rotation, near)
    leave, enter, closes = _closing_edges(edges)
    kept = np.concatenate([edges.kept, closes], axis=1)
    start, end = (
        _project(np.concatenate(points, axis=1), kept) * [camera.fx, camera.fy]
        + [camera.cx, camera.cy]
        for points in ((edges.start, leave), (edges.end, enter))
    )
    left, right = _spans(start, end, kept, _tile_sides(camera.tiles[1], camera.height))
    first, last = _tile_sides(camera.tiles[0], camera.width)
    tiles = (left[..., None] <= last) & (right[..., None] >= first)
    return box, tiles.reshape(len(box), camera.tile_count)


def _tile_sides(count, size):
    """First and last pixel position of each widened tile in a line of `size` pixels."""
    edges = np.minimum(TILE * np.arange(count + 1), size)
    return edges[:-1] - PIXEL_MARGIN, edges[1:] + PIXEL_MARGIN


def _spans(start, end, kept, bands):
    """Least and largest x of the segments of each polygon inside each band of y: (n, bands)
    twice; left > right where there are none. start, end: (n, k, 2); bands: two (bands,)."""
    low, high = np.minimum(start, end)[..., 1, None], np.maximum(start, end)[..., 1, None]
    inside = kept[..., None] & (high >= bands[0]) & (low <= bands[1])
    run = (end - start)[..., None, :]
    slope = np.divide(run[..., 0], run[..., 1], out=np.zeros_like(low), where=run[..., 1] != 0)
    flat = np.where(run[..., 1] == 0, run[..., 0], 0.0)
    x, y = start[..., None, 0], start[..., None, 1]
    one, two = (x + (np.clip(band, low, high) - y) * slope for band in bands)
    two = two + flat
    left = np.where(inside, np.minimum(one, two), np.inf).min(axis=1)
    right = np.where(inside, np.maximum(one, two), -np.inf).max(axis=1)
    return left, right
