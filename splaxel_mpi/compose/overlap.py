"""Strategy overlap: every participant gets the others' partial pixels where it supervises.

Paper section 4.3: partial pixels travel as flat streams over the region that two ranks share,
here widened by what the gradient of SSIM reaches. Each rank then composites, takes the loss and
has all it needs for its own gradients; nothing returns.
"""

from dataclasses import dataclass

import numpy as np

from ..partition.order import visibility_order
from ..visibility.tiles import areas
from . import bitmaps
from .base import Composed, Compositor


@dataclass
class Layers:
    """Partial tiles of one view and who stands before whom."""

    pool: np.ndarray  # (rows, 4, 256): this rank's partials first, then those that arrived
    slots: np.ndarray  # (tiles, layers) int32 on the host: rows of pool in visibility order or -1
    own: int  # rows of this rank
    places: np.ndarray  # (layers,) int64, places of the layers in the visibility order
    parts: list  # layer of each local cell


class Overlap(Compositor):
    """Exchange partial pixels tile by tile; compose on every rank that supervises."""

    name = "overlap"

    def __init__(self, backend, exchange, layout, background):
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.background = np.asarray(background, backend.real)

    def compose(self, works, rules):
        """See Compositor.compose."""
        layout = self.layout
        held = bitmaps.gather(works, layout, self.exchange)
        demands = [rule(layout.by_rank(h), w.camera) for rule, h, w in zip(rules, held, works)]
        arrived = self._exchange(works, held, demands)
        composed = []
        for v, (work, wanted) in enumerate(zip(works, demands)):
            tiles = np.flatnonzero(wanted.needed[layout.rank]).astype(np.int32)
            layers = self._layers(work, arrived[v], tiles)
            slots = self.backend.to_device(layers.slots)
            image, _ = self.backend.compose(layers.pool, slots, self.background)
            supervised = wanted.supervised[layout.rank]
            counted = supervised & (wanted.counted == layout.rank)
            composed.append(Composed(work.camera, tiles, image, supervised, counted, layers))
        return composed

    def backward(self, works, composed, gradients):
        """See Compositor.backward."""
        out = []
        for work, view, gradient in zip(works, composed, gradients):
            layers = view.state
            wanted = np.where(layers.slots < layers.own, layers.slots, -1).astype(np.int32)
            slots, wanted = (self.backend.to_device(a) for a in (layers.slots, wanted))
            rows = self.backend.compose_backward(
                layers.pool, slots, self.background, gradient, wanted, layers.own
            )
            bounds = np.cumsum([len(part.held) for part in work.parts])[:-1]
            out.append(np.split(rows, bounds.tolist()))
            if work.masks is not None:
                self._judge(work, view, slots)
        return out

    def _judge(self, work, view, slots):
        """Fill what the contract asks for where a view has masks. slots: on the device."""
        layers, tiles = view.state, self.backend.to_device(view.tiles)
        residuals = self.backend.residuals(layers.pool, slots, tiles, work.camera)
        view.places, view.residuals = layers.places, self.backend.to_host(residuals)
        dark = view.residuals < work.masks.threshold
        place = np.zeros(work.camera.tile_count, np.int64)
        place[view.tiles] = np.arange(len(view.tiles))
        for part, layer in zip(work.parts, layers.parts):
            part.saturated = dark[place[part.held], layer]  # a rank composes all that it holds

    def _exchange(self, works, held, demands):
        """Move partial tiles. Returns per view a list of (cell, tiles, pixels) from others."""
        layout = self.layout
        streams = [self._outgoing(works, demands, rank) for rank in range(layout.ranks)]
        counts = np.array([sum(map(len, stream)) for stream in streams], np.int64)
        incoming = [self._incoming(works, held, demands, rank) for rank in range(layout.ranks)]
        expected = np.array([sum(size for *_, size in rows) for rows in incoming], np.int64)
        blocks = [self.backend.zeros(0)] + [block for stream in streams for block in stream]
        flat = self.backend.xp.concatenate(blocks)
        flat, _ = self.exchange.alltoallv("streams", flat, counts, expected)
        return self._unpack(works, incoming, flat)

    def _outgoing(self, works, demands, rank):
        """Blocks for one rank: view after view, local cell after local cell."""
        if rank == self.layout.rank:
            return []
        blocks = []
        for v, work in enumerate(works):
            needed = demands[v].needed[rank]
            for part in work.parts:
                index = np.flatnonzero(needed[part.held]).astype(np.int32)
                if len(index):
                    rows, tiles = map(self.backend.to_device, (index, part.held[index]))
                    pixels = part.partial.pixels
                    blocks.append(self.backend.pack(pixels, rows, tiles, work.camera))
        return blocks

    def _incoming(self, works, held, demands, rank):
        """Blocks that one rank sends here: (view, cell, tiles, reals)."""
        if rank == self.layout.rank:
            return []
        rows = []
        for v, work in enumerate(works):
            needed = demands[v].needed[self.layout.rank]
            pixels = areas(work.camera)
            for cell in np.flatnonzero(self.layout.owner == rank):
                tiles = np.flatnonzero(held[v][cell] & needed).astype(np.int32)
                if len(tiles):
                    rows.append((v, int(cell), tiles, 4 * int(pixels[tiles].sum())))
        return rows

    def _unpack(self, works, incoming, flat):
        """Cut the received stream into tiles, per view."""
        arrived, start = [[] for _ in works], 0
        for rows in incoming:
            for v, cell, tiles, size in rows:
                pixels = self.backend.zeros((len(tiles), 4, 256))
                stream = flat[start : start + size]
                device_tiles = self.backend.to_device(tiles)
                self.backend.unpack(stream, device_tiles, works[v].camera, pixels)
                arrived[v].append((cell, tiles, pixels))
                start += size
        return arrived

    def _layers(self, work, arrived, tiles):
        """Stack own and received partials of a view in visibility order."""
        own = [(part.cell, part.held, part.partial.pixels) for part in work.parts]
        blocks = own + arrived
        empty = self.backend.zeros((0, 4, 256))
        pool = self.backend.xp.concatenate([empty] + [pixels for _, _, pixels in blocks])
        starts = np.concatenate([[0], np.cumsum([len(block[1]) for block in blocks])])
        place = np.full(work.camera.tile_count, -1, np.int64)
        place[tiles] = np.arange(len(tiles))
        rank_of = np.empty(self.layout.cells, np.int64)
        rank_of[self.order(work.camera)] = np.arange(self.layout.cells)
        nearest_first = sorted(range(len(blocks)), key=lambda b: rank_of[blocks[b][0]])
        slots = np.full((len(tiles), len(blocks)), -1, np.int32)
        for layer, b in enumerate(nearest_first):
            rows = place[blocks[b][1]]
            inside = rows >= 0
            slots[rows[inside], layer] = starts[b] + np.flatnonzero(inside)
        places = np.array([rank_of[blocks[b][0]] for b in nearest_first], np.int64)
        parts = [nearest_first.index(b) for b in range(len(own))]
        return Layers(pool, slots, int(starts[len(own)]), places, parts)

    def order(self, camera):
        """Cells of the layout, nearest first for this camera."""
        return visibility_order(self.layout.tree, camera.center)
