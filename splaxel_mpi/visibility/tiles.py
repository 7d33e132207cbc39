"""Tile sets of a view: who holds a tile, who supervises it, who needs it to do so.

A tile set is a boolean array over the view's tiles, row major.
"""

import numpy as np

from ..backends.base import EXTENT_X, EXTENT_Y, U, V
from ..scene.camera import TILE

# The gradient of SSIM at a pixel reaches the composed image 10 pixels away (5 for the
# moments, 5 more for the gradient of each moment): less than one tile.
SSIM_REACH = 10


def dilate(tiles, camera):
    """Tile set widened by one tile in all eight directions."""
    tiles_x, tiles_y = camera.tiles
    grid = np.zeros((tiles_y + 2, tiles_x + 2), bool)
    grid[1:-1, 1:-1] = tiles.reshape(tiles_y, tiles_x)
    rows = grid[:-2] | grid[1:-1] | grid[2:]
    return (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]).reshape(-1)


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
    tiles_x, tiles_y = camera.tiles
    grid = np.zeros((tiles_y + 2, tiles_x + 2), bool)
    grid[1:-1, 1:-1] = tiles.reshape(tiles_y, tiles_x)
    left, right, middle = grid[:, :-2], grid[:, 2:], grid[:, 1:-1]
    beside = left | right
    above, below = middle[:-2], middle[2:]
    out = rects(camera).reshape(tiles_y, tiles_x, 4)
    # every neighbour but one to the right reaches pixels at the left edge, and so on
    touched = above | below
    any_left, any_right = (side[:-2] | side[1:-1] | side[2:] for side in (left, right))
    across = beside[1:-1]
    any_above, any_below = above | beside[:-2], below | beside[2:]
    far = TILE - SSIM_REACH
    out[..., 0] = np.where(any_left | touched, 0, far)
    out[..., 1] = np.where(any_above | across, 0, far)
    out[..., 2] = np.minimum(out[..., 2], np.where(any_right | touched, TILE, SSIM_REACH))
    out[..., 3] = np.minimum(out[..., 3], np.where(any_below | across, TILE, SSIM_REACH))
    return out.reshape(-1, 4)


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
    tiles_x, tiles_y = camera.tiles
    grid = tiles.reshape(tiles_y, tiles_x)
    rows, columns = np.flatnonzero(grid.any(1)), np.flatnonzero(grid.any(0))
    if len(rows) == 0:
        return 0, 0, 0, 0
    return (
        max(0, int(columns[0]) * TILE - margin),
        max(0, int(rows[0]) * TILE - margin),
        min(camera.width, int(columns[-1] + 1) * TILE + margin),
        min(camera.height, int(rows[-1] + 1) * TILE + margin),
    )


def to_image(tiles, data, camera, xp=np):
    """Padded image (planes, 16 tiles_y, 16 tiles_x) from tiles (n,) and (n, planes, 256);
    zeros where no tile is given."""
    tiles_x, tiles_y = camera.tiles
    planes = data.shape[1]
    image = xp.zeros((planes, tiles_y, TILE, tiles_x, TILE), data.dtype)
    image[:, tiles // tiles_x, :, tiles % tiles_x, :] = data.reshape(-1, planes, TILE, TILE)
    return image.reshape(planes, tiles_y * TILE, tiles_x * TILE)


def to_tiles(tiles, image, camera, xp=np):
    """Inverse of to_image: (n, planes, 256) from a padded image."""
    tiles_x, tiles_y = camera.tiles
    planes = image.shape[0]
    grid = image.reshape(planes, tiles_y, TILE, tiles_x, TILE)
    picked = grid[:, tiles // tiles_x, :, tiles % tiles_x, :]
    return xp.ascontiguousarray(picked.reshape(-1, planes, TILE * TILE))
