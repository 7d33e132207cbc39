"""From Gaussians to composed pixels and back, for the views of one chunk."""

from copy import copy

import numpy as np

from ..backends.base import ABSOLUTE_GRADIENT, SPLAT_GRADIENT
from ..compose.base import ViewWork
from ..compose.boundary import Exact
from ..compose.ghosts import Ghosts
from ..mpi.pipeline import alone
from .timers import make_timers


class Renderer:
    """The rendering stages of design section 2 on one rank's cells.

    backend, exchange, layout: see their contracts; compositor: compose.base.Compositor;
    near, stop: settings of section render; boundary: one of compose.boundary (None: exact);
    saturation: visibility.saturation.Saturation (None: every tile is live). absolute:
    densification statistics are of absolute screen gradients.
    """

    def __init__(
        self, backend, exchange, layout, compositor, near, stop, boundary=None, saturation=None
    ):
        self.backend, self.exchange = backend, exchange
        self.boundary = boundary or Exact()
        self.compositor = compositor
        self.ghosts = Ghosts(backend, exchange, layout, self.boundary.ghosts)
        self.near, self.stop, self.saturation, self.layout = near, stop, saturation, layout
        self.set_layout(layout)
        self.timers = make_timers(backend)
        self.ghost_count = self.visible_count = 0
        self.absolute = False
        self.gradient_sums = []  # of the splat gradients of each view, for the guard

    def set_layout(self, layout):
        """Follow the cells, and their rows after a migration. Masks are of one tree only."""
        if self.saturation and layout.tree is not self.layout.tree:
            self.saturation.clear()
        self.layout = self.compositor.layout = self.ghosts.layout = layout

    @property
    def gradient_width(self):
        """Columns of a splat gradient."""
        return ABSOLUTE_GRADIENT if self.absolute else SPLAT_GRADIENT

    def draw(self, *arguments):
        """drawing, with nothing beside it."""
        return alone(self.drawing(*arguments))

    def drawing(self, gaussians, cameras, degree, rules, indices=None):
        """Render a chunk of views; a generator, see mpi.pipeline.

        gaussians: this rank's, grouped by cell as in the layout; cameras: list of Camera;
        degree: SH bands used; rules: one of visibility.demand for each camera; indices: of
        the views, None for views without masks. Collective. Returns (works, composed), lists
        over views.
        """
        with self.timers("project"):
            works = [self._project(gaussians, camera, degree) for camera in cameras]
        if self.saturation and indices is not None:
            share = self.saturation.share(works, indices, self.exchange, self.layout)
            yield from self.timers.over("masks", share)
        ghosts = copy(self.ghosts)  # knows the way back of this chunk
        yield from self.timers.over("ghosts", ghosts.send(works))
        self.ghost_count += ghosts.count()
        for work in works:
            work.routed = ghosts
            limits = self.boundary.limits(self.layout, work.camera)
            for part, (box, covered) in zip(work.parts, limits):
                self._rasterize(work, part, box, covered)
            self.exchange.progress()
        compose = self.compositor.compose(works, rules)
        return works, (yield from self.timers.over("compose", compose))

    def back_propagating(self, gaussians, works, composed, gradients, degree, out):
        """Carry dL/dC to the parameters; a generator, see mpi.pipeline.

        gradients: per view (n, 3, 256) on composed.tiles; out: Gradients, added to. Collective.
        """
        backward = self.compositor.backward(works, composed, gradients)
        seeds = yield from self.timers.over("compose back", backward)
        if self.saturation and works[0].masks is not None:
            with self.timers("masks"):
                self.saturation.judge(works, composed, self.layout, self.backend)
        with self.timers("rasterize back"):
            rows = [
                [self._rasterize_backward(work, part, seed) for part, seed in zip(work.parts, s)]
                for work, s in zip(works, seeds)
            ]
        self.exchange.progress()
        give_back = works[0].routed.give_back(works, rows, self.gradient_width)
        yield from self.timers.over("ghosts back", give_back)
        self.gradient_sums += [_sum(work.gradient) for work in works]
        with self.timers("project back"):
            for work in works:
                self.backend.project_backward(
                    gaussians, work.camera, degree, work.splats, work.gradient, out
                )

    def take_counts(self):
        """Visible splats and ghosts sent since the last call, summed over views."""
        out = self.visible_count, self.ghost_count
        self.visible_count = self.ghost_count = 0
        return out

    def take_gradient_sums(self):
        """Sums of splat gradients since the last call, one a view: not finite where a gradient
        is not."""
        out, self.gradient_sums = self.gradient_sums, []
        return out

    def _project(self, gaussians, camera, degree):
        splats = self.backend.project(gaussians, camera, degree, self.near)
        self.visible_count += len(splats)
        return ViewWork(camera, splats)

    def _rasterize(self, work, part, box, covered):
        """Tile lists and partial pixels of one (view, cell)."""
        with self.timers("sort"):
            if covered is not None:
                covered = self.backend.to_device(covered)
            mask = work.masks.live(part.cell) if work.masks is not None else None
            if mask is not None:
                mask = self.backend.to_device(mask)
            part.lists = self.backend.tile_lists(part.splats, work.camera, box, mask, covered)
        with self.timers("rasterize"):
            part.partial = self.backend.rasterize(
                part.splats, part.lists, work.camera, self.stop
            )

    def _rasterize_backward(self, work, part, seed):
        """Splat gradients of one (view, cell), (n, 9), or (n, 11) where absolute."""
        if len(part.held) == 0:
            return self.backend.zeros((len(part.splats), self.gradient_width))
        return self.backend.rasterize_backward(
            part.splats, part.lists, part.partial, seed, work.camera, self.stop, self.absolute
        )


def _sum(array):
    """Sum of all values, a number or an array () on a device."""
    with np.errstate(over="ignore", invalid="ignore"):
        return array.sum()
