"""What exchange strategies of pixels share: from partial tiles of a chunk to its pixels."""

from dataclasses import dataclass

import numpy as np

from ..partition.order import visibility_order
from ..visibility.tiles import strips
from . import bitmaps
from .base import Composed, Compositor
from .streams import Streams, make_route, move


@dataclass
class Layers:
    """Partial tiles of a chunk and who stands before whom."""

    streams: Streams
    pool: np.ndarray  # (rows, 4, 256), see Streams
    slots: np.ndarray  # (tiles of all views, layers) int32, rows of pool front to back or -1
    host_slots: np.ndarray  # the same on the host
    places: list  # per view (layers,) int64 ascending: their cells' places in visibility order


class PixelCompositor(Compositor):
    """Exchange partial pixels tile by tile, compose where a rank's Demand says.

    A strategy is what a rank demands of a training view, and the way back.
    """

    def __init__(self, backend, exchange, layout, background, precision="float32"):
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.background = np.asarray(background, backend.real)
        self.half = precision == "float16"

    def compose(self, works, rules):
        """See Compositor.compose."""
        layout, rank = self.layout, self.layout.rank
        bitmaps.read_held(works, self.backend)
        held = yield from bitmaps.gather(works, layout, self.exchange)
        demands = [rule(layout.by_rank(h), w.camera) for rule, h, w in zip(rules, held, works)]
        streams = Streams(self.backend, self.exchange, layout, works, held, demands, self.half)
        pool = yield from streams.collect()
        tiles = [np.flatnonzero(d.needed[rank] | d.halo[rank]).astype(np.int32) for d in demands]
        views = range(len(works))
        found, places = zip(*(self._slots(streams, v, demands[v], tiles[v]) for v in views))
        host_slots = _stack(found)
        slots = self.backend.to_device(host_slots)
        image, _ = self.backend.compose(pool, slots, self.background)
        yield from self._fetch_halo(image, works, held, demands, tiles)
        layers = Layers(streams, pool, slots, host_slots, places)
        ends = np.cumsum([0, *map(len, tiles)])
        composed = []
        for v, (work, demand) in enumerate(zip(works, demands)):
            supervised = demand.supervised[rank]
            counted = supervised & (demand.counted == rank)
            pixels = image[ends[v] : ends[v + 1]]
            composed.append(Composed(work.camera, tiles[v], pixels, supervised, counted, layers))
        return composed

    def _slots(self, streams, view, demand, tiles):
        """Streams.slots of a view's tiles; those of the halo are left to the background."""
        order = visibility_order(self.layout.tree, streams.works[view].camera.center)
        needed = demand.needed[self.layout.rank][tiles]
        found, places = streams.slots(view, tiles[needed], order)
        slots = np.full((len(tiles), found.shape[1]), -1, np.int32)
        slots[needed] = found
        return slots, places

    def _fetch_halo(self, image, works, held, demands, tiles):
        """Put strips of final colour of other ranks' tiles into the image (n, 3, 256) of the
        chunk. Tiles that nobody holds show the background here as there. Collective."""
        if not any(demand.halo.any() for demand in demands):
            return
        rank, starts = self.layout.rank, np.cumsum([0, *map(len, tiles)])
        # strips always travel as they are: an image must not differ between its ranks
        routes = [[[] for _ in range(self.layout.ranks)] for _ in range(2)]
        for v, (work, demand) in enumerate(zip(works, demands)):
            drawn = held[v].any(0)
            for other in np.flatnonzero(demand.supervised.any(1)).tolist():
                for route, source, taker in zip(routes, (rank, other), (other, rank)):
                    wanted = demand.halo[taker] & demand.supervised[source] & drawn
                    if source != taker and wanted.any():
                        found = np.flatnonzero(wanted)
                        rows = starts[v] + np.searchsorted(tiles[v], found)
                        sides = strips(demand.supervised[taker], work.camera)[found]
                        route[other].append((rows, sides))
        sent, got = (make_route(self.backend, route) for route in routes)
        yield from move(self.backend, self.exchange, "halo", image, sent, image, got)

    def _judge(self, works, composed, tell=False):
        """Fill what Compositor.backward asks for where views have masks. tell: parts of other
        ranks' cells are composed here. Collective."""
        if works[0].masks is None:
            return
        layers, streams, start = composed[0].state, composed[0].state.streams, 0
        dark = np.zeros(streams.rows, bool)
        for v, (work, view) in enumerate(zip(works, composed)):
            chosen = slice(start, start + len(view.tiles))
            tiles, slots = self.backend.to_device(view.tiles), layers.host_slots[chosen]
            passed = self.backend.residuals(layers.pool, layers.slots[chosen], tiles, work.camera)
            view.places, view.residuals = layers.places[v], self.backend.to_host(passed)
            shown = slots >= 0
            dark[slots[shown]] = (view.residuals[:, :-1] < work.masks.threshold)[shown]
            start = chosen.stop
        if tell:
            yield from streams.give_back_flags(dark)
        for work, flags in zip(works, streams.split(dark)):
            for part, saturated in zip(work.parts, flags):
                part.saturated = saturated

    def _gradient(self, gradients):
        """dL/dC of all views of a chunk."""
        return gradients[0] if len(gradients) == 1 else self.backend.xp.concatenate(gradients)


def _stack(slots):
    """Slots of all views, with as many layers as any has."""
    layers = max(array.shape[1] for array in slots)
    wide = [np.pad(a, ((0, 0), (0, layers - a.shape[1])), constant_values=-1) for a in slots]
    return np.ascontiguousarray(np.concatenate(wide), np.int32)
