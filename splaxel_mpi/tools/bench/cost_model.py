"""Time of an epoch on any number of ranks, from what views make ranks draw and send.

A rank's time on a step is fitted to measured ones, then the largest of the ranks counts wherever
they wait for one another:

    t = a G + b P + c N + d V + e V (several ranks),    a, b, c, d, e >= 0

G: Gaussians that it draws, P: pixels of the tiles it draws in, N: Gaussians that it stores, once
for every view (all are projected), V: views; e is what ranks that exchange have to do for a view
and one that is alone has not. Messages add bytes over a bandwidth and a latency each; nothing is
taken to be hidden behind computing.
"""

from dataclasses import dataclass

import numpy as np

from ...scene.camera import TILE
from ...schedule import figures, make_scheduler
from ...schedule.base import Predictor
from ...schedule.predictor import PIXEL_COST
from .counting import GHOST, GHOST_BACK, OCCUPIED, UNSATURATED

# Collectives of a chunk: masks (2), ghosts (2), bitmaps, streams, ghosts back; the owner of a tile
# also returns gradients and bits and fetches strips. gaussian: strips (2), counts, splats, halo,
# gradients.
MESSAGES = {"overlap": 7, "owner": 10, "gaussian": 6}
UNKNOWN = 1.0, PIXEL_COST["host"]  # what Gaussians and pixels drawn weigh where no time tells


class Table(Predictor):
    """Work (views, ranks) that is known."""

    def __init__(self, work):
        self.work, self.shape = work, (work.shape[1],) * 2

    def prepare(self, views):
        """See Predictor.prepare."""
        return lambda: self.work[views]


def run_epoch(name, work, batch, chunk):
    """What a scheduler makes of an epoch.

    name: of train.order; work: (views, ranks) that it predicts; batch, chunk: settings. Returns
    (views in order, numbers of views after which ranks wait for one another).
    """
    scheduler = make_scheduler(
        name, np.arange(len(work)), 0, batch, chunk=chunk, predictor=Table(work)
    )
    views, waits = [], []
    for start in range(0, len(work), batch):
        size = min(batch, len(work) - start)
        scheduler.begin(start)
        views += scheduler.batch(start, size)
        together = name in ("fixed", "balanced")
        waits += [size] if together else scheduler.chunks(start, size)
    return np.array(views), waits


@dataclass
class Load:
    """What every rank has to do for each of some views."""

    gaussians: np.ndarray  # (views, ranks) that it draws
    pixels: np.ndarray  # (views, ranks)
    stored: float  # Gaussians of a rank
    bytes: np.ndarray  # (views, ranks) that it sends or receives, whichever is more
    total: np.ndarray  # (views,) that all ranks send

    @property
    def ranks(self):
        """Number of ranks."""
        return self.gaussians.shape[1]

    def features(self, views):
        """(ranks, 4): G, P, N and V of some views together."""
        columns = [self.gaussians[views].sum(0), self.pixels[views].sum(0)]
        return np.stack([*columns, np.full(self.ranks, self.stored * len(views)),
                         np.full(self.ranks, float(len(views)))], axis=1)


def load_of(counts, settings, gaussians):
    """Load of the views of a list of counting.ViewCount, on as many ranks as they have cells.

    settings: Config of the variant; gaussians: of the whole scene.
    """
    strategy, ranks = settings.exchange.strategy, counts[0].cells
    stage = UNSATURATED if settings.saturation.enabled else OCCUPIED
    if strategy == "gaussian":
        # dealt at random and cut evenly: every rank has its share of everything
        drawn = np.array([[count.baseline.drawn / ranks] for count in counts])
        pixels = np.array([[count.camera.tile_count * TILE * TILE / ranks] for count in counts])
        total = np.array([count.baseline.total for count in counts])
        even = np.ones((1, ranks))
        return Load(drawn * even, pixels * even, gaussians / ranks,
                    total[:, None] / ranks * even, total)
    work = np.array([count.work(stage) for count in counts], float)
    total = np.array([sum(count.bytes(strategy, stage).values()) for count in counts])
    busiest = np.array([count.busiest(strategy, stage) for count in counts], float)
    if settings.boundary != "exact":  # no ghosts
        work[:, 0] = [np.where(count.tiles[stage].any(1), count.visible, 0) for count in counts]
        ghosts = np.array([count.ghosts[stage] for count in counts])
        busiest -= (GHOST + GHOST_BACK) * ghosts
        total -= (GHOST + GHOST_BACK) * ghosts.sum(1)
    return Load(work[:, 0], work[:, 1], gaussians / ranks, busiest, total)


