"""Tables of chunks by plain loops and sets: what the compiled functions are compared with."""

import numpy as np

from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.visibility.owners import MACRO
from splaxel_mpi.visibility.tiles import SSIM_REACH, rects


def piece_table(rows, rects):
    """Table of a stream as backends.pieces has it, (k, 2) int64, and its number of pixels.

    rows: (k,) rows of the array of tiles; rects: (k, 4) integers x0, y0, x1, y1 inside the tile.
    """
    rects = np.asarray(rects, np.int64).reshape(-1, 4)
    areas = (rects[:, 2] - rects[:, 0]) * (rects[:, 3] - rects[:, 1])
    sides = rects @ (1 << np.array([32, 40, 48, 56], np.int64))
    table = np.stack([np.asarray(rows, np.int64) | sides, np.cumsum(areas) - areas], axis=1)
    return np.ascontiguousarray(table), int(areas.sum())


def chain_of(cells):
    """A tree that cuts one slab after another off along x."""
    nodes = np.arange(cells - 1, dtype=np.int32)
    right = np.where(nodes + 1 < cells - 1, nodes + 1, -cells).astype(np.int32)
    return Tree(np.zeros_like(nodes), nodes + 0.5, -1 - nodes, right)


def grown(tiles, camera):
    """Tile set widened by one tile in all eight directions."""
    tiles_x, tiles_y = camera.tiles
    grid = np.zeros((tiles_y + 2, tiles_x + 2), bool)
    grid[1:-1, 1:-1] = tiles.reshape(tiles_y, tiles_x)
    rows = grid[:-2] | grid[1:-1] | grid[2:]
    return (rows[:, :-2] | rows[:, 1:-1] | rows[:, 2:]).reshape(-1)


def overlap(held, camera):
    """supervised, needed and counted of visibility.demand.training."""
    home = int(held.sum(1).argmax())
    supervised = held.copy()
    supervised[home] |= ~held.any(0)
    needed = np.stack([grown(row, camera) for row in supervised])
    return supervised, needed, supervised.argmax(0)


def owners(held, camera, load):
    """visibility.owners.assign."""
    tiles_x, tiles_y = camera.tiles
    ranks = np.flatnonzero(held.any(1))
    if not len(ranks):
        return np.full(camera.tile_count, load.argmin())
    pixels = rects(camera)[:, 2:].prod(1)
    ranks = ranks[np.lexsort((load[ranks], -(held[ranks] @ pixels)))]
    sizes = _macro_sums(pixels.reshape(1, tiles_y, tiles_x))[0]
    shares = _macro_sums((held[ranks] * pixels).reshape(-1, tiles_y, tiles_x))
    owner = ranks[shares.argmax(0)]
    empty = shares.max(0) == 0
    owned = np.bincount(owner[~empty], weights=sizes[~empty], minlength=len(load))
    owner[empty] = _spread(sizes[empty], ranks, load + owned.astype(np.int64))
    return owner.repeat(MACRO, 0)[:tiles_y].repeat(MACRO, 1)[:, :tiles_x].reshape(-1)


def _macro_sums(grid):
    rows = np.add.reduceat(grid, np.arange(0, grid.shape[1], MACRO), axis=1)
    return np.add.reduceat(rows, np.arange(0, grid.shape[2], MACRO), axis=2)


def _spread(sizes, ranks, load):
    ranks = ranks[np.argsort(load[ranks], kind="stable")]
    loads, total = load[ranks], int(sizes.sum())
    levels = (total + np.cumsum(loads)) // np.arange(1, len(ranks) + 1)
    wanted = np.maximum(levels.min() - loads, 0)
    place = np.searchsorted(np.cumsum(wanted), np.cumsum(sizes) - sizes // 2)
    return ranks[np.minimum(place, len(ranks) - 1)]


def strips(tiles, camera):
    """visibility.tiles.strips, pixel by pixel of every tile."""
    tiles_x, tiles_y = camera.tiles
    inside = np.kron(tiles.reshape(tiles_y, tiles_x), np.ones((16, 16), bool))
    inside = np.pad(inside[: camera.height, : camera.width], SSIM_REACH)
    for axis in (0, 1):
        length = inside.shape[axis] - 2 * SSIM_REACH
        steps = range(2 * SSIM_REACH + 1)
        inside = np.any([inside.take(range(k, k + length), axis) for k in steps], axis=0)
    out = np.zeros((camera.tile_count, 4), np.int64)
    for tile in range(camera.tile_count):
        y, x = 16 * (tile // tiles_x), 16 * (tile % tiles_x)
        rows, columns = np.nonzero(inside[y : y + 16, x : x + 16])
        if len(rows):
            out[tile] = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    return out


class Plain:
    """compose.tables.Tables of a chunk for one rank. orders: per view cells, nearest first."""

    def __init__(self, layout, cameras, held, demands, orders):
        self.layout, self.cameras, self.held, self.demands = layout, cameras, held, demands
        self.rows = 0
        self.pool = {}  # (view, cell, tile) -> row
        me, ranks = layout.rank, range(layout.ranks)
        for rank in [me, *(rank for rank in ranks if rank != me)]:
            for v, (tiles, demand) in enumerate(zip(held, demands)):
                for cell in np.flatnonzero(layout.owner == rank).tolist():
                    listed = tiles[cell] if rank == me else tiles[cell] & demand.needed[me]
                    for tile in np.flatnonzero(listed).tolist():
                        self.pool[v, cell, tile] = len(self.pool)
            self.own = len(self.pool) if rank == me else self.own
        shown = [d.needed[me] | (False if d.halo is None else d.halo[me]) for d in demands]
        self.tiles = [np.flatnonzero(tiles) for tiles in shown]
        places = [(v, tile) for v, tiles in enumerate(self.tiles) for tile in tiles.tolist()]
        self.image = {place: row for row, place in enumerate(places)}
        self.places = [
            [k for k, cell in enumerate(order) if any(key[:2] == (v, cell) for key in self.pool)]
            for v, order in enumerate(orders)
        ]
        self.slots = np.full((len(self.image), max(map(len, self.places))), -1)
        for (v, tile), row in self.image.items():
            if demands[v].needed[me][tile]:
                cells = [orders[v][k] for k in self.places[v]]
                found = [self.pool.get((v, cell, tile), -1) for cell in cells]
                self.slots[row, : len(found)] = found

    def whole(self, other, sent):
        """Rows and rectangles of the tiles sent to, or got from, another rank."""
        source, taker = (self.layout.rank, other) if sent else (other, self.layout.rank)
        rows = [
            (row, rects(self.cameras[v])[tile])
            for (v, cell, tile), row in self.pool.items()
            if self.layout.owner[cell] == source and self.demands[v].needed[taker][tile]
        ]
        return rows if other != self.layout.rank else []

    def strips(self, other, sent):
        """The same of strips."""
        source, taker = (self.layout.rank, other) if sent else (other, self.layout.rank)
        rows = []
        for v, demand in enumerate(self.demands):
            if demand.halo is None or source == taker:
                continue
            wanted = demand.halo[taker] & demand.supervised[source] & self.held[v].any(0)
            sides = strips(demand.supervised[taker], self.cameras[v])
            rows += [(self.image[v, t], sides[t]) for t in np.flatnonzero(wanted).tolist()]
        return rows
