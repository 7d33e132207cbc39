"""The sparse cloud that an SfM tool would find in photographs of the synthetic city.

A point starts at a textured pixel of one photograph; views that see it (by ray casting) form its
track. Its observations carry half a pixel of noise and its position is what least squares makes of
them, so errors grow along the line of sight and for short baselines, as in a real reconstruction.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

PIXEL_NOISE = 0.5  # standard deviation of an observation, pixels
OUTLIERS = 0.005  # share of false matches: right in two photographs, at a wrong depth
MIN_TRACK, MAX_TRACK = 3, 24  # views of a point
NEIGHBOURS = 64  # nearest views that are asked whether they see a point: keeps work linear
MIN_ANGLE = np.deg2rad(1.5)  # between rays, below which COLMAP too drops a point
SAME_LOOK = 0.5  # cosine between views beyond which descriptors no longer match
MISSED = 0.15  # share of possible matches that a matcher misses


@dataclass
class Cloud:
    """n points: xyz (n, 3) float64; rgb (n, 3) uint8; error (n,) mean reprojection, pixels;
    length (n,) int64 of tracks; view (sum,) int32 and xy (sum, 2) float64, tracks in order."""

    xyz: np.ndarray
    rgb: np.ndarray
    error: np.ndarray
    length: np.ndarray
    view: np.ndarray
    xy: np.ndarray

    def take(self, rows):
        """Cloud of some of the points, in the order of rows."""
        end = np.cumsum(self.length)
        length = self.length[rows]
        into = np.repeat(end[rows] - length - np.cumsum(length) + length, length)
        flat = into + np.arange(length.sum())
        return Cloud(
            self.xyz[rows], self.rgb[rows], self.error[rows], length, self.view[flat], self.xy[flat]
        )


def join(clouds):
    """One cloud of several."""
    names = ("xyz", "rgb", "error", "length", "view", "xy")
    return Cloud(*(np.concatenate([getattr(c, name) for c in clouds]) for name in names))


class Rig:
    """The poses of all shots as arrays, for projecting points into many views."""

    def __init__(self, shots):
        cameras = [shot.camera for shot in shots]
        self.rotation = np.stack([c.rotation for c in cameras])
        self.translation = np.stack([c.translation for c in cameras])
        self.lens = np.array([[c.fx, c.fy, c.cx, c.cy] for c in cameras])
        self.size = np.array([[c.width, c.height] for c in cameras])
        self.center = np.stack([c.center for c in cameras])
        self.tree = cKDTree(self.center)

    def project(self, points, views):
        """Points (n, 3) into views (n, k): pixels (n, k, 2) and view positions (n, k, 3)."""
        seen = np.einsum("nkij,nj->nki", self.rotation[views], points) + self.translation[views]
        lens = self.lens[views]
        with np.errstate(divide="ignore", invalid="ignore"):
            xy = lens[..., :2] * seen[..., :2] / seen[..., 2:] + lens[..., 2:]
        return xy, seen

    def inside(self, xy, seen, views):
        """Whether projections lie in the photograph and in front of the camera."""
        with np.errstate(invalid="ignore"):
            return (seen[..., 2] > 0.3) & np.all((xy >= 0) & (xy < self.size[views]), axis=-1)


def _textured_pixels(image, count, random):
    """Pixels (count, 2) as x, y, drawn without repeats, likelier where the picture has detail."""
    gray = image.astype(np.float64).mean(axis=2)
    detail = np.zeros_like(gray)
    detail[:, 1:] += np.abs(np.diff(gray, axis=1))
    detail[1:] += np.abs(np.diff(gray, axis=0))
    # Exponential races: the smallest of -log(u) / weight draw without replacement.
    race = -np.log1p(-random.random(gray.size)) / (detail.ravel() + 2.0)
    count = min(count, gray.size)
    best = np.sort(np.argpartition(race, count - 1)[:count])
    y, x = np.divmod(best, gray.shape[1])
    return np.stack([x, y], axis=1) + random.random((count, 2))


def _tracks(scene, rig, source, points, normals, random, threads):
    """Views (n, k) and whether each sees its point (n, k); column 0 is the source."""
    count = min(NEIGHBOURS, len(rig.center))
    near = rig.tree.query(points, k=count)[1].reshape(len(points), count)
    views = np.concatenate([np.full((len(points), 1), source), near], axis=1)
    xy, seen = rig.project(points, views)
    to = points[:, None] - rig.center[views]
    far = np.linalg.norm(to, axis=2)
    gaze = to / np.maximum(far, 1e-9)[..., None]
    alike = np.einsum("nki,ni->nk", gaze, gaze[:, 0]) > SAME_LOOK
    alike &= np.abs(np.log(np.maximum(far, 1e-9) / far[:, :1])) < np.log(4.0)
    front = np.einsum("nki,ni->nk", gaze, normals) < -0.1
    good = rig.inside(xy, seen, views) & alike & front
    good &= random.random(good.shape) >= MISSED
    good[:, 1:] &= views[:, 1:] != source
    good[:, 0] = True
    row, column = np.nonzero(good)
    t = scene.trace(rig.center[views[row, column]], to[row, column], threads)[0]
    good[row, column] = t > 1.0 - 1e-3  # the ray ends where t is 1
    good[:, 0] = True
    order = np.argsort(np.where(good, random.random(good.shape), 2.0)[:, 1:], axis=1)
    order = np.concatenate([np.zeros((len(points), 1), np.int64), 1 + order], axis=1)
    order = order[:, :MAX_TRACK]
    return np.take_along_axis(views, order, 1), np.take_along_axis(good, order, 1)


def _least_squares(rig, points, views, good, noise):
    """Where points move when their observations carry noise (n, k, 2): one Gauss-Newton step
    from the truth, (J^T J)^-1 J^T noise. Returns the step (n, 3) and residuals (n, k, 2)."""
    _, seen = rig.project(points, views)
    z = np.where(good, seen[..., 2], 1.0)
    lens = rig.lens[views]
    slope = np.zeros((*views.shape, 2, 3))
    slope[..., 0, 0], slope[..., 1, 1] = lens[..., 0] / z, lens[..., 1] / z
    slope[..., 0, 2] = -lens[..., 0] * seen[..., 0] / z**2
    slope[..., 1, 2] = -lens[..., 1] * seen[..., 1] / z**2
    jacobian = np.einsum("nkab,nkbc->nkac", slope, rig.rotation[views]) * good[..., None, None]
    normal = np.einsum("nkab,nkac->nbc", jacobian, jacobian)
    step = np.linalg.solve(normal, np.einsum("nkab,nka->nb", jacobian, noise)[..., None])[..., 0]
    return step, noise - np.einsum("nkab,nb->nka", jacobian, step)


def _widest(rig, points, views, good):
    """Largest angle between the source's ray and those of the track, radians (n,)."""
    gaze = points[:, None] - rig.center[views]
    gaze /= np.maximum(np.linalg.norm(gaze, axis=2), 1e-9)[..., None]
    cosine = np.einsum("nki,ni->nk", gaze, gaze[:, 0])
    return np.arccos(np.clip(np.where(good, cosine, 1.0).min(axis=1), -1.0, 1.0))


