"""Steps of training on a city of Gaussians, timed on the ranks of a communicator.

All rates are 0, so every choice of settings sees the same scene, and so does every epoch. The
first epoch warms up and makes the masks; the second is timed as it runs; in the third ranks wait
for their device after every step, which tells the work of each rank in each step.
"""

import logging
import time
from dataclasses import dataclass

import numpy as np

from ...arrays import release
from ...config import parse
from ...data.base import View
from ...data.gaussian_city import ROWS, cameras, gaussians
from ...mpi.transport import make_exchange
from ...partition.content import ContentBoxes
from ...partition.deal import Dealt
from ...partition.kdtree import build
from ...partition.migrate import regroup
from ...scene.rows import Rows
from ...schedule import figures, make_scheduler
from ...schedule.predictor import WorkPredictor, observed
from ...train import job
from ...train.budget import make_budget
from ...train.optimizer import Optimizer
from ...train.shares import NAMES, WORDS, Waiting, shares
from ...train.state import State
from ...train.step import make_steps
from ...train.warm_up import warm_up
from ...train.world import make_world
from .counting import NEAR
from .whole_images import WholeImages

log = logging.getLogger(__name__)

DEGREE = 3
GREY = 99  # of the photographs: far from what is drawn, so that every pixel has a gradient
SHARES = tuple(name for name in NAMES if name != "apart")  # of the time of an epoch
SHARE_WORDS = tuple(WORDS.get(name, name) for name in SHARES)
PIECE = 64 * ROWS  # Gaussians that the host makes at a time for a device: 1 GB
NO_SPARE = 1  # limit of a rank's rows beyond those that it has to hold
STILL = [f"train.rates.{name}=0" for name in
         ("position", "scale", "rotation", "opacity", "sh0", "shN")]
BASE = [*STILL, "data.path=city", "densify.method=none", f"render.near={NEAR}"]


@dataclass(frozen=True)
class Variant:
    """A way to train that is compared with others."""

    name: str
    settings: tuple  # "section.key=value"
    whole: bool = False  # exchange whole images of all ranks

    @property
    def dealt(self):
        """Whether Gaussians are dealt to ranks instead of cells."""
        return "exchange.strategy=gaussian" in self.settings


# the rows of figure 22; the paper's full method is "consolidation"
PAPER = ("exchange.strategy=overlap", "boundary=filter")
PIXEL_LEVEL = Variant("pixel-level", (*PAPER, "train.order=one-view", "saturation.enabled=false"),
                      True)
REDUNDANCY = Variant("+ redundancy", (*PAPER, "train.order=one-view"))
CONSOLIDATION = Variant("+ consolidation", (*PAPER, "train.order=conflict-free"))
OURS = Variant("ours", ("boundary=exact", "train.order=balanced"))
GAUSSIAN = Variant("gaussian", ("exchange.strategy=gaussian", "exchange.precision=float32",
                                "exchange.strips=measured", "train.order=fixed"))


def make_config(overrides, variant, ranks):
    """Config of a variant. overrides: "section.key=value" of the user, below the variant's own;
    ranks: how many there will be, for the batch and its chunks: two, so that one is computed
    while the other exchanges. Raises UserError."""
    shape = [f"train.batch={ranks}", f"train.chunk={-(-ranks // 2)}"]
    return parse("", "bench", [*BASE, *shape, *overrides, *variant.settings])


def bring_kernels(config, comm):
    """Compile or load the kernels on every rank's GPU, if it has one. Collective."""
    world = make_world(config, comm)
    warm_up(config, world, job.make_renderer)
    world.node.Free()


