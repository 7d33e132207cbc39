"""Streams: tiles and parts of tiles of all views of a chunk, one flat array for each rank.

Bitmaps tell every rank what comes from whom, so nothing but pixels travels (paper section 4.3,
design section 6).
"""

from dataclasses import dataclass

import numpy as np

from ..backends.pieces import piece_table, stream_items
from ..visibility.tiles import rects


@dataclass
class Route:
    """Pieces of tiles in the order of a stream; see backends.pieces."""

    table: np.ndarray  # (k, 3) int64, on the device
    pixels: np.ndarray  # (ranks,) int64, pixels to or from each rank


@dataclass
class Block:
    """Tiles of one (view, cell) in the pool of a chunk."""

    view: int
    cell: int
    tiles: np.ndarray  # (n,) int32
    row: int  # of the first of them


def _rows(pieces):
    """Rows of the pool, in the order of the stream, of each rank's pieces."""
    return [np.concatenate([np.zeros(0, np.int64), *(row for row, _ in p)]) for p in pieces]


def make_route(backend, pieces):
    """Route from, for each rank, a list of (rows (n,), rects (n, 4)) on the host."""
    counts, rows, sides = [], [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)]
    for of_rank in pieces:
        counts.append(sum(int((r[:, 2:] - r[:, :2]).prod(1).sum()) for _, r in of_rank))
        rows += [row for row, _ in of_rank]
        sides += [rect for _, rect in of_rank]
    table, _ = piece_table(np.concatenate(rows), np.concatenate(sides))
    return Route(backend.to_device(table), np.array(counts, np.int64))


def move(backend, exchange, kind, source, sent, out, got, half=False, scale=1.0):
    """Send pieces of source (s, planes, 256) along a route and put what comes into out.

    sent, got: Route; half, scale: as Backend.pack has them; what comes is divided by scale.
    Collective; a generator, see mpi.pipeline. So are those that use it.
    """
    items, _ = stream_items(backend.real, source.shape[1], half)
    flat = backend.pack(source, sent.table, int(sent.pixels.sum()), half, scale)
    pending = exchange.start_alltoallv(kind, flat, items * sent.pixels, items * got.pixels)
    yield
    flat, _ = pending.wait()
    backend.unpack(flat, got.table, out, half, 1 / scale)


