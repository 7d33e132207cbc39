"""The stages of a step on one cell, one by one and as a whole, through the backend's contract."""

import numpy as np

from ...scene.gaussians import GROUPS
from ...train.state import State
from .base import PASSES, Samples
from .floors import Counts

NEAR, STOP, SSIM_WEIGHT = 0.1, 1e-4, 0.2
BACKGROUND = (0.0, 0.0, 0.0)
SEED_BYTE = 0x35  # of a float32 that can be set byte by byte
# the gradient of the image where there is no loss, 6.75e-7
SEED = float(np.frombuffer(bytes([SEED_BYTE] * 4), np.float32)[0])
# The updates are real ones, too small to change a float32.
RATE, BETAS, EPSILON, STEP = 1e-12, (0.9, 0.999), 1e-15, 10
FUSED = "project back + adam"


class Chain:
    """One cell's stages on a view; each leaves on the chain what the next ones take.

    backend: Backend; gaussians: of the cell, which is all of space, on the host; degree: SH degree
    in use. Stages do not wait for the device, where the backend can do that, once run_free is
    called.
    """

    def __init__(self, backend, gaussians, degree):
        self.backend, self.xp, self.degree = backend, backend.xp, degree
        self.state = State.fresh(gaussians.map(backend.to_device), None)
        self.gaussians = self.state.gaussians
        self.out = self.state.gradients()
        self.background = np.array(BACKGROUND, backend.real)
        self.room = None
        self.recorded = {}  # of whole(): by name and size of the image
        self.running = backend.free_running(NEAR, STOP, self.background, SSIM_WEIGHT)
        self.fused = hasattr(backend, "project_backward_adam")
        self.photos = {}

    def run_free(self):
        """From here on make arrays for the largest view so far instead of waiting for counts."""
        if self.running:
            self.running.bind(self.state)
            self.room = self.running.room()

    def whole(self, name):
        """The method of this name as a function without arguments. Once run_free was called its
        launches are recorded in the first view of a size and repeated in the others, as training
        does it."""
        method = getattr(self, name)
        return (lambda: self._replay(name, method)) if self.room else method

    def _replay(self, name, method):
        from ...backends.cuda_launch import Recording

        key, views = (name, self.camera.width, self.camera.height), self.backend.camera_view
        if key in self.recorded:
            recording, places = self.recorded[key]
            for near, copies in places.items():
                for copy in copies:
                    copy[:] = views(self.camera, near).view(np.uint8)
            recording.replay()
            return
        with Recording() as recording:
            method()
        if recording.usable:
            places = {near: recording.places(views(self.camera, near)) for near in (NEAR, 0)}
            self.recorded[key] = recording, places

    def _clear(self, array, byte=0):
        """Set all bytes of an array of the backend."""
        if self.running:
            from ...backends.cuda_launch import fill

            fill(array, byte)
        else:
            array.view(np.uint8)[...] = byte

    def check(self):
        """Raise RuntimeError if a view did not fit and was left out."""
        if self.room and self.room.tally.alarm[0]:
            raise RuntimeError("a view needed more room than the largest before it")

    def stages(self):
        """{name: function} of the stages in order; the ends of the chain are alternatives."""
        stages = {
            "project": self.project,
            "lists": self.list_tiles,
            "rasterize": self.rasterize,
            "compose": self.compose,
            "loss": self.loss,
            "compose back": self.compose_back,
            "rasterize back": self.rasterize_back,
            "zero gradients": self.zero_gradients,
            "project back": self.project_back,
            "adam, selective": lambda: self.adam(self.out.seen),
            "adam, dense": lambda: self.adam(None),
        }
        if self.fused:
            stages[FUSED] = self.project_back_adam
        return stages

    def look(self, camera):
        """Begin a view."""
        self.camera = camera
        size = camera.height, camera.width
        if size not in self.photos:
            random = np.random.default_rng(0)
            photo = random.integers(0, 256, (*size, 3), np.uint8)
            supervised = np.ones(camera.tile_count, np.uint8)
            self.photos[size] = tuple(map(self.backend.to_device, (photo, supervised)))
        self.photo, self.supervised = self.photos[size]
        self.out.seen[...] = 0

    def counts(self):
        """Counts of the view that was drawn, before run_free."""
        if self.running:  # a splat meets no more rows of tiles than tiles
            instances = len(self.lists.items)
            self.running.tally.note(len(self.splats), instances, instances)
        return Counts(
            len(self.gaussians), len(self.splats), int((self.rows != 0).any(axis=1).sum()),
            len(self.lists.items), len(self.lists.tiles), self.camera.width * self.camera.height,
            self.backend.evaluated_pairs(self.lists, self.partial),
        )

    def project(self):
        room = {"room": self.room} if self.room else {}
        self.splats = self.backend.project(self.gaussians, self.camera, self.degree, NEAR, **room)

    def list_tiles(self):
        room = {"room": self.room} if self.room else {}
        self.lists = self.backend.tile_lists(self.splats, self.camera, **room)

    def rasterize(self):
        self.partial = self.backend.rasterize(self.splats, self.lists, self.camera, STOP)

    def compose(self):
        """One layer, the cell alone: straight into the image where the backend has that."""
        if self.running:
            self.image = self.backend.compose_layer(self.lists, self.partial, self.camera,
                                                    self.background)
            return
        held = len(self.lists.tiles)
        self.slots = self.xp.arange(held, dtype=np.int32)[:, None]
        self.tiles, _ = self.backend.compose(self.partial.pixels, self.slots, self.background)

    def lay_out(self):
        """Tiles to an image, between composition and loss."""
        if self.running:
            return
        self.image = self.backend.to_image(self.lists.tiles, self.tiles, self.camera)

    def loss(self):
        whole = 0, 0, self.camera.width, self.camera.height
        self.image_gradient, _ = self.backend.loss(
            self.image, self.photo, self.camera, self.supervised, whole, SSIM_WEIGHT
        )

    def cut_up(self):
        """The image's gradient to tiles, between loss and the gradient of composition."""
        if self.running:
            return
        self.tile_gradient = self.xp.empty_like(self.tiles)
        self.backend.to_tiles(
            self.lists.tiles, self.image_gradient, self.camera, self.tile_gradient
        )

    def compose_back(self):
        if self.running:
            self.seeds = self.backend.compose_layer_backward(
                self.image_gradient, self.lists, self.camera, self.background
            )
            return
        self.seeds = self.backend.compose_backward(
            self.partial.pixels, self.slots, self.background, self.tile_gradient, self.slots,
            len(self.slots),
        )

    def even_seeds(self):
        """A constant gradient of the partial pixels, in place of a loss."""
        self.seeds = self.xp.empty(self.partial.pixels.shape, self.backend.real)
        self._clear(self.seeds, SEED_BYTE)

    def rasterize_back(self):
        self.rows = self.backend.rasterize_backward(
            self.splats, self.lists, self.partial, self.seeds, self.camera, STOP
        )

    def zero_gradients(self):
        for name in GROUPS:
            self._clear(getattr(self.out, name))

    def project_back(self):
        self.backend.project_backward(
            self.gaussians, self.camera, self.degree, self.splats, self.rows, self.out
        )

    def adam(self, seen):
        self.backend.adam_groups(groups_of(self.state), seen, BETAS, EPSILON, STEP, 1.0)

    def project_back_adam(self):
        self.backend.project_backward_adam(
            self.gaussians, self.camera, self.degree, self.splats, self.rows, self.out,
            self.state.first, self.state.second, dict.fromkeys(GROUPS, RATE), BETAS, EPSILON,
            STEP, 1.0,
        )

    def forward(self):
        """Parameters to partial pixels."""
        self.project(), self.list_tiles(), self.rasterize()

    def backward(self):
        """Partial pixels to gradients of all parameters in memory."""
        self.even_seeds(), self.zero_gradients(), self.rasterize_back(), self.project_back()

    def step_without_loss(self):
        """Forward, backward and selective Adam from a constant gradient of the pixels."""
        self.forward(), self.even_seeds(), self.rasterize_back(), self.update()

    def step(self):
        """A whole step: render, loss, backward, selective Adam."""
        self.forward(), self.compose(), self.lay_out(), self.loss(), self.cut_up()
        self.compose_back(), self.rasterize_back(), self.update()

    def update(self):
        """From gradients of splats to new parameters, of one contributing view."""
        self._clear(self.out.seen)
        if self.fused:
            self.project_back_adam()
            return
        self.zero_gradients(), self.project_back(), self.adam(self.out.seen)


def groups_of(state):
    """What Backend.adam_groups takes of a State and its gradients."""
    gradients = state.gradients()
    return [(array, getattr(gradients, name), state.first[name], state.second[name], RATE)
            for name, array in state.gaussians.groups()]


def time_stages(chain, cameras, clock):
    """(Samples of the stages, Counts of each view)."""
    samples, counts = Samples(), []
    between = {"compose": chain.lay_out, "loss": chain.cut_up}
    for turn in range(PASSES):
        for view, camera in enumerate(cameras):
            chain.look(camera)
            for name, stage in chain.stages().items():
                milliseconds = clock.stage(stage)
                between.get(name, lambda: None)()
                if turn:
                    samples.add(name, view, milliseconds)
            if not turn:
                counts.append(chain.counts())
        chain.run_free()
    chain.check()
    return samples, counts
