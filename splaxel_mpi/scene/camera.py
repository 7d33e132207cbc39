"""Pinhole camera of one view."""

from dataclasses import dataclass

import numpy as np

TILE = 16  # side of a tile in pixels, the unit of lists, bitmaps and streams


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; axes as in COLMAP: x right, y down, z forward.

    The world-to-camera transform is ``t = rotation @ p + translation`` (float64). A point at
    view position (x, y, z) lands on pixel position (fx x / z + cx, fy y / z + cy); the centre
    of the top-left pixel is (0.5, 0.5).
    """

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    rotation: np.ndarray  # (3, 3) float64, world to camera
    translation: np.ndarray  # (3,) float64

    @property
    def center(self):
        """Camera position in the world, (3,) float64."""
        return -self.rotation.T @ self.translation

    @property
    def tiles(self):
        """Tile columns and rows (tiles_x, tiles_y); the last of each may be clipped."""
        return -(-self.width // TILE), -(-self.height // TILE)

    @property
    def tile_count(self):
        """Number of tiles; tile index = row * tiles_x + column."""
        tiles_x, tiles_y = self.tiles
        return tiles_x * tiles_y

    def packed(self):
        """Intrinsics and pose as 16 float64: rotation (9, row major), translation (3),
        fx, fy, cx, cy. This is what kernels take."""
        return np.concatenate(
            [
                np.asarray(self.rotation, np.float64).ravel(),
                np.asarray(self.translation, np.float64).ravel(),
                [self.fx, self.fy, self.cx, self.cy],
            ]
        )