class Streams:
    """Partial tiles of a chunk: this rank's own and those that it needs of others.

    All of them are rows of one pool: own ones first, view after view and cell after cell, then
    those that arrive, rank after rank.
    """

    def __init__(self, backend, exchange, layout, works, held, demands, half):
        """works: list of ViewWork; held: per view (cells, tile_count) bool; demands: per view
        visibility.demand.Demand; half: colour travels as float16."""
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.works, self.half = works, half
        self.rects = [rects(work.camera) for work in works]
        self.blocks, self.rows = [], 0  # list of Block, rows of the pool
        for v, work in enumerate(works):
            for part in work.parts:
                self._add(v, part.cell, part.held)
        self.own = self.rows
        self.bounds = [block.row for block in self.blocks]
        ranks = range(layout.ranks)
        outgoing = [self._outgoing(demands, rank) for rank in ranks]
        incoming = [self._incoming(held, demands, rank) for rank in ranks]
        self.sent, self.got = make_route(backend, outgoing), make_route(backend, incoming)
        # rows of the pool that go to each rank and come from it
        self.sent_rows, self.got_rows = _rows(outgoing), _rows(incoming)

    def _add(self, view, cell, tiles):
        """A new block at the end of the pool; its rows."""
        self.blocks.append(Block(view, cell, tiles, self.rows))
        self.rows += len(tiles)
        return np.arange(self.rows - len(tiles), self.rows)

    def _outgoing(self, demands, rank):
        """Pieces for one rank."""
        pieces = []
        for block in self.blocks if rank != self.layout.rank else ():
            index = np.flatnonzero(demands[block.view].needed[rank][block.tiles])
            pieces.append((block.row + index, self.rects[block.view][block.tiles[index]]))
        return pieces

    def _incoming(self, held, demands, rank):
        """Pieces that one rank sends here, in its order; adds their blocks."""
        pieces = []
        for v in range(len(self.works)) if rank != self.layout.rank else ():
            needed = demands[v].needed[self.layout.rank]
            for cell in np.flatnonzero(self.layout.owner == rank).tolist():
                tiles = np.flatnonzero(held[v][cell] & needed).astype(np.int32)
                if len(tiles):
                    pieces.append((self._add(v, cell, tiles), self.rects[v][tiles]))
        return pieces

    def collect(self):
        """The pool (rows, 4, 256): partial pixels of this rank and those that it needs.
        Collective."""
        xp, works = self.backend.xp, self.works
        pool = xp.empty((self.rows, 4, 256), self.backend.real)
        parts = [part for work in works for part in work.parts]
        if parts:
            xp.concatenate([part.partial.pixels for part in parts], out=pool[: self.own])
        if self.half:
            # all ranks must compose the same values, so the sender takes its rounded ones too
            pool[: self.own, :3] = pool[: self.own, :3].astype(np.float16)
        if self.layout.ranks == 1:
            return pool
        if any(work.camera.width % 16 or work.camera.height % 16 for work in works):
            pool[self.own :, :3], pool[self.own :, 3] = 0, 1  # outside the image
        yield from self._move("streams", pool, self.sent, self.got, 1.0)
        return pool

    def give_back(self, rows):
        """Send gradients of the tiles that arrived to where they came from. Collective.

        rows: (pool rows, 4, 256) dL/d(C_m, T_m) of the pool, zero in own rows whose tiles are
        composed elsewhere; these are filled. In float16 colour gradients are multiplied by the
        number of values of a view, whose mean the loss is: without, they would be too small.
        """
        if self.layout.ranks > 1:
            values = max(3 * work.camera.width * work.camera.height for work in self.works)
            scale = 2.0 ** (values.bit_length() - 1)
            yield from self._move("streams back", rows, self.got, self.sent, scale)

    def give_back_flags(self, flags):
        """Send a bit a tile the same way. flags: (pool rows,) bool on the host; own rows whose
        tiles are composed elsewhere are filled. Collective."""
        bits = [np.packbits(flags[rows]) for rows in self.got_rows]
        sizes = [-(-len(rows) // 8) for rows in self.sent_rows]
        pending = self.exchange.start_alltoallv(
            "bitmaps", np.concatenate(bits), np.array(list(map(len, bits)), np.int64),
            np.array(sizes, np.int64),
        )
        yield
        flat, _ = pending.wait()
        for rows, part in zip(self.sent_rows, np.split(flat, np.cumsum(sizes)[:-1])):
            flags[rows] = np.unpackbits(part, count=len(rows))

    def _move(self, kind, tiles, sent, got, scale):
        return move(self.backend, self.exchange, kind, tiles, sent, tiles, got, self.half,
                    scale if self.half else 1.0)

    def slots(self, view, tiles, order):
        """Rows of the pool that show in tiles of a view, front to back.

        tiles: (n,) int, this rank composes them; order: (cells,) nearest first. Returns (slots
        (n, layers) int32, -1 for none; places (layers,) int64 of the layers in that order).
        """
        nearest = np.empty(self.layout.cells, np.int64)
        nearest[order] = np.arange(self.layout.cells)
        blocks = sorted(
            (block for block in self.blocks if block.view == view and len(block.tiles)),
            key=lambda block: nearest[block.cell],
        )
        count = self.works[view].camera.tile_count
        table = np.full((count, len(blocks)), -1, np.int32)
        for layer, block in enumerate(blocks):
            table[block.tiles, layer] = block.row + np.arange(len(block.tiles))
        return table[tiles], np.array([nearest[block.cell] for block in blocks], np.int64)

    def split(self, rows):
        """Own rows of an array like the pool: per view a list over local cells."""
        cells = len(self.layout.local)
        pieces = [rows[a:b] for a, b in zip(self.bounds, [*self.bounds[1:], self.own])]
        return [pieces[v * cells : (v + 1) * cells] for v in range(len(self.works))]
