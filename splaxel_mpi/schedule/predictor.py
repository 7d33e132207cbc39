"""Predicts the work of every cell on every view, for schedulers and plans (design section 7).

Work = Gaussians that a cell draws in a view + pixel cost x pixels of the tiles it draws in. Both
are known of a view that has been trained: what its last visit drew, the Gaussians scaled with
the growth of the cell. Before its first visit they come from geometry: the share of a sample of
the cell's Gaussians that is in the view, and the picture of the cell's content box.
"""

from copy import copy

import numpy as np

from ..arrays import module_of
from ..partition.assign import rank_of_cell
from ..scene.camera import TILE
from .base import Predictor

KIND = "schedule"  # under which an exchange counts the traffic
SAMPLE = 64  # Gaussians of a cell: visible shares to some percent, ranked by the larger cells
VIEWS = 256  # views at a time whose samples are projected, to bound temporary memory
GAUSSIANS, PIXELS, SIZE = range(3)  # columns of a visit; SIZE: Gaussians of the cell at the time
UNKNOWN = -1.0
# Cost of a pixel in visible Gaussians, forward and backward, by backend. host: fitted by
# benchmarks/schedules.py --fit. cuda: from the times of stages in docs/performance.md.
PIXEL_COST = {"host": 0.23, "cuda": 0.3}


class WorkPredictor(Predictor):
    """Predictor of a training run.

    views: list of data.base.View, all of them; layout: function without arguments that gives the
    present partition.layout.Layout; content: one that waits for what changes the Gaussians and
    gives (this rank's Gaussians, ContentBoxes); backend: theirs; near: view depth of the near
    plane; pixel_cost: in visible Gaussians, None: PIXEL_COST of the backend; costs:
    costs.CostFit that corrects it during the run, or None.
    """

    def __init__(
        self, views, exchange, layout, content, backend, near, pixel_cost=None, costs=None
    ):
        self.cameras = [view.camera for view in views]
        self.exchange, self.layout, self.content = exchange, layout, content
        self.backend, self.near = backend, near
        self.pixel_cost = PIXEL_COST[backend.name] if pixel_cost is None else pixel_cost
        self.costs, self.drawn = costs, np.zeros(2)
        self.forget()

    @property
    def shape(self):
        """Cells and ranks."""
        return self.layout().cells, self.layout().ranks

    def forget(self):
        """See base.Predictor.forget."""
        shape = len(self._sizes()), len(self.cameras), 3
        self.visits = np.full(shape, UNKNOWN, np.float32)

    def observe(self, view, gaussians, pixels):
        """See base.Predictor.observe."""
        self.visits[:, view] = np.stack([gaussians, pixels, self._sizes()], axis=1)
        self.drawn += np.sum(gaussians), np.sum(pixels)

    def timed(self, seconds):
        """See base.Predictor.timed."""
        if self.costs is not None:
            self.costs.add(*self.drawn, seconds)
        self.drawn[:] = 0

    def state(self):
        """See base.Predictor.state."""
        return {"visits": self.visits}

    def restore(self, state):
        """See base.Predictor.restore."""
        visits = state.get("visits")
        if visits is not None and visits.shape == self.visits.shape:
            self.visits = visits.astype(np.float32)

    def prepare(self, views):
        """See base.Predictor.prepare."""
        layout, own = self.layout(), self._sizes()
        known = self._known(views, own)
        if self.costs is not None:
            self.pixel_cost = self.costs.pixel_cost(self.exchange, self.pixel_cost)
        geometry = None
        if (known[..., GAUSSIANS] < 0).any():
            cameras, (gaussians, boxes) = [self.cameras[view] for view in views], self.content()
            sample = _sample(gaussians.means, layout.offsets, self.backend.to_host)
            sample = self.exchange.allgatherv(KIND, sample.ravel())[0]
            sample = sample.reshape(layout.cells, SAMPLE, 3)
            sizes, _ = self.exchange.allgatherv(KIND, own)
            geometry = copy(boxes), cameras, sample, sizes, self.near
        cost, ranks = self.pixel_cost, layout.ranks
        return lambda: _work(known, geometry, cost, ranks)

    def _sizes(self):
        """Gaussians of each own cell, (own cells,) int64."""
        return np.diff(self.layout().offsets).astype(np.int64)

    def _known(self, views, sizes):
        """Gaussians and pixels of the last visits of views, all cells: (cells, n, 2) float32."""
        visits = self.visits[:, views]
        then = np.maximum(visits[..., SIZE], 1)
        found = visits[..., :SIZE].copy()
        grown = found[..., GAUSSIANS] > 0
        found[..., GAUSSIANS] *= np.where(grown, sizes[:, None] / then, 1)
        flat, _ = self.exchange.allgatherv(KIND, found.ravel())
        return flat.reshape(-1, len(views), SIZE)


