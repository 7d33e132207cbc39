"""Tile sets of a view: who holds a tile, who supervises it, who needs it to do so.

A tile set is a boolean array over the view's tiles, row major.
"""

import numpy as np

from ..backends.base import EXTENT_X, EXTENT_Y, U, V
from ..backends.host_library import call
from ..scene.camera import TILE

# The gradient of SSIM at a pixel reaches the composed image 10 pixels away (5 for the
# moments, 5 more for the gradient of each moment): less than one tile.
SSIM_REACH = 10


def dilate(tiles, camera):
    """Tile set widened by one tile in all eight directions."""
    tiles, out = np.ascontiguousarray(tiles, bool), np.empty(camera.tile_count, bool)
    call("spx_dilate", tiles, camera.width, camera.height, out)
    return out


def rects(camera):
    """Pixels of each tile inside the image as x0, y0, x1, y1 in the tile, (tile_count, 4)
    int64."""
    tiles_x, tiles_y = camera.tiles
    out = np.zeros((tiles_y, tiles_x, 4), np.int64)
    out[..., 2] = np.minimum(TILE, camera.width - TILE * np.arange(tiles_x))
    out[..., 3] = np.minimum(TILE, camera.height - TILE * np.arange(tiles_y))[:, None]
    return out.reshape(-1, 4)


def areas(camera):
    """Pixels of each tile inside the image, (tile_count,) int64."""
    return rects(camera)[:, 2:].prod(1)


def strips(tiles, camera):
    """What SSIM needs beside a tile set: of each tile the rectangle around its pixels that lie
    within SSIM_REACH of the set, (tile_count, 4) int64 as of rects; tiles of the set and those
    that do not touch it give nothing useful.

    The rectangle holds nothing else but in tiles that the set touches from two sides.
    """
    tiles, out = np.ascontiguousarray(tiles, bool), np.empty((camera.tile_count, 4), np.int64)
    call("spx_strips", tiles, camera.width, camera.height, SSIM_REACH, out)
    return out


def boxes_touch(splats, rows, tiles, camera, xp=np):
    """Whether the box of each splat holds a tile of its set: (n,) bool.

    splats: (n, 12) as Splats.data; rows: (n,) int, which set of tiles (k, tile_count) bool
    is meant. Arrays of xp.
    """
    tiles_x, tiles_y = camera.tiles
    sums = xp.zeros((len(tiles), tiles_y + 1, tiles_x + 1), np.int32)
    grid = tiles.reshape(-1, tiles_y, tiles_x)
    sums[:, 1:, 1:] = grid.cumsum(axis=1, dtype=np.int32).cumsum(axis=2, dtype=np.int32)

    def span(middle, extent, count):
        ends = xp.floor((middle - extent) / TILE), xp.floor((middle + extent) / TILE) + 1
        return (xp.clip(end, 0, count).astype(np.int64) for end in ends)

    left, right = span(splats[:, U], splats[:, EXTENT_X], tiles_x)
    top, bottom = span(splats[:, V], splats[:, EXTENT_Y], tiles_y)
    inside = sums[rows, bottom, right] - sums[rows, top, right]
    return inside - sums[rows, bottom, left] + sums[rows, top, left] > 0


def bounding_rect(tiles, camera, margin=0):
    """Pixels (x0, y0, x1, y1) around a tile set, widened by margin, cut to the image.

    An empty set gives (0, 0, 0, 0).
    """
    tiles, out = np.ascontiguousarray(tiles, bool), np.empty(4, np.int64)
    call("spx_bounding_rect", tiles, camera.width, camera.height, int(margin), out)
    return tuple(out.tolist())


def to_image(tiles, data, camera):
    """Padded image (planes, 16 tiles_y, 16 tiles_x) from tiles (n,) and (n, planes, 256);
    zeros where no tile is given."""
    tiles_x, tiles_y = camera.tiles
    planes = data.shape[1]
    image = np.zeros((planes, tiles_y, TILE, tiles_x, TILE), data.dtype)
    image[:, tiles // tiles_x, :, tiles % tiles_x, :] = data.reshape(-1, planes, TILE, TILE)
    return image.reshape(planes, tiles_y * TILE, tiles_x * TILE)


def to_tiles(tiles, image, camera):
    """Inverse of to_image: (n, planes, 256) from a padded image."""
    tiles_x, tiles_y = camera.tiles
    planes = image.shape[0]
    grid = image.reshape(planes, tiles_y, TILE, tiles_x, TILE)
    picked = grid[:, tiles // tiles_x, :, tiles % tiles_x, :]
    return np.ascontiguousarray(picked.reshape(-1, planes, TILE * TILE))
