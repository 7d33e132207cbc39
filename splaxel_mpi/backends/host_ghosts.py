"""Splats of a chunk of views and their ghosts on the host (contract in base.py)."""

import numpy as np

from ..visibility.tiles import boxes_touch
from .base import SPLAT, Ready, Routed, Splats


class HostGhosts:
    """Mixin of HostBackend: project_views to add_gradients."""

    def project_views(self, gaussians, cameras, degree, near):
        """See Backend.project_views."""
        return [(camera, self.project(gaussians, camera, degree, near)) for camera in cameras]

    def start_route(self, projected, layout, masked, wanted=True):
        """See Backend.start_route."""
        return Ready(self._route(projected, layout, masked, wanted))

    def _route(self, projected, layout, masked, wanted):
        splats = [view for _, view in projected]
        ends = [np.searchsorted(view.rows, layout.offsets).tolist() for view in splats]
        if not wanted:
            return Routed(splats, ends)
        counts = np.zeros((layout.cells, len(splats)), np.int64)
        found = []
        for v, ((camera, view), dark) in enumerate(zip(projected, masked)):
            index, cell = self.reach(view, layout.cells_of(view.rows), camera, layout.tree)
            if dark is not None and dark.any():
                kept = boxes_touch(view.data[index], cell, ~dark, camera)
                index, cell = index[kept], cell[kept]
            counts[:, v] = np.bincount(cell, minlength=layout.cells)
            ends_of_cells = np.cumsum(counts[:, v])[:-1]
            found.append(np.split(index[np.argsort(cell, kind="stable")], ends_of_cells))
        index = [of_view[cell] for cell in range(layout.cells) for of_view in found]
        index = np.concatenate([np.zeros(0, np.int32), *index])
        return Routed(splats, ends, counts, index, state={})

    def pack_ghosts(self, routed):
        """See Backend.pack_ghosts."""
        records = np.empty((len(routed.index), SPLAT + 8 // self.real.itemsize), self.real)
        for _, v, rows, part in _segments(routed):
            splats = routed.splats[v]
            records[part, :SPLAT] = splats.data[rows]
            records[part, SPLAT:] = splats.ids[rows, None].view(self.real)
        return records

    def place_ghosts(self, routed, records, arrived):
        """See Backend.place_ghosts."""
        out = [
            [splats.slice(a, b) for a, b in zip(ends[:-1], ends[1:])]
            for splats, ends in zip(routed.splats, routed.ends)
        ]
        if records is None:
            return out
        ranks, cells, views = arrived.shape
        # from (rank, cell, view) to (cell, view, rank), so that those of a part lie together
        starts = (np.cumsum(arrived) - arrived.ravel()).reshape(arrived.shape)
        starts, counts = (np.moveaxis(array, 0, -1).ravel() for array in (starts, arrived))
        places = routed.state["places"] = _runs(starts, counts)
        routed.state["own"] = [[len(part) for part in view] for view in out]
        records = records[places]
        data = np.ascontiguousarray(records[:, :SPLAT])
        ids = np.ascontiguousarray(records[:, SPLAT:]).view(np.int64).ravel()
        rows = np.full(len(ids), -1, np.int32)
        ends = [0, *np.cumsum(counts)[ranks - 1 :: ranks].tolist()]
        for k, (a, b) in enumerate(zip(ends[:-1], ends[1:])):
            own = out[k % views][k // views]
            if a < b:
                both = zip((own.rows, own.data, own.ids), (rows[a:b], data[a:b], ids[a:b]))
                out[k % views][k // views] = Splats(*(np.concatenate(pair) for pair in both))
        return out

    def gradient_rows(self, routed, width):
        """See Backend.gradient_rows."""
        return [[None] * (len(ends) - 1) for ends in routed.ends]

    def pack_gradients(self, routed, gradients, width):
        """See Backend.pack_gradients."""
        places, own = routed.state["places"], routed.state["own"]
        cells = range(len(gradients[0]))
        rows = [view[k][own[v][k] :] for k in cells for v, view in enumerate(gradients)]
        back = np.empty((len(places), width), self.real)
        if len(back):
            back[places] = np.concatenate(rows)
        return back

    def add_gradients(self, routed, gradients, returned, width):
        """See Backend.add_gradients."""
        out = []
        for ends, parts in zip(routed.ends, gradients):
            own = [g[: b - a] for g, a, b in zip(parts, ends[:-1], ends[1:])]
            out.append(np.concatenate([np.zeros((0, width), self.real), *own]))
        for _, v, rows, part in _segments(routed) if returned is not None else ():
            out[v][rows] += returned[part]  # within one (cell, view) every splat stands once
        return out


def _segments(routed):
    """(cell, view, rows of the view's splats, slice of the ghosts) of those that have any."""
    end = 0
    for cell, view in np.argwhere(routed.counts).tolist():
        start, end = end, end + int(routed.counts[cell, view])
        yield cell, view, routed.index[start:end], slice(start, end)


def _runs(starts, counts):
    """Places starts[i], starts[i] + 1, ... of counts[i] each, one run after another: int64."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
