"""Views of one rank with one cell, forward and backward, without waiting for the GPU."""

from dataclasses import dataclass

import numpy as np

from ..scene.gaussians import GROUPS
from .base import Gradients
from .cuda_adam import GROUP, MOST_GROUPS, steps_of
from .cuda_launch import Recording
from .cuda_tally import Tally

# Recordings that are kept, for photographs in two formats; each holds the arrays of a view.
MOST_RECORDINGS = 2


@dataclass
class Recorded:
    """A recording and what differs from one use to the next: copies as in Recording.places."""

    recording: Recording
    views: dict  # near plane -> copies of View<float>
    photo: list
    steps: list  # copies of the AdamStep of every group, (6, 8) float32


class FreeRunning:
    """The stages of a view in their order, and the update of a batch.

    Nothing but the image of the only cell is composed. With a Room counts stay on the GPU and
    nothing waits; without, every stage has arrays of the exact size. What a view adds and the
    update of a batch are left out once the tally is stopped. ``stop`` as in Backend.rasterize,
    background: (3,), ssim_weight as in Backend.loss.
    """

    def __init__(self, backend, near, stop, background, ssim_weight):
        self.backend, self.near, self.stop = backend, near, stop
        self.background, self.ssim_weight = background, ssim_weight
        self.tally = Tally()
        self.absolute = False  # statistics are of absolute screen gradients
        self.broken = None  # flags of Backend.adam_groups
        self.supervised = {}  # tile count -> ones on the device
        self.release()

    def bind(self, state):
        """Work on the arrays of a train.state.State until release."""
        self.state, self.gaussians = state, state.gaussians

    def release(self):
        """Let go of the arrays: others may change or replace them."""
        self.state = self.gaussians = self.gradients = None
        self.recordings = {}

    def reserve(self, views):
        """Be ready for a batch of so many views. Losses have just been collected."""
        if views > self.tally.views:
            self.recordings = {}  # they write to the old losses
            self.tally.reserve(views)

    def room(self):
        """A Room for the next view, from what earlier ones needed."""
        return self.tally.room(len(self.gaussians))

    def view(self, camera, photo, degree, room, update=None):
        """Loss and gradients of a view.

        photo: (height, width, 3) uint8 on the device; degree: SH bands used; room: Room, or None
        to wait for counts; update: None to add to the gradients of a batch, or what
        Optimizer.arguments gives, for a selective step from this view alone.
        """
        if room is None:
            self._view(camera, photo, degree, None, update)
            return
        key = camera.width, camera.height, degree, room, update is None
        recorded = self.recordings.get(key)
        if recorded:
            self._patch(recorded, camera, photo, update)
            recorded.recording.replay()
            return
        self._forget()
        with Recording() as recording:
            self._view(camera, photo, degree, room, update)
        if recording.usable:
            self.recordings[key] = self._places(recording, camera, photo)

    def update(self, update, selective):
        """Adam on the gradients of a batch, which are zero again afterwards."""
        recorded = self.recordings.get(selective)
        if recorded:
            self._patch(recorded, None, None, update)
            recorded.recording.replay()
            return
        with Recording() as recording:
            self._update(update, selective)
        self.recordings[selective] = self._places(recording, None, None)

    def _view(self, camera, photo, degree, room, update):
        backend = self.backend
        splats = backend.project(self.gaussians, camera, degree, self.near, room)
        lists = backend.tile_lists(splats, camera, room=room)
        if room is None:
            # a splat meets no more rows of tiles than tiles
            self.tally.note(len(splats), len(lists.items), len(lists.items))
        partial = backend.rasterize(splats, lists, camera, self.stop)
        image = backend.compose_layer(lists, partial, camera, self.background)
        rect = 0, 0, camera.width, camera.height
        gradient, sums = backend.loss(
            image, photo, camera, self._all_tiles(camera), rect, self.ssim_weight
        )
        seeds = backend.compose_layer_backward(gradient, lists, camera, self.background)
        rows = backend.rasterize_backward(
            splats, lists, partial, seeds, camera, self.stop, self.absolute
        )
        if update is None:
            self._add_gradients(camera, degree, splats, rows)
        else:
            self._step(camera, degree, splats, rows, *update)
        scale = 1 / (3 * camera.width * camera.height)
        self.tally.end_view(splats, sums, scale, self.broken)

    def _all_tiles(self, camera):
        count = camera.tile_count
        if count not in self.supervised:
            self.supervised[count] = self.backend.xp.ones(count, np.uint8)
        return self.supervised[count]

    def _add_gradients(self, camera, degree, splats, rows):
        if self.gradients is None:
            self.gradients = self.state.gradients()
        self.backend.project_backward(
            self.gaussians, camera, degree, splats, rows, self.gradients, self.tally
        )

    def _step(self, camera, degree, splats, rows, rates, common):
        """Gradient and selective update in one pass."""
        state = self.state
        statistics = Gradients(*[None] * 7, norm=state.norm, count=state.count)
        self.backend.project_backward_adam(
            self.gaussians, camera, degree, splats, rows, statistics, state.first, state.second,
            rates, *common, broken=self.broken, tally=self.tally,
        )

    def _update(self, update, selective):
        state, sums, (rates, common) = self.state, self.gradients, update
        groups = [
            (array, getattr(sums, name), state.first[name], state.second[name], rates[name])
            for name, array in self.gaussians.groups()
        ]
        seen = sums.seen if selective else None
        self.backend.adam_groups(
            groups, seen, *common, clear=True, broken=self.broken, tally=self.tally
        )
        self.tally.clear_seen(sums.seen)

    def _forget(self):
        """Make room for one more recording; those for another Room will not be used again."""
        views = [key for key in self.recordings if isinstance(key, tuple)]
        if len(views) >= MOST_RECORDINGS:
            for key in views:
                del self.recordings[key]

    def _places(self, recording, camera, photo):
        nears = () if camera is None else (self.near, 0)
        views = {near: recording.places(self.backend.camera_view(camera, near)) for near in nears}
        tables = recording.structures(MOST_GROUPS * GROUP.itemsize)
        steps = [copy.view(GROUP)["step"] for copy in tables]
        return Recorded(recording, views, recording.places(photo), steps)

    def _patch(self, recorded, camera, photo, update):
        """Give a recording the arguments of this use."""
        for near, copies in recorded.views.items():
            for copy in copies:
                copy[:] = self.backend.camera_view(camera, near).view(np.uint8)
        if photo is not None:
            for copy in recorded.photo:
                copy.view(np.uint64)[0] = photo.data.ptr
        if update is not None:
            rates, common = update
            steps = steps_of([rates[name] for name in GROUPS], *common)
            for copy in recorded.steps:
                copy[:] = steps
