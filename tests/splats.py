"""Seeded splats and the rasterizer alone, for the tests of its parts."""

import numpy as np
import pytest
import reference

from splaxel_mpi.backends.base import SPLAT, Splats
from splaxel_mpi.backends.host_raster import ISA, HostRaster, isa
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.camera import Camera

REALS = (np.float32, np.float64)
# max|x - y| / max|y|: float32 holds an exponential of 1e-7 and sums of some tens of terms
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


class Raster(HostRaster):
    """The rasterizer alone."""

    def __init__(self, real=np.float32, threads=1):
        self.real, self.threads = np.dtype(real), threads


def make_camera(width, height):
    return Camera(width, height, width, width, width / 2, height / 2, np.eye(3), np.zeros(3))


def make_splats(rows, real, ids=None):
    """rows: (n, 9) u, v, sigma_x, sigma_y, angle, opacity, depth, then colour from a seed."""
    rows = np.asarray(rows, np.float64)
    n = len(rows)
    u, v, first, second, angle, opacity, depth = rows.T
    cos, sin = np.cos(angle), np.sin(angle)
    xx = (first * cos) ** 2 + (second * sin) ** 2
    yy = (first * sin) ** 2 + (second * cos) ** 2
    xy = (first**2 - second**2) * cos * sin
    determinant = (first * second) ** 2
    reach = np.sqrt(2 * np.log(np.maximum(255 * opacity, 1))) + 1e-3
    data = np.zeros((n, SPLAT))
    data[:, 0], data[:, 1], data[:, 5], data[:, 9] = u, v, opacity, depth
    data[:, 2], data[:, 3], data[:, 4] = yy / determinant, -xy / determinant, xx / determinant
    data[:, 6:9] = np.random.default_rng(7).random((n, 3))
    data[:, 10], data[:, 11] = reach * np.sqrt(xx), reach * np.sqrt(yy)
    ids = np.arange(n, dtype=np.int64) if ids is None else ids
    return Splats(np.arange(n, dtype=np.int32), data.astype(real), ids)


def random_splats(camera, n, real, seed=0, sigma=(0.6, 12.0), opacity=(0.01, 0.98)):
    random = np.random.default_rng(seed)
    low, high = np.log(sigma)
    rows = np.empty((n, 7))
    rows[:, 0] = random.uniform(-5, camera.width + 5, n)
    rows[:, 1] = random.uniform(-5, camera.height + 5, n)
    rows[:, 2:4] = np.exp(random.uniform(low, high, (n, 2)))
    rows[:, 4] = random.uniform(0, np.pi, n)
    rows[:, 5] = random.uniform(*opacity, n)
    rows[:, 6] = random.uniform(1, 50, n)
    return make_splats(rows, real)


def render(splats, camera, real, stop=0.0, threads=1, box=None, mask=None):
    raster = Raster(real, threads)
    lists = raster.tile_lists(splats, camera, box, mask)
    partial = raster.rasterize(splats, lists, camera, stop)
    return raster, lists, partial


def image_of(splats, camera, real, stop=0.0, **options):
    _, lists, partial = render(splats, camera, real, stop, **options)
    return reference.to_image(lists.tiles, partial.pixels, camera)


def gradient_of(splats, camera, real, seeds, stop=0.0, absolute=False, **options):
    """Splat gradient for seeds (height, width, 4)."""
    raster, lists, partial = render(splats, camera, real, stop, **options)
    gradient = reference.to_tiles(seeds.astype(real), lists.tiles, camera)
    return raster.rasterize_backward(splats, lists, partial, gradient, camera, stop, absolute)


def random_seeds(camera, seed=3):
    return np.random.default_rng(seed).standard_normal((camera.height, camera.width, 4))


def cut_off_pixels(splats, camera):
    """Pixels where a rounding may decide whether a splat is drawn: alpha next to 1/255."""
    near = np.zeros((camera.height, camera.width), bool)
    x, y = reference.pixel_centres(camera)
    # whole pixels around the box of each splat, in which all its cut-offs lie
    boxes = splats.data[:, [0, 1, 0, 1]] + [[-1, -1, 1, 1]] * splats.data[:, [10, 11, 10, 11]]
    sides = [camera.width, camera.height] * 2
    boxes = np.clip(np.nan_to_num(boxes) + [-2, -2, 2, 2], 0, sides).astype(int)
    for splat, (left, top, right, bottom) in zip(splats.data.astype(np.float64), boxes):
        window = slice(top, bottom), slice(left, right)
        dx, dy = x[window] - splat[0], y[window] - splat[1]
        q = 0.5 * (splat[2] * dx**2 + splat[4] * dy**2) + splat[3] * dx * dy
        near[window] |= np.abs(255 * splat[5] * np.exp(-q) - 1) < 1e-4
    return near


@pytest.fixture(params=ISA)
def each_isa(request, monkeypatch):
    """Forces one instruction set; skips those that this CPU lacks."""
    monkeypatch.setenv("SPLAXEL_ISA", request.param)
    try:
        isa()
    except UserError as error:
        pytest.skip(str(error))
    return request.param
