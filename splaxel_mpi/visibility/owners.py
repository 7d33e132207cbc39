"""Which rank composes and supervises which part of a view (design section 6, strategy owner)."""

import numpy as np

from .tiles import areas

# Side of a macro-tile in tiles. Its owner gets what others hold in it and neighbours get strips of
# its border: small macro-tiles follow what ranks hold, large ones have less border. On aerial
# views of a city of 4 M Gaussians over 8 cells, MB a view: 16 tiles 6.21, 8 tiles 5.62, 4 tiles
# 5.47, 2 tiles 5.47, 1 tile 5.50; on street views all of them 24.5.
MACRO = 4


def assign(held, camera, load):
    """Owner of every tile of a view, (tile_count,) int64, the same on every rank.

    held: (ranks, tile_count) bool; load: (ranks,) int64, pixels that ranks own already. The owner
    of a macro-tile is the rank that holds most of its pixels; of equals the one that holds most of
    the view, since strips travel where owners change, then the one with the least load. Macro-tiles
    that nobody holds go in runs to the participants of the view, so that loads become even.
    """
    tiles_x, tiles_y = camera.tiles
    ranks = np.flatnonzero(held.any(1))
    if not len(ranks):
        return np.full(camera.tile_count, load.argmin())
    pixels = areas(camera)
    ranks = ranks[np.lexsort((load[ranks], -(held[ranks] @ pixels)))]
    sizes = _macro_sums(pixels.reshape(1, tiles_y, tiles_x))[0]
    shares = _macro_sums((held[ranks] * pixels).reshape(-1, tiles_y, tiles_x))
    owner = ranks[shares.argmax(0)]  # the first of equals
    empty = shares.max(0) == 0
    owned = np.bincount(owner[~empty], weights=sizes[~empty], minlength=len(load))
    owner[empty] = _spread(sizes[empty], ranks, load + owned.astype(np.int64))
    owner = owner.repeat(MACRO, 0)[:tiles_y].repeat(MACRO, 1)[:, :tiles_x]
    return owner.reshape(-1)


def _macro_sums(grid):
    """Sums over macro-tiles of (n, tiles_y, tiles_x)."""
    rows = np.add.reduceat(grid, np.arange(0, grid.shape[1], MACRO), axis=1)
    return np.add.reduceat(rows, np.arange(0, grid.shape[2], MACRO), axis=2)


def _spread(sizes, ranks, load):
    """Ranks for pieces of these sizes, in runs, that raise the lowest loads to one level."""
    ranks = ranks[np.argsort(load[ranks], kind="stable")]
    loads, total = load[ranks], int(sizes.sum())
    levels = (total + np.cumsum(loads)) // np.arange(1, len(ranks) + 1)
    # the level at which only ranks below it take part: the lowest over all numbers of ranks
    wanted = np.maximum(levels.min() - loads, 0)
    middles = np.cumsum(sizes) - sizes // 2
    place = np.searchsorted(np.cumsum(wanted), middles)
    return ranks[np.minimum(place, len(ranks) - 1)]
