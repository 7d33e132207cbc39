"""Steps of one rank that has one cell, on a device that works while the host goes on.

Nothing is exchanged and the only layer of a view is its image, so that a step needs no count of
the device: arrays are made for what earlier views needed, and a view that does not fit stops the
device (backends.cuda_tally.Tally) until the host does the skipped views again, in order, with
arrays of the right size. The result is that of Steps in step.py.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

# Steps that the host may be ahead of the device. Two keep it busy while the host prepares the
# next one; more would only be wasted when a view does not fit.
AHEAD = 3


@dataclass
class Step:
    """What one update was made of, for as long as it may have to be done again."""

    first: int  # number of its first view since the last collection
    views: list
    photos: list  # of each view, on the device
    degree: int
    update: tuple  # Optimizer.arguments
    before: int  # images seen
    done: object = field(default=None)  # event behind its last kernel

    @property
    def end(self):
        """Number of the first view after it."""
        return self.first + len(self.views)


class OneRank:
    """The interface of step.Steps for one rank with one cell.

    running: what Backend.free_running gives; densifier: see step.Steps. Losses stay on the
    device until settle. Between two settlements nobody else may change or look at the state.
    """

    def __init__(self, renderer, optimizer, running, densifier=None):
        self.renderer, self.optimizer = renderer, optimizer
        self.densifier = densifier
        running.broken = optimizer.broken
        running.absolute = bool(densifier and densifier.needs_absolute)
        self.running, self.tally = running, running.tally
        self.waiting = deque()  # steps that may not be done
        event = renderer.backend.xp.cuda.Event
        self.marks = [event(disable_timing=True) for _ in range(AHEAD + 1)]
        self.launched = self.turn = 0
        self.rows = 0  # Gaussians of the last step
        self.shares = [np.zeros((0, 3))]
        self.bound = False

    def step(self, state, views, photos, degree, chunks=None):
        """See Steps.step; photos: arrays of the device. Views go one after another."""
        with self.renderer.timers("step"):
            self._bind(state)
            self._look(AHEAD)
            if self.launched + len(views) > self.tally.views:
                self._collect()
                self.running.reserve(len(views))
            update = self.optimizer.arguments(state.images_seen, len(views))
            pictures = [photos[view.index] for view in views]
            before = state.images_seen
            step = Step(self.launched, views, pictures, degree, update, before)
            self._run(step, 0, self.running.room())
            step.done = self.marks[self.turn]
            step.done.record()
            self.turn = (self.turn + 1) % len(self.marks)
            self.waiting.append(step)
            self.launched = step.end
            state.step += 1
            state.images_seen += len(views)
        return np.zeros((0, 3))

    @property
    def troubled(self):
        """See Steps.troubled; steps that the device has not done yet may raise it later."""
        return bool(self.tally.alarm[1])

    def shrink(self):
        """See Steps.shrink."""
        return False

    def settle(self):
        """See Steps.settle."""
        with self.renderer.timers("step"):
            self._collect()
        self.running.release()
        self.bound = False
        shares, self.shares = np.concatenate(self.shares), [np.zeros((0, 3))]
        return shares

    def _bind(self, state):
        """Take the arrays of the state after a settlement."""
        if not self.bound:
            self.running.bind(state)
            self.bound = True
            if self.rows:
                self.tally.scale(len(state.gaussians) / self.rows)
            self.rows = len(state.gaussians)

    def _look(self, ahead):
        """Wait until at most so many steps are under way, and repeat what was skipped."""
        while len(self.waiting) > ahead:
            self.waiting[0].done.synchronize()
            if self.tally.alarm[0]:
                self._repeat()
            else:
                self.waiting.popleft()

    def _repeat(self):
        """Do what the device has skipped since a view did not fit, with exact sizes."""
        done = self.tally.resume()
        for step in self.waiting:
            if step.end > done:
                self._run(step, max(done - step.first, 0), None)
        mark = self.marks[self.turn]
        mark.record()
        mark.synchronize()  # photographs are let go of with their steps
        self.waiting.clear()

    def _collect(self):
        """Bring the losses of everything launched to the host."""
        self._look(0)
        shares, visible = self.tally.collect()
        self.renderer.visible_count += visible
        self.shares.append(shares)
        self.launched = 0

    def _run(self, step, start, room):
        """Views of a step from place ``start`` on, and its update. room: None for exact sizes."""
        running, views = self.running, len(step.views)
        alone = views == 1 and self.optimizer.selective and not running.absolute
        for view, photo in zip(step.views[start:], step.photos[start:]):
            update = step.update if alone else None
            running.view(view.camera, photo, step.degree, room, update)
        if alone:
            return
        densifier = self.densifier
        if densifier:
            densifier.regularise(running.state, running.gradients, views, self.tally)
        running.update(step.update, self.optimizer.selective)
        if densifier:
            rate, after = step.update[0]["means"], step.before + views
            densifier.disturb(running.state, rate, step.before, after, self.tally)
