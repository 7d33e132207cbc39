"""Ghosts: splats drawn by cells other than their own (design section 5, boundary exact).

A Gaussian is drawn at a pixel by the cell whose ray interval holds its depth, so a splat whose
footprint reaches into other cells travels there already projected. Its gradient comes back by
the same route and is added by the owner.
"""

import numpy as np

from ..backends.base import SPLAT, SPLAT_GRADIENT, Splats
from ..visibility.tiles import boxes_touch
from .base import CellPart


class Ghosts:
    """Ghosts of the views of one chunk: out with ``send``, gradients back with ``give_back``."""

    def __init__(self, backend, exchange, layout, wanted=True):
        """wanted: False where cells draw only what they store."""
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.wanted = wanted
        self.id_width = 8 // np.dtype(backend.real).itemsize  # reals that hold an int64 id

    def send(self, works):
        """Fill works[v].parts: each local cell's own splats and the ghosts it must draw."""
        layout = self.layout
        if layout.cells == 1:
            for work in works:
                work.parts = [CellPart(0, 0, len(work.splats), work.splats)] * len(layout.local)
            self.sent = self.received = None
            return
        if not self.wanted:
            for work in works:
                work.parts = [self._own(work, k, cell) for k, cell in enumerate(layout.local)]
            self.sent = self.received = None
            return
        routes = [self._routes(work) for work in works]
        self.sent = [[routes[v][cell] for v in range(len(works))] for cell in range(layout.cells)]
        counts = np.array([[len(index) for index in row] for row in self.sent], np.int64)
        arrived = self._exchange_counts(counts)
        self.records = self._exchange_records(works, counts, arrived)
        self.received = self._segments(arrived)
        self.counts, self.arrived = counts, arrived
        for v, work in enumerate(works):
            work.parts = [self._part(work, v, k, cell) for k, cell in enumerate(layout.local)]

    def count(self):
        """Ghosts that this rank sent in the last chunk, to itself included."""
        return int(self.counts.sum()) if self.sent is not None else 0

    def give_back(self, works, gradients, width=SPLAT_GRADIENT):
        """Add gradients to their splats: own ones here, those of ghosts at their owner.

        gradients[v][k]: (len(part.splats), width) of works[v].parts[k]. Fills works[v].gradient.
        """
        for work, rows in zip(works, gradients):
            work.gradient = self.backend.zeros((len(work.splats), width))
            for part, gradient in zip(work.parts, rows):
                work.gradient[part.first : part.last] += gradient[: part.own]
        if self.sent is None:
            return
        back = self._collect(works, gradients, width)
        returned = self._return(back)
        start = 0
        for row in self.sent:
            for v, index in enumerate(row):
                # within one (cell, view) every splat stands once, so a plain add is right
                works[v].gradient[index] += returned[start : start + len(index)]
                start += len(index)

    def _routes(self, work):
        """Splats of a view that each cell must draw as ghosts: list over cells of indices."""
        xp = self.backend.xp
        own = self.layout.cells_of(work.splats.rows, xp)
        index, cell = self.backend.reach(work.splats, own, work.camera, self.layout.tree)
        if work.masks is not None and work.masks.masked.any():
            kept = boxes_touch(
                work.splats.data[index], cell, xp.asarray(~work.masks.masked), work.camera, xp
            )
            index, cell = index[kept], cell[kept]
        index = index[xp.argsort(cell, kind="stable")]
        counts = self.backend.to_host(xp.bincount(cell, minlength=self.layout.cells))
        return np.split(index, np.cumsum(counts)[:-1].tolist())

    def _exchange_counts(self, counts):
        """Ghosts that arrive: (ranks, local cells, views) int64 from (cells, views)."""
        layout, views = self.layout, counts.shape[1]
        outgoing = layout.cells_per_rank() * views
        incoming = np.full(layout.ranks, len(layout.local) * views, np.int64)
        flat, _ = self.exchange.alltoallv("ghosts", counts.ravel(), outgoing, incoming)
        return flat.reshape(layout.ranks, len(layout.local), views)

    def _per_rank(self, counts):
        """Ghosts for each rank, (ranks,) int64, from (cells, views)."""
        return np.bincount(
            self.layout.owner, weights=counts.sum(1), minlength=self.layout.ranks
        ).astype(np.int64)

    def _exchange_records(self, works, counts, arrived):
        """Send projected splats and ids; (n, 12 + id) reals that arrived."""
        width = SPLAT + self.id_width
        records = self.backend.xp.empty((int(counts.sum()), width), self.backend.real)
        start = 0
        for row in self.sent:
            for v, index in enumerate(row):
                block = records[start : start + len(index)]
                block[:, :SPLAT] = works[v].splats.data[index]
                block[:, SPLAT:] = works[v].splats.ids[index, None].view(self.backend.real)
                start += len(index)
        flat, _ = self.exchange.alltoallv(
            "ghosts", records.ravel(), self._per_rank(counts) * width, arrived.sum((1, 2)) * width
        )
        return flat.reshape(-1, width)

    @staticmethod
    def _segments(arrived):
        """Start of each (rank, local cell, view) in what arrived, and the end of all."""
        return np.concatenate([[0], np.cumsum(arrived.ravel())])

    def _slices(self, k, v):
        """Rows of the k-th local cell and view v in what arrived, one slice a source rank."""
        ranks, cells, views = self.arrived.shape
        for rank in range(ranks):
            place = (rank * cells + k) * views + v
            yield slice(self.received[place], self.received[place + 1])

    def _own(self, work, k, cell):
        """Own splats of one local cell in one view."""
        low, high = self.layout.offsets[k], self.layout.offsets[k + 1]
        xp = self.backend.xp
        ends = xp.searchsorted(work.splats.rows, xp.asarray([low, high], work.splats.rows.dtype))
        first, last = self.backend.to_host(ends).tolist()
        return CellPart(cell, first, last, work.splats.slice(first, last))

    def _part(self, work, v, k, cell):
        """Own splats and ghosts of one local cell in one view."""
        part, xp = self._own(work, k, cell), self.backend.xp
        ghosts = [self.records[rows] for rows in self._slices(k, v)]
        ghosts = [rows for rows in ghosts if len(rows)]
        if not ghosts:
            return part
        own, ghosts = part.splats, xp.concatenate(ghosts)
        ids = xp.ascontiguousarray(ghosts[:, SPLAT:]).view(np.int64).ravel()
        rows = xp.concatenate([own.rows, xp.full(len(ids), -1, np.int32)])
        data = xp.concatenate([own.data, ghosts[:, :SPLAT]])
        part.splats = Splats(rows, data, xp.concatenate([own.ids, ids]))
        return part

    def _collect(self, works, gradients, width):
        """Gradients of ghosts in the order in which the ghosts arrived."""
        back = self.backend.xp.empty((len(self.records), width), self.backend.real)
        for v, work in enumerate(works):
            for k, part in enumerate(work.parts):
                start = part.own
                for rows in self._slices(k, v):
                    count = rows.stop - rows.start
                    back[rows] = gradients[v][k][start : start + count]
                    start += count
        return back

    def _return(self, back):
        """Send gradients the way the ghosts came; rows in the order of ``sent``."""
        width = back.shape[1]
        outgoing = self.arrived.sum((1, 2)) * width
        incoming = self._per_rank(self.counts) * width
        flat, _ = self.exchange.alltoallv("ghosts back", back.ravel(), outgoing, incoming)
        return flat.reshape(-1, width)
