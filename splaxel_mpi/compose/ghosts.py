"""Ghosts: splats drawn by cells other than their own (design section 5, boundary exact).

A Gaussian is drawn at a pixel by the cell whose ray interval holds its depth, so a splat whose
footprint reaches into other cells travels there already projected. Its gradient comes back by
the same route and is added by the owner.
"""

import numpy as np

from ..backends.base import SPLAT, SPLAT_GRADIENT
from .base import CellPart


class Ghosts:
    """Ghosts of the views of one chunk: out with ``send``, gradients back with ``give_back``."""

    def __init__(self, backend, exchange, layout, wanted=True):
        """wanted: False where cells draw only what they store."""
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.wanted = wanted
        self.id_width = 8 // np.dtype(backend.real).itemsize  # reals that hold an int64 id
        self.routed = None  # backends.base.Routed

    def send(self, works, projected):
        """Fill works[v].splats and parts: each local cell's own splats and the ghosts it must
        draw. projected: of Backend.project_views. Collective; a generator, see mpi.pipeline.
        Returns the number of ghosts that this rank sends, to itself included."""
        layout, backend = self.layout, self.backend
        wanted = self.wanted and layout.cells > 1
        masked = [None if work.masks is None else work.masks.masked for work in works]
        routing, records = backend.start_route(projected, layout, masked, wanted), None
        yield
        routed = self.routed = routing.take()
        if wanted:
            routed.arrived = yield from self._exchange_counts()
            records = yield from self._exchange_records()
        parts = backend.place_ghosts(routed, records, routed.arrived)
        for work, splats, ends, of_view in zip(works, routed.splats, routed.ends, parts):
            bounds = zip(layout.local, ends[:-1], ends[1:], of_view)
            work.splats = splats
            work.parts = [CellPart(c, a, b, part) for c, a, b, part in bounds]
        return int(routed.counts.sum()) if wanted else 0

    def gradient_rows(self, width=SPLAT_GRADIENT):
        """Backend.gradient_rows of the chunk."""
        return self.backend.gradient_rows(self.routed, width)

    def give_back(self, works, gradients, width=SPLAT_GRADIENT):
        """Add gradients to their splats: own ones here, those of ghosts at their owner.

        gradients[v][k]: (len(part.splats), width) of works[v].parts[k]. Fills works[v].gradient.
        Collective; a generator, see mpi.pipeline.
        """
        routed, returned = self.routed, None
        if routed.counts is not None:
            back = self.backend.pack_gradients(routed, gradients, width)
            outgoing = routed.arrived.sum((1, 2)) * width
            incoming = self._per_rank() * width
            pending = self.exchange.start_alltoallv(
                "ghosts back", back.ravel(), outgoing, incoming
            )
            yield
            returned = pending.wait()[0].reshape(-1, width)
        sums = self.backend.add_gradients(routed, gradients, returned, width)
        for work, gradient in zip(works, sums):
            work.gradient = gradient

    def _exchange_counts(self):
        """Ghosts that arrive: (ranks, local cells, views) int64."""
        layout, counts = self.layout, self.routed.counts
        views = counts.shape[1]
        outgoing = layout.cells_per_rank() * views
        incoming = np.full(layout.ranks, len(layout.local) * views, np.int64)
        pending = self.exchange.start_alltoallv("ghosts", counts.ravel(), outgoing, incoming)
        yield
        return pending.wait()[0].reshape(layout.ranks, len(layout.local), views)

    def _per_rank(self):
        """Ghosts for each rank, (ranks,) int64."""
        return np.bincount(
            self.layout.owner, weights=self.routed.counts.sum(1), minlength=self.layout.ranks
        ).astype(np.int64)

    def _exchange_records(self):
        """Send projected splats and ids; (n, 12 + id) reals that arrived."""
        width, routed = SPLAT + self.id_width, self.routed
        records = self.backend.pack_ghosts(routed)
        pending = self.exchange.start_alltoallv(
            "ghosts", records.ravel(), self._per_rank() * width,
            routed.arrived.sum((1, 2)) * width,
        )
        yield
        return pending.wait()[0].reshape(-1, width)
