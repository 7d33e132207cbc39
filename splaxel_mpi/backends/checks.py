"""Checks of what callers hand to a backend, the same for all of them."""

import numpy as np

from ..scene.camera import TILE
from .base import ABSOLUTE_GRADIENT, SPLAT_GRADIENT


def check_array(name, array, shape, dtype):
    """Raise ValueError unless array has the shape (None: any length) and dtype and is
    C-contiguous."""
    good = len(array.shape) == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape)
    )
    if not good or array.dtype != dtype or not array.flags.c_contiguous:
        wanted = tuple("any" if size is None else size for size in shape)
        raise ValueError(
            f"{name} must be C-contiguous {np.dtype(dtype)} of shape {wanted}, "
            f"got {array.dtype} of shape {array.shape}"
        )


def check_degree(degree):
    """Raise ValueError unless degree is a degree of spherical harmonics in use."""
    if not 0 <= degree <= 3:
        raise ValueError(f"spherical harmonics degree must be 0 to 3, got {degree}")


def check_gradient(gradient, count, real):
    """Raise ValueError unless a splat gradient has count rows and SPLAT_GRADIENT or
    ABSOLUTE_GRADIENT columns. Returns the columns."""
    columns = gradient.shape[-1]
    if columns != ABSOLUTE_GRADIENT:
        columns = SPLAT_GRADIENT
    check_array("gradient", gradient, (count, columns), real)
    return columns


def check_loss(real, image, photo, camera, tiles, rect):
    """Raise ValueError unless the arguments of Backend.loss fit the camera. Returns the tiles
    (x0, y0, x1, y1) that the rect touches."""
    tiles_x, tiles_y = camera.tiles
    check_array("image", image, (3, TILE * tiles_y, TILE * tiles_x), real)
    check_array("photo", photo, (camera.height, camera.width, 3), np.uint8)
    check_array("tiles", tiles, (camera.tile_count,), np.uint8)
    x0, y0, x1, y1 = (int(side) for side in rect)
    if not (0 <= x0 <= x1 <= camera.width and 0 <= y0 <= y1 <= camera.height):
        raise ValueError(
            f"rect must lie in 0, 0, {camera.width}, {camera.height}, got {tuple(rect)}"
        )
    return x0 // TILE, y0 // TILE, -(-x1 // TILE), -(-y1 // TILE)
