"""What all schedulers share: epochs cut into windows, each arranged ahead of its time.

An epoch is a permutation of the training views by (seed, epoch). A scheduler arranges the views
of one window of it and nothing beyond: so the order stays random at the scale of windows and
the cost is linear in the views. While a window is shown the next one is arranged in a thread,
from what was known when the first began.
"""

import logging
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from .base import Scheduler
from .figures import summary

log = logging.getLogger(__name__)

WINDOW = 4096  # views; the totals of 64 cells differ by 1 to 3 % between windows of that size
SHUFFLE, ARRANGE = 0, 1  # generators of an epoch and of a window
UNFIT = "the stored order is not of these training views; the epoch goes on in a new one"


@dataclass
class Plan:
    """The views of a window in the order in which they are shown."""

    order: np.ndarray  # (n,) int64, view indices
    opens: np.ndarray  # (n,) bool, where a bucket begins; all False without buckets
    figures: dict  # figures.summary of the window; empty where nothing is known


@dataclass
class Window:
    """Consecutive images of a run, within one epoch."""

    start: int  # images seen before its first view
    stop: int  # images seen after its last view
    future: Future  # of its Plan

    @property
    def plan(self):
        """Its Plan; waits for the thread where necessary."""
        return self.future.result()


class Windowed(Scheduler):
    """A scheduler that arranges windows; subclasses say how (``arrange``).

    train: (n,) indices of training views; seed: int; batch: views of a step; window: views that
    are arranged together, at least a batch; chunk: views that share collectives; predictor:
    base.Predictor for those that predict.
    """

    def __init__(self, train, seed, batch=1, window=WINDOW, chunk=1, predictor=None):
        self.train, self.seed = np.asarray(train, np.int64), seed
        self.size, self.window, self.chunk = batch, max(window, batch), chunk
        self.predictor = predictor if self.predicts else None
        self.phase = 0  # batches begin at image counts with this remainder
        self.windows = []  # Window, one after the other
        self.epoch = self.shuffled = self.worker = None

    def arrange(self, work, start, random):
        """Order of a window and where its buckets open: permutation (n,) and (n,) bool.

        work: (n, ranks) float64; start: images seen before it, see rooms(); random: numpy
        Generator. Runs in a thread.
        """
        return np.arange(len(work)), np.zeros(len(work), bool)

    def waits(self, start, opens):
        """Lengths of the runs of views after which ranks wait for one another, for figures.
        Here: batches. start: images seen before the window; opens: as in Plan."""
        return self.rooms(start, len(opens))

    def rooms(self, start, count):
        """Views of each batch within ``count`` views after ``start`` images: a list."""
        first = min((self.phase - start) % self.size, count)
        whole, rest = divmod(count - first, self.size)
        return [size for size in [first, *[self.size] * whole, rest] if size]

    def begin(self, images_seen):
        """See Scheduler.begin."""
        self.windows = [window for window in self.windows if window.stop > images_seen]
        if not self.windows:
            self._add(images_seen)
        if len(self.windows) < 2 and self.predicts:
            self._add(self.windows[-1].stop)

    def batch(self, images_seen, size):
        """See Scheduler.batch."""
        return self._between(images_seen, size, "order").tolist()

    def chunks(self, images_seen, size):
        """See Scheduler.chunks."""
        return [min(self.chunk, size - done) for done in range(0, size, self.chunk)]

    def figures(self, images_seen):
        """See Scheduler.figures."""
        before = [window for window in self.windows if window.start < images_seen]
        return dict(before[-1].plan.figures) if before else {}

    def observe(self, view, gaussians, pixels):
        """See Scheduler.observe."""
        if self.predictor:
            self.predictor.observe(view, gaussians, pixels)

    def timed(self, seconds):
        """See Scheduler.timed."""
        if self.predictor:
            self.predictor.timed(seconds)

    def repartitioned(self, images_seen):
        """See Scheduler.repartitioned."""
        if self.predictor:
            self.predictor.forget()
        if self.windows and self.predicts:
            self._again(images_seen)

    def state(self):
        """See Scheduler.state: windows that have been arranged, the one that is shown first."""
        return self._arranged(), self.predictor.state() if self.predictor else {}

    def _arranged(self):
        """The shared part of state()."""
        plans = [window.plan for window in self.windows]
        changed = any(plan.opens.any() for plan in plans) or any(
            not np.array_equal(plan.order, self._shuffled(window.start, window.stop))
            for plan, window in zip(plans, self.windows)
        )
        if not plans or not (self.predicts or changed):
            return {}
        return dict(
            identity=self._identity(),
            bounds=np.array([w.start for w in self.windows] + [self.windows[-1].stop], np.int64),
            order=np.concatenate([plan.order for plan in plans]),
            opens=np.concatenate([plan.opens for plan in plans]).astype(np.int64),
        )

    def restore(self, shared, own, images_seen):
        """See Scheduler.restore.

        Under other arguments than those that wrote the state (rank count, batch, scheduler) the
        rest of its first window is arranged anew. A state of other views is ignored.
        """
        if self.predictor:
            self.predictor.restore(own)
        self.phase = images_seen % self.size
        self.windows = [w for w in self._stored(shared) if w.stop > images_seen]
        if self.windows and not np.array_equal(shared["identity"], self._identity()):
            self._again(images_seen)

    def _identity(self):
        """Numbers that are equal where a stored arrangement is still the best one."""
        shape = self.predictor.shape if self.predictor else (0, 0)
        name = zlib.crc32(self.name.encode())
        return np.array([name, self.size, self.phase, self.window, self.chunk, *shape], np.int64)

    def _stored(self, state):
        """Windows of a state; none where it does not fit the training views."""
        if not {"identity", "bounds", "order", "opens"} <= set(state):
            return []
        bounds, order, opens = (state[name].ravel() for name in ("bounds", "order", "opens"))
        size, steps = len(order), np.diff(bounds)
        if not size or size != len(opens) or size != steps.sum() or (steps < 1).any():
            log.warning(UNFIT)
            return []
        out = []
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist()):
            part, expected = slice(start - bounds[0], stop - bounds[0]), self._shuffled(start, stop)
            if not np.array_equal(np.sort(order[part]), np.sort(expected)):
                log.warning(UNFIT)
                return []
            future = Future()
            future.set_result(Plan(order[part], opens[part].astype(bool), {}))
            out.append(Window(start, stop, future))
        return out

    def _again(self, images_seen):
        """Arrange anew what is left of the window at images_seen, and forget later ones."""
        window = next(w for w in self.windows if w.stop > images_seen)
        shown = max(images_seen - window.start, 0)
        plan, self.windows = window.plan, []
        self._add(window.start, plan.order, shown, plan.opens)

    def _between(self, start, size, name):
        """What plans have under a name for the images start to start + size."""
        stop, parts = start + size, [np.zeros(0, np.int64)]
        if not self.windows:
            self._add(start)
        while self.windows[-1].stop < stop:
            self._add(self.windows[-1].stop)
        for window in self.windows:
            if window.start < stop and window.stop > start:
                array = getattr(window.plan, name)
                parts.append(array[max(start - window.start, 0) : stop - window.start])
        return np.concatenate(parts)

    def _add(self, start, views=None, shown=0, opens=None):
        """Begin to arrange the window at start.

        views: of a window that was arranged before, of which the first ``shown`` stay in
        place, and ``opens`` with them.
        """
        if views is None:
            views = self._shuffled(start, self._stop(start))
        opens = np.zeros(shown, bool) if opens is None else opens[:shown]
        before = Plan(views[:shown], opens, {})
        if self.predicts:
            self.worker = self.worker or ThreadPoolExecutor(1, "schedule")
            work = self.predictor.prepare(views[shown:])
            future = self.worker.submit(self._plan, start, before, views[shown:], work)
        else:
            future = Future()
            future.set_result(Plan(views, np.zeros(len(views), bool), {}))
        self.windows.append(Window(start, start + len(views), future))

    def _plan(self, start, before, views, work):
        """Plan of the window at start. work: of the views after those before, as given by
        Predictor.prepare."""
        start += len(before.order)
        work = np.asarray(work(), np.float64)
        order, opens = self.arrange(work, start, self._generator(start, ARRANGE))
        figures = summary(work[order], self.waits(start, opens))
        log.debug("images %d to %d: %s", start, start + len(views), figures)
        return Plan(
            np.concatenate([before.order, views[order]]),
            np.concatenate([before.opens, opens]),
            figures,
        )

    def _stop(self, start):
        """End of a window: the last batch border within its size, or the end of the epoch
        where less than half a window would remain."""
        epoch_end = (start // len(self.train) + 1) * len(self.train)
        border = start + self.window
        border -= (border - self.phase) % self.size
        return epoch_end if epoch_end - border < self.window // 2 or border <= start else border

    def _shuffled(self, start, stop):
        """Views of images start to stop, of one epoch, in its order by seed alone."""
        epoch, first = divmod(start, len(self.train))
        if epoch != self.epoch:
            shuffle = self._generator(epoch, SHUFFLE)
            self.epoch, self.shuffled = epoch, self.train[shuffle.permutation(len(self.train))]
        return self.shuffled[first : first + stop - start]

    def _generator(self, number, use):
        """numpy Generator of an epoch or of a window."""
        return np.random.Generator(np.random.Philox(key=[self.seed, number], counter=use << 192))
