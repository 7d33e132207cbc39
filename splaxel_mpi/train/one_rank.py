"""Steps of one rank that has one cell, on a device that works while the host goes on.

Nothing is exchanged and the only layer of a view is its image, so that a step needs no count of
the device: arrays are made for what earlier views needed, and a view that does not fit stops the
device (backends.cuda_tally.Tally) until the host does the skipped views again, in order, with
arrays of the right size. The result is that of Steps in step.py.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ..backends.base import Gradients

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
    done: object = field(default=None)  # event behind its last kernel

    @property
    def end(self):
        """Number of the first view after it."""
        return self.first + len(self.views)


class OneRank:
    """The interface of step.Steps for one rank with one cell.

    tally: of the backend. Losses stay on the device until settle. Between two settlements
    nobody else may change or look at the state.
    """

    def __init__(self, renderer, optimizer, settings, tally):
        self.renderer, self.optimizer, self.settings = renderer, optimizer, settings
        self.backend, self.tally = renderer.backend, tally
        self.waiting = deque()  # steps that may not be done
        self.marks = [self._event() for _ in range(AHEAD + 1)]
        self.launched = self.turn = 0
        self.rows = 0  # Gaussians of the last step
        self.shares = [np.zeros((0, 3))]
        self.state = self.gaussians = self.gradients = None
        self.supervised = {}  # tile count -> ones on the device

    def _event(self):
        return self.backend.xp.cuda.Event(disable_timing=True)

    def step(self, state, views, photos, degree):
        """See Steps.step; photos: arrays of the device."""
        with self.renderer.timers("step"):
            self._bind(state)
            self._look(AHEAD)
            if self.launched + len(views) > self.tally.views:
                self._collect()
            update = self.optimizer.arguments(state.images_seen, len(views))
            pictures = [photos[view.index] for view in views]
            step = Step(self.launched, views, pictures, degree, update)
            self._run(step, 0, self.tally.room(len(state.gaussians)))
            step.done = self.marks[self.turn]
            step.done.record()
            self.turn = (self.turn + 1) % len(self.marks)
            self.waiting.append(step)
            self.launched = step.end
            state.step += 1
            state.images_seen += len(views)
        return np.zeros((0, 3))

    def settle(self):
        """See Steps.settle."""
        with self.renderer.timers("step"):
            self._collect()
        # others may replace them, and their memory with them
        self.state = self.gaussians = self.gradients = None
        shares, self.shares = np.concatenate(self.shares), [np.zeros((0, 3))]
        return shares

    def _bind(self, state):
        """Take the arrays of the state after a settlement."""
        if self.gaussians is None:
            self.state, self.gaussians = state, state.gaussians
            if self.rows:
                self.tally.scale(len(self.gaussians) / self.rows)
            self.rows = len(self.gaussians)

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
        fused = len(step.views) == 1 and self.optimizer.selective
        if not fused and self.gradients is None:
            self.gradients = self.state.gradients()
        for view, photo in zip(step.views[start:], step.photos[start:]):
            self._run_view(step, view.camera, photo, room, fused)
        if not fused:
            self._update(step)

    def _run_view(self, step, camera, photo, room, fused):
        backend, tally, renderer = self.backend, self.tally, self.renderer
        background = renderer.compositor.background
        splats = backend.project(self.gaussians, camera, step.degree, renderer.near, room)
        lists = backend.tile_lists(splats, camera, room=room)
        if room is None:
            # a splat meets no more rows of tiles than tiles
            tally.note(len(splats), len(lists.items), len(lists.items))
        partial = backend.rasterize(splats, lists, camera, renderer.stop)
        image = backend.compose_layer(lists, partial, camera, background)
        rect = 0, 0, camera.width, camera.height
        gradient, sums = backend.loss(
            image, photo, camera, self._all_tiles(camera), rect, self.settings.ssim_weight
        )
        seeds = backend.compose_layer_backward(gradient, lists, camera, background)
        rows = backend.rasterize_backward(splats, lists, partial, seeds, camera, renderer.stop)
        if fused:
            self._fused(step, camera, splats, rows)
        else:
            backend.project_backward(
                self.gaussians, camera, step.degree, splats, rows, self.gradients, tally
            )
        tally.end_view(splats, sums, 1 / (3 * camera.width * camera.height))

    def _all_tiles(self, camera):
        count = camera.tile_count
        if count not in self.supervised:
            self.supervised[count] = self.backend.xp.ones(count, np.uint8)
        return self.supervised[count]

    def _fused(self, step, camera, splats, rows):
        """Gradient and update in one pass, where one view alone makes the step."""
        state, (rates, common) = self.state, step.update
        statistics = Gradients(*[None] * 7, norm=state.norm, count=state.count)
        self.backend.project_backward_adam(
            self.gaussians, camera, step.degree, splats, rows, statistics, state.first,
            state.second, rates, *common, self.tally,
        )

    def _update(self, step):
        """Adam on the sums of a batch, which are zero again afterwards."""
        state, sums, (rates, common) = self.state, self.gradients, step.update
        groups = [
            (array, getattr(sums, name), state.first[name], state.second[name], rates[name])
            for name, array in self.gaussians.groups()
        ]
        seen = sums.seen if self.optimizer.selective else None
        self.backend.adam_groups(groups, seen, *common, clear=True, tally=self.tally)
        self.tally.clear_seen(sums.seen)
