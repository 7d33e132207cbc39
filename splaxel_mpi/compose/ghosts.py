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
    """Ghosts of the views of one chunk: out with ``send``, gradients back with ``give_back``,
    two generators (mpi.pipeline)."""

    def __init__(self, backend, exchange, layout, wanted=True):
        """wanted: False where cells draw only what they store."""
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.wanted = wanted
        self.id_width = 8 // np.dtype(backend.real).itemsize  # reals that hold an int64 id

    def send(self, works):
        """Fill works[v].parts: each local cell's own splats and the ghosts it must draw."""
        layout = self.layout
        self.counts = self.arrived = None
        if layout.cells == 1:
            for work in works:
                work.parts = [CellPart(0, 0, len(work.splats), work.splats)] * len(layout.local)
            return
        self._find(works)
        for work, ends in zip(works, self.ends):
            bounds = zip(layout.local, ends[:-1], ends[1:])
            work.parts = [CellPart(c, a, b, work.splats.slice(a, b)) for c, a, b in bounds]
        if self.wanted:
            self.arrived = yield from self._exchange_counts()
            self._append(works, (yield from self._exchange_records(works)))

    def count(self):
        """Ghosts that this rank sent in the last chunk, to itself included."""
        return 0 if self.counts is None else int(self.counts.sum())

    def give_back(self, works, gradients, width=SPLAT_GRADIENT):
        """Add gradients to their splats: own ones here, those of ghosts at their owner.

        gradients[v][k]: (len(part.splats), width) of works[v].parts[k]. Fills works[v].gradient.
        """
        for work, rows in zip(works, gradients):
            # the rows of local cells follow one another and are all that the rank has
            own = [gradient[: part.own] for part, gradient in zip(work.parts, rows)]
            nothing = self.backend.zeros((0, width))
            work.gradient = self.backend.xp.concatenate([nothing, *own])
        if self.counts is None:
            return
        returned = yield from self._return(works, gradients, width)
        starts, ends = self._bounds(self.counts), np.cumsum(self.counts).reshape(self.counts.shape)
        for v, (work, index) in enumerate(zip(works, self.index)):
            first = 0
            for cell in np.flatnonzero(self.counts[:, v]):
                last = first + self.counts[cell, v]
                # within one (cell, view) every splat stands once, so a plain add is right
                rows = returned[starts[cell, v] : ends[cell, v]]
                work.gradient[index[first:last]] += rows
                first = last

    def _find(self, works):
        """Where own cells and ghosts lie in each view, with one copy to the host.

        Sets ends, per view the first own splat of each local cell and the end; index, per view
        the splats that are ghosts, by cell; counts, (cells, views) of them.
        """
        layout, xp, cells = self.layout, self.backend.xp, self.layout.cells
        self.index, numbers = [], []
        for work in works:
            rows = work.splats.rows
            numbers.append(xp.searchsorted(rows, xp.asarray(layout.offsets, rows.dtype)))
            if self.wanted:
                index, cell = self._reach(work)
                self.index.append(index[xp.argsort(cell, kind="stable")])
                numbers.append(xp.bincount(cell, minlength=cells))
        numbers = self.backend.to_host(xp.concatenate(numbers)).reshape(len(works), -1)
        bounds = len(layout.offsets)
        self.ends = numbers[:, :bounds].tolist()
        if self.wanted:
            self.counts = np.ascontiguousarray(numbers[:, bounds:].T.astype(np.int64))

    def _reach(self, work):
        """Splats of a view and cells that must draw them as ghosts, in tiles that are live."""
        xp = self.backend.xp
        own = self.layout.cells_of(work.splats.rows, xp)
        index, cell = self.backend.reach(work.splats, own, work.camera, self.layout.tree)
        if work.masks is not None and work.masks.masked.any():
            kept = boxes_touch(
                work.splats.data[index], cell, xp.asarray(~work.masks.masked), work.camera, xp
            )
            index, cell = index[kept], cell[kept]
        return index, cell

    def _exchange_counts(self):
        """Ghosts that arrive: (ranks, local cells, views) int64."""
        layout, views = self.layout, self.counts.shape[1]
        outgoing = layout.cells_per_rank() * views
        incoming = np.full(layout.ranks, len(layout.local) * views, np.int64)
        pending = self.exchange.start_alltoallv(
            "ghosts", self.counts.ravel(), outgoing, incoming
        )
        yield
        flat, _ = pending.wait()
        return flat.reshape(layout.ranks, len(layout.local), views)

    def _per_rank(self):
        """Ghosts for each rank, (ranks,) int64."""
        return np.bincount(
            self.layout.owner, weights=self.counts.sum(1), minlength=self.layout.ranks
        ).astype(np.int64)

    @staticmethod
    def _bounds(counts):
        """First place of each segment, of the shape of their counts."""
        return (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)

    def _exchange_records(self, works):
        """Send projected splats and ids; (n, 12 + id) reals that arrived."""
        width, xp = SPLAT + self.id_width, self.backend.xp
        records = xp.empty((self.count(), width), self.backend.real)
        starts = self._bounds(self.counts)
        for v, (work, index) in enumerate(zip(works, self.index)):
            places = self.backend.to_device(_runs(starts[:, v], self.counts[:, v]))
            records[places, :SPLAT] = work.splats.data[index]
            records[places, SPLAT:] = work.splats.ids[index, None].view(self.backend.real)
        incoming = self.arrived.sum((1, 2)) * width
        pending = self.exchange.start_alltoallv(
            "ghosts", records.ravel(), self._per_rank() * width, incoming
        )
        yield
        flat, _ = pending.wait()
        return flat.reshape(-1, width)

    def _append(self, works, records):
        """Put the ghosts that arrived behind the own splats of their (view, cell)."""
        xp, ranks = self.backend.xp, self.layout.ranks
        # from (rank, cell, view) to (cell, view, rank), so that those of a part lie together
        starts, counts = (np.moveaxis(array, 0, -1).ravel()
                          for array in (self._bounds(self.arrived), self.arrived))
        self.places = self.backend.to_device(_runs(starts, counts))
        records = records[self.places]
        data = xp.ascontiguousarray(records[:, :SPLAT])
        ids = xp.ascontiguousarray(records[:, SPLAT:]).view(np.int64).ravel()
        rows = xp.full(len(ids), -1, np.int32)
        ends = [0, *np.cumsum(counts)[ranks - 1 :: ranks].tolist()]
        parts = [work.parts[k] for k in range(len(self.layout.local)) for work in works]
        for part, a, b in zip(parts, ends[:-1], ends[1:]):
            if a < b:
                both = zip((part.splats.rows, part.splats.data, part.splats.ids),
                           (rows[a:b], data[a:b], ids[a:b]))
                part.splats = Splats(*(xp.concatenate(pair) for pair in both))

    def _return(self, works, gradients, width):
        """Send gradients of ghosts the way these came; rows in the order of the records sent."""
        xp, cells = self.backend.xp, range(len(self.layout.local))
        back = xp.empty((int(self.arrived.sum()), width), self.backend.real)
        if len(back):
            back[self.places] = xp.concatenate([
                gradients[v][k][work.parts[k].own :] for k in cells for v, work in enumerate(works)
            ])
        outgoing = self.arrived.sum((1, 2)) * width
        incoming = self._per_rank() * width
        pending = self.exchange.start_alltoallv("ghosts back", back.ravel(), outgoing, incoming)
        yield
        flat, _ = pending.wait()
        return flat.reshape(-1, width)


def _runs(starts, counts):
    """Places starts[i], starts[i] + 1, ... of counts[i] each, one run after another: int64."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