def _work(known, geometry, pixel_cost, ranks):
    """Work of ranks on views, (n, ranks) float64. geometry: for views without a visit, or None."""
    count, pixels = known[..., GAUSSIANS].T.astype(np.float64), known[..., PIXELS].T
    cells = count.shape[1]
    if geometry is not None:
        boxes, cameras, sample, sizes, near = geometry
        new = np.flatnonzero((count < 0).any(axis=1))
        areas = boxes.areas([cameras[k] for k in new], near)
        shares = np.concatenate(
            [visible_share([cameras[k] for k in new[start : start + VIEWS]], sample, near)
             for start in range(0, len(new), VIEWS)]
        )
        count, pixels = count.copy(), pixels.copy()
        count[new], pixels[new] = shares * sizes * (areas > 0), areas
    work = count + pixel_cost * pixels
    out, owner = np.zeros((len(work), ranks)), rank_of_cell(np.arange(cells), cells, ranks)
    np.add.at(out.T, owner, work.T)
    return out


def observed(work):
    """What a rank's cells drew in a view, for observe(): (Gaussians, pixels), (own cells,) each.

    work: compose.base.ViewWork after rasterization.
    """
    gaussians = np.array([len(part.splats) if len(part.held) else 0 for part in work.parts])
    return gaussians, TILE * TILE * np.array([len(part.held) for part in work.parts])


def _sample(means, offsets, to_host):
    """Means of evenly spaced rows of each cell, (own cells, SAMPLE, 3) float64 on the host; not a
    number for a cell without Gaussians."""
    places = (np.arange(SAMPLE) + 0.5) / SAMPLE
    counts = np.diff(offsets)
    rows = (offsets[:-1, None] + (counts[:, None] * places).astype(np.int64)).ravel()
    out = np.full((len(counts), SAMPLE, 3), np.nan)
    if len(means):
        rows = module_of(means).asarray(np.minimum(rows, len(means) - 1))
        out[:] = to_host(means[rows]).reshape(out.shape)
    out[counts == 0] = np.nan
    return out


def visible_share(cameras, sample, near):
    """Share of each cell's sample that is in each view: (views, cells) float64.

    cameras: list of Camera; sample: (cells, k, 3) points of the world; near: view depth.
    """
    rotation = np.array([camera.rotation for camera in cameras])
    translation = np.array([camera.translation for camera in cameras])[:, :, None]
    lens = np.array([(c.fx, c.fy, c.cx, c.cy, c.width, c.height) for c in cameras]).T
    fx, fy, cx, cy, width, height = lens[:, :, None]
    # float32 is enough to count, and twice as fast
    seen = (rotation @ sample.reshape(-1, 3).T + translation).astype(np.float32)
    x, y, z = np.moveaxis(seen, 1, 0)
    with np.errstate(invalid="ignore"):  # cells without Gaussians
        inside = z > near
        inside &= (x * fx > -cx * z) & (x * fx < (width - cx) * z)
        inside &= (y * fy > -cy * z) & (y * fy < (height - cy) * z)
    return inside.reshape(len(cameras), *sample.shape[:2]).mean(axis=2)