class Site:
    """A city of Gaussians on the ranks of a communicator.

    config: Config whose sections mpi and backend count; count, side: of the city. The Gaussians
    lie in the cells of a tree with one for each rank, or are dealt; ``place`` moves them.
    """

    def __init__(self, config, comm, count, side):
        self.world, self.count, self.side = make_world(config, comm), count, side
        world, ranks = self.world, comm.size
        budget = make_budget(config.backend.memory, world, 0, config.mpi.share_gpu)
        start, stop = (count * (comm.rank + k) // ranks for k in (0, 1))
        budget.check(world.exchange, stop - start)
        rows = city_rows(count, side, start, stop, world.backend)
        # a quarter of what moves later: moments are made in the cells
        self.tree = build(rows["means"], None, ranks, world.exchange)
        offsets = regroup(rows, self.tree, world.exchange, NO_SPARE)
        self.state = State(rows, offsets, budget)

    def connect(self, transport):
        """Let what is exchanged from now on travel by a transport, a name of mpi.transport.
        Collective. Raises UserError where it cannot work here."""
        self.world.exchange = make_exchange(transport, self.world.backend, self.world.comm)

    def cut(self, cells):
        """A tree of so many cells, after which the Gaussians lie in them. Collective."""
        self.tree = build(self.state.gaussians.means, None, cells, self.world.exchange)
        self.state.migrate(self.tree, self.world.exchange)
        return self.tree

    def place(self, dealt):
        """Bring every Gaussian where a variant wants it. Collective."""
        if not dealt and (self.tree.dealt or self.tree.cells != self.world.ranks):
            self.cut(self.world.ranks)
        elif dealt and not self.tree.dealt:
            self.tree = Dealt.single()
            self.state.migrate(self.tree, self.world.exchange)

    def views(self, kind, count, size):
        """A list of View."""
        found = cameras(kind, count, self.side, 1, *size)
        return [View(k, "", None, camera) for k, camera in enumerate(found)]

    def close(self):
        """Free what the ranks share."""
        self.world.node.Free()
        self.state = None
        release(self.world.backend.xp)


def city_rows(count, side, start, stop, backend):
    """Rows start to stop of a city of Gaussians where the backend computes: scene.rows.Rows of
    parameters and ids. Of a device's rows the host holds PIECE at a time."""
    arrays = {}
    for low in range(start, max(stop, start + 1), PIECE):
        high = min(low + PIECE, stop)
        piece = gaussians(count, side, 0, 0, low, high, backend.threads).columns()
        for name, array in piece.items():
            if name not in arrays:
                shape = stop - start, *array.shape[1:]
                arrays[name] = backend.zeros(shape, array.dtype)
            if name != "shN":  # zeros; on the host pages that nobody touches take no memory
                arrays[name][low - start : high - start] = backend.to_device(array)
    return Rows(arrays)


class CityRun:
    """One variant on a Site, ready to step. config: make_config's; views: of the site."""

    def __init__(self, site, config, variant, views):
        site.place(variant.dealt)
        self.site, self.variant, self.views, self.config = site, variant, views, config
        self.world, self.state = site.world, site.state
        backend, exchange = self.world.backend, self.world.exchange
        self.state.images_seen = self.state.step = 0
        boxes = ContentBoxes(config.partition.margin)
        boxes.update(self.state.gaussians, self.state.offsets, site.tree, exchange)
        self.renderer = job.make_renderer(config, self.world, site.tree, self.state, boxes)
        if variant.whole:
            self.renderer.compositor = WholeImages(
                backend, exchange, self.renderer.layout, config.scene.background
            )
        optimizer = Optimizer(backend, config.train, site.side, config.train.batch)
        self.steps = make_steps(self.renderer, optimizer, config.train, None, self._observe)
        predictor = WorkPredictor(
            views, exchange, lambda: self.renderer.layout,
            lambda: (self.state.gaussians, boxes), backend, config.render.near,
            config.schedule.pixel_cost,
        )
        self.pixel_cost = predictor.pixel_cost
        self.scheduler = make_scheduler(
            config.train.order, np.arange(len(views)), config.run.seed, config.train.batch,
            config.schedule.window, config.train.chunk, predictor,
        )
        camera = views[0].camera
        photo = np.full((camera.height, camera.width, 3), GREY, np.uint8)
        self.photos = dict.fromkeys(range(len(views)), backend.to_device(photo))
        self.seen = {}  # view -> (Gaussians, pixels) that this rank drew at its last visit

    def _observe(self, view, work):
        """Keep what this rank drew, and tell the scheduler."""
        drawn = observed(work)
        self.seen[view.index] = [float(np.sum(part)) for part in drawn]
        self.scheduler.observe(view.index, *drawn)

    def step(self):
        """One update; the views of its batch and the lengths of its chunks."""
        seen, left = self.state.images_seen, len(self.views)
        size = min(self.config.train.batch, left - seen % left)
        self.scheduler.begin(seen)
        indices = self.scheduler.batch(seen, size)
        chunks = self.scheduler.chunks(seen, size)
        views = [self.views[index] for index in indices]
        self.steps.step(self.state, views, self.photos, DEGREE, chunks)
        self.renderer.take_gradient_sums()
        return indices, chunks

    def epoch(self, each=lambda indices, chunks: None):
        """Show every view once; seconds until all ranks are done. each: called after every step.
        """
        self._meet()
        start, end = time.perf_counter(), self.state.images_seen + len(self.views)
        while self.state.images_seen < end:
            each(*self.step())
        self.steps.settle()
        self._meet()
        return time.perf_counter() - start

    def _meet(self):
        """Wait for this rank's device, then for all ranks."""
        self._finish()
        self.world.comm.Barrier()

    def _finish(self):
        """Wait for this rank's device."""
        if self.world.backend.xp is not np:
            self.world.backend.xp.cuda.get_current_stream().synchronize()

    def measure(self):
        """Run the three epochs. Collective; returns a Measured, equal on all ranks."""
        exchange, timers = self.world.exchange, self.renderer.timers
        waiting, exchange.watch = Waiting(exchange, self.world.node), timers
        try:
            self.epoch()
            timers.take()
            sent = dict(exchange.bytes)
            seconds = self.epoch()
            spent = timers.take()
            sent = {kind: count - sent.get(kind, 0) for kind, count in exchange.bytes.items()}
            found = shares(spent, waiting.seconds(spent))
            log.info("%s, %d ranks, %d Gaussians: %.2f images/s", self.variant.name,
                     self.world.ranks, self.site.count, len(self.views) / seconds)
            return self._watched(seconds, self._sums(sent), self._means(found))
        finally:
            del exchange.watch  # that of the class again

    def _watched(self, seconds, sent, spent):
        """The third epoch and all figures. seconds, sent, spent: of the second."""
        exchange, marks, shown, waits, batches = self.world.exchange, [], [], [], []

        def each(indices, chunks):
            self._finish()
            marks.append((time.perf_counter(), sum(exchange.seconds.values())))
            shown.extend(indices)
            batches.append(len(indices))
            waits.extend(chunks if self.config.train.order in ("one-view", "conflict-free")
                         else [len(indices)])

        self._meet()
        marks.append((time.perf_counter(), sum(exchange.seconds.values())))
        watched = self.epoch(each)
        passed = np.diff(np.array(marks), axis=0)
        compute = np.array(self.world.comm.allgather(passed[:, 0] - passed[:, 1])).T
        work = self._work(shown)
        costs = work[..., 0] + self.pixel_cost * work[..., 1]
        return Measured(self.variant.name, self.world.ranks, len(self.views), seconds, watched,
                        sent, spent, compute, shown, batches, waits, work, costs)

    def _means(self, values):
        """{name: mean over ranks}."""
        found = self.world.comm.allgather(values)
        return {name: float(np.mean([one.get(name, 0.0) for one in found])) for name in SHARES}

    def _work(self, shown):
        """(Gaussians, pixels) of every rank on the views shown: (n, ranks, 2)."""
        mine = np.array([self.seen.get(view, (0.0, 0.0)) for view in shown])
        return np.moveaxis(np.array(self.world.comm.allgather(mine)), 0, 1)

    def _sums(self, values):
        """{name: sum over ranks}."""
        out = {}
        for found in self.world.comm.allgather(values):
            for name, value in found.items():
                out[name] = out.get(name, 0) + int(value)
        return out


@dataclass
class Measured:
    """What CityRun.measure has found."""

    variant: str
    ranks: int
    images: int  # of an epoch
    seconds: float  # of the second epoch
    watched: float  # of the third
    sent: dict  # bytes of all ranks by kind, of an epoch
    shares: dict  # SHARES -> seconds of the second epoch, mean over ranks
    compute: np.ndarray  # (steps, ranks) seconds of the third epoch outside of exchanges
    shown: list  # views of the third epoch
    batches: list  # numbers of views of its steps
    waits: list  # numbers of views after which ranks wait for one another
    work: np.ndarray  # (images, ranks, 2) Gaussians and pixels drawn
    costs: np.ndarray  # (images, ranks) the same as schedulers weigh it

    def row(self):
        """Figures by name, for a table and JSON; times in milliseconds a view."""
        per_view = 1e3 / self.images
        watched = sum(self.shares.values())
        known = bool(self.costs.any())  # a rank alone on a GPU does not observe
        return dict(
            variant=self.variant, ranks=self.ranks, views=self.images,
            images_per_second=self.images / self.seconds,
            milliseconds=per_view * self.seconds,
            shares={name: value / watched for name, value in self.shares.items()},
            bytes={kind: count / self.images for kind, count in self.sent.items()},
            total_bytes=sum(self.sent.values()) / self.images,
            active=figures.active(self.costs, self.waits) if known else 1.0,
            balance=figures.balance(self.costs, self.waits) if known else 1.0,
            bound=figures.bound(self.costs) if known else 1.0,
            ranks_a_view=float((self.costs > 0).sum(1).mean()) if known else 1.0,
            compute_balance=float(self.compute.mean(1).sum() / self.compute.max(1).sum()),
        )