def alone(counts, gaussians):
    """Load of one rank that has the whole scene."""
    visible = np.array([[count.visible.sum()] for count in counts], float)
    tiles = np.array([[count.tiles[OCCUPIED].any(0).sum()] for count in counts], float)
    nothing = np.zeros_like(visible)
    return Load(visible, TILE * TILE * tiles, float(gaussians), nothing, nothing[:, 0])


@dataclass
class CostModel:
    """costs: (4,) seconds a Gaussian drawn, a pixel, a Gaussian stored, a view; bandwidth: bytes
    a second of a rank; latency: seconds of a message; joint: seconds that a view takes besides
    where there are several ranks."""

    costs: np.ndarray
    bandwidth: float
    latency: float
    joint: float = 0.0

    @staticmethod
    def fit(measured, loads, bandwidth, latency):
        """From some city_run.Measured of a variant and the Load of each.

        Cities of two sizes on one count of ranks tell c from d. Where there is but one city, one
        rank and several are told apart by c alone, with e = 0; where all loads store as many
        Gaussians on a rank, c = 0, and all of it is taken for d, which more ranks do not lower.
        """
        from scipy.optimize import nnls

        rows, times = [], []
        for found, load in zip(measured, loads):
            # an epoch in which nobody waits for the device after each step is faster
            pace, start = found.seconds / found.watched, 0
            for seconds, size in zip(found.compute, found.batches):
                features = load.features(found.shown[start : start + size])
                rows.append(np.column_stack([features, features[:, 3] * (load.ranks > 1)]))
                times.append(pace * seconds)
                start += size
        rows, times = np.concatenate(rows), np.concatenate(times)
        sizes = [{load.stored for load in loads if (load.ranks > 1) == several}
                 for several in (False, True)]
        if max(map(len, sizes)) < 2:
            rows[:, 4 if all(sizes) else 2] = 0
        scale = np.maximum(rows.max(0), 1e-300)
        costs = nnls(rows / scale, times)[0] / scale
        return CostModel(costs[:4], bandwidth, latency, float(costs[4]))

    def predict(self, load, settings, batch=None):
        """Figures of an epoch. load: Load; settings: Config of the variant; batch: views of a
        step, None: one for each rank."""
        ranks = load.ranks
        batch = batch or ranks
        weights = self.costs if self.costs[:2].any() else UNKNOWN  # where nothing was fitted
        work = load.gaussians * weights[0] + load.pixels * weights[1]
        order = settings.train.order
        views, waits = run_epoch(order, work, batch, min(settings.train.chunk, batch))
        computing = moving = 0.0
        for start, size in zip(np.cumsum(waits) - waits, waits):
            group = views[start : start + size]
            computing += float((load.features(group) @ self.costs).max())
            if ranks > 1:
                computing += self.joint * size
                moving += self._exchange(load.bytes[group], settings, size)
        seconds, count = computing + moving, len(views)
        return dict(
            ranks=ranks, views=count, images_per_second=count / seconds,
            milliseconds=1e3 * seconds / count, communication=moving / seconds,
            total_bytes=float(load.total.mean()), active=figures.active(work[views], waits),
            balance=figures.balance(work[views], waits), bound=figures.bound(work),
            ranks_a_view=float((work > 0).sum(1).mean()),
        )

    def _exchange(self, sizes, settings, views):
        """Seconds of the exchanges of a group of views. sizes: (views, ranks) bytes."""
        chunks = -(-views // settings.train.chunk)
        messages = chunks * MESSAGES[settings.exchange.strategy]
        return float(sizes.sum(0).max()) / self.bandwidth + messages * self.latency