def _mislead(rig, points, views, good, xy, random):
    """Turn a few points into false matches, in place: two views agree on a wrong depth."""
    chosen = np.flatnonzero(random.random(len(points)) < OUTLIERS)
    shift = np.exp(0.3 * random.standard_normal(len(chosen)))
    eye = rig.center[views[chosen, 0]]
    wrong = eye + shift[:, None] * (points[chosen] - eye)
    pair = views[chosen, :2]
    pixels, seen = rig.project(wrong, pair)
    fits = rig.inside(pixels, seen, pair).all(axis=1) & good[chosen, 1]
    chosen = chosen[fits]
    points[chosen] = wrong[fits]
    good[chosen, 2:] = False
    xy[chosen, 1] = pixels[fits, 1]


def find_points(scene, rig, source, image, count, turn, threads=0):
    """Points first found in the photograph of view `source`; a Cloud of at most `count`.

    image: (height, width, 3) uint8 as stored; turn: a number that makes another call draw other
    pixels. The result depends on these arguments alone.
    """
    key = np.array([scene.seed, (1 << 62) + (source << 16) + turn], np.uint64)
    random = np.random.Generator(np.random.Philox(key=key))
    pixels = _textured_pixels(image, count, random)
    lens = rig.lens[source]
    gaze = np.column_stack([(pixels - lens[2:]) / lens[:2], np.ones(len(pixels))])
    gaze = gaze @ rig.rotation[source]
    t, _, normals = scene.trace(rig.center[source], gaze, threads)
    hit = np.isfinite(t)
    points = rig.center[source] + np.where(hit, t, 0.0)[:, None] * gaze
    points, pixels, normals = points[hit], pixels[hit], normals[hit]
    views, good = _tracks(scene, rig, source, points, normals, random, threads)
    noise = PIXEL_NOISE * random.standard_normal((*views.shape, 2)) * good[..., None]
    long = (good.sum(axis=1) >= MIN_TRACK) & (_widest(rig, points, views, good) > MIN_ANGLE)
    points, pixels, views, good, noise = (a[long] for a in (points, pixels, views, good, noise))
    xy = rig.project(points, views)[0] + noise
    step, residual = _least_squares(rig, points, views, good, noise)
    error = np.linalg.norm(residual, axis=2).sum(axis=1) / np.maximum(good.sum(axis=1), 1)
    x, y = pixels.astype(np.int64).T
    xyz = points + step
    _mislead(rig, xyz, views, good, xy, random)
    return Cloud(
        xyz, image[y, x], error, good.sum(axis=1).astype(np.int64), views[good].astype(np.int32),
        xy[good],
    )  # fmt: skip
