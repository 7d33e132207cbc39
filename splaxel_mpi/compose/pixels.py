"""What exchange strategies of pixels share: from partial tiles of a chunk to its pixels."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..backends.host_library import call, suffix
from . import bitmaps
from .base import Composed, Compositor
from .streams import Streams
from .tables import Tables, make_tables


@dataclass
class Layers:
    """Partial tiles of a chunk and who stands before whom."""

    streams: Streams
    tables: Tables
    pool: np.ndarray  # (rows, 4, 256), see Tables
    # transmittances by tile on their way to the host, where views have masks: Backend.residuals of
    # what is composed, then of own partials as single layers
    reading: object = None


class PixelCompositor(Compositor):
    """Exchange partial pixels tile by tile, compose where a rank's Demand says.

    A strategy is what a rank demands of a training view, and the way back. returns: gradients of
    partials go to where these came from.
    """

    returns = False

    def __init__(self, backend, exchange, layout, background, precision="float32"):
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.background = np.asarray(background, backend.real)
        self.half = precision == "float16"

    def compose(self, works, rules):
        """See Compositor.compose."""
        layout, rank = self.layout, self.layout.rank
        held = yield from bitmaps.gather(works, layout, self.exchange)
        demands = [rule(layout.by_rank(h), w.camera) for rule, h, w in zip(rules, held, works)]
        tables = make_tables(self.backend, layout, works, held, demands)
        streams = Streams(self.backend, self.exchange, works, tables, self.half)
        pool = yield from streams.collect()
        image, _ = self.backend.compose(pool, tables.slots, self.background)
        if any(demand.halo is not None for demand in demands):
            yield from streams.fetch_halo(image)
        layers, composed = Layers(streams, tables, pool), []
        for v, (work, demand) in enumerate(zip(works, demands)):
            supervised = demand.supervised[rank]
            counted = supervised & (demand.counted == rank)
            pixels, tiles = image[tables.ends[v] : tables.ends[v + 1]], tables.tiles[v]
            placed = tables.device_tiles[tables.ends[v] : tables.ends[v + 1]]
            composed.append(
                Composed(work.camera, tiles, pixels, supervised, counted, layers, placed)
            )
        return composed

    def judge(self, works, composed):
        """See Compositor.judge."""
        if works[0].masks is None:
            return
        tables, streams = composed[0].state.tables, composed[0].state.streams
        residuals, through = self._residuals(composed[0].state)
        dark = np.zeros(tables.rows + 1, bool)
        call(f"spx_dark_{suffix(residuals.dtype)}", tables.host_slots, *tables.host_slots.shape,
             residuals, float(works[0].masks.threshold), dark)
        dark = dark[1:]
        if self.returns:  # parts of other ranks' cells are composed here
            yield from streams.give_back_flags(dark)
        for v, view in enumerate(composed):
            view.places = tables.places[v]
            view.residuals = residuals[tables.ends[v] : tables.ends[v + 1]]
        for work, *rows in zip(works, tables.split(dark), tables.split(through)):
            for part, saturated, passed in zip(work.parts, *rows):
                part.saturated, part.through = saturated, passed

    def _look(self, works, layers):
        """Begin to read what judge needs to know, where views have masks."""
        if works[0].masks is None:
            return
        backend, tables, pool = self.backend, layers.tables, layers.pool
        own, passed, through = backend.xp.arange(tables.own, dtype=np.int32)[:, None], [], []
        sizes = [(work.camera.width, work.camera.height) for work in works]
        for _, views in groupby(range(len(works)), sizes.__getitem__):
            views = list(views)
            camera, first, last = works[views[0]].camera, views[0], views[-1] + 1
            rows = slice(tables.ends[first], tables.ends[last])
            tiles = tables.device_tiles[rows]
            passed.append(backend.residuals(pool, tables.slots[rows], tiles, camera))
            rows = slice(tables.own_ends[first], tables.own_ends[last])
            through.append(backend.residuals(pool, own[rows], tables.own_tiles[rows], camera))
        layers.reading = backend.start_reading(passed + through)

    @staticmethod
    def _residuals(layers):
        """Backend.residuals of the chunk, (rows of the image, layers + 1), and what own rows of
        the pool let through, (own,): on the host."""
        found = layers.reading.take()
        passed, through = found[: len(found) // 2], found[len(found) // 2 :]
        passed = passed[0] if len(passed) == 1 else np.concatenate(passed)
        return passed, np.concatenate([part[:, 1] for part in through])
