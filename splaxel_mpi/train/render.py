"""From Gaussians to composed pixels and back, for the views of one chunk."""

from copy import copy

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
        works = [ViewWork(camera) for camera in cameras]
        with self.timers("project"):
            projected = self.backend.project_views(gaussians, cameras, degree, self.near)
        if self.saturation and indices is not None:
            share = self.saturation.share(works, indices, self.exchange, self.layout)
            yield from self.timers.over("masks", share)
        ghosts = copy(self.ghosts)  # knows the way back of this chunk
        sent = yield from self.timers.over("ghosts", ghosts.send(works, projected))
        self.ghost_count += sent
        for work in works:
            work.routed = ghosts
            self.visible_count += len(work.splats)
        yield from self._rasterize(works)
        self.exchange.progress()
        compose = self.compositor.compose(works, rules)
        return works, (yield from self.timers.over("compose", compose))

    def back_propagating(self, gaussians, works, composed, gradient, degree, out):
        """Carry dL/dC to the parameters; a generator, see mpi.pipeline.

        gradient: (n, 3, 256) on the composed tiles of all views, view after view; out: Gradients,
        added to. Collective.
        """
        backward = self.compositor.backward(works, composed, gradient)
        seeds = yield from self.timers.over("compose back", backward)
        with self.timers("rasterize back"):
            rows = self._rasterize_backward(works, seeds)
        self.exchange.progress()
        if self.saturation and works[0].masks is not None:
            yield from self.timers.over("masks", self.compositor.judge(works, composed))
            with self.timers("masks"):
                self.saturation.judge(works, composed, self.layout)
        give_back = works[0].routed.give_back(works, rows, self.gradient_width)
        yield from self.timers.over("ghosts back", give_back)
        self.gradient_sums += [self.backend.finite_sum(work.gradient) for work in works]
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

    def _rasterize(self, works):
        """Tile lists and partial pixels of a chunk; a generator, see mpi.pipeline."""
        parts = [part for work in works for part in work.parts]
        with self.timers("sort"):
            pending = self.backend.start_tile_lists(self.jobs(works))
        yield  # the device counts instances
        with self.timers("sort"):
            for part, lists in zip(parts, pending.take()):
                part.lists, part.held = lists, lists.held
        with self.timers("rasterize"):
            partials = self.backend.rasterize_all(_drawn(works), self.stop)
            for part, partial in zip(parts, partials):
                part.partial = partial

    def jobs(self, works):
        """Arguments of start_tile_lists for a chunk."""
        jobs = []
        for work in works:
            limits = self.boundary.limits(self.layout, work.camera)
            for part, (box, covered) in zip(work.parts, limits):
                mask = work.masks.live(part.cell) if work.masks is not None else None
                jobs.append((part.splats, work.camera, box, mask, covered))
        return jobs

    def _rasterize_backward(self, works, seeds):
        """Splat gradients of a chunk: per view a list over local cells, (n, gradient_width)."""
        out = works[0].routed.gradient_rows(self.gradient_width)
        found = iter(self.backend.rasterize_all_backward(
            _drawn(works), [part.partial for work in works for part in work.parts],
            [seed for of_view in seeds for seed in of_view], self.stop, self.absolute,
            [rows for of_view in out for rows in of_view],
        ))
        return [[next(found) for _ in work.parts] for work in works]


def _drawn(works):
    """What Backend.rasterize_all takes of a chunk."""
    return [(part.splats, part.lists, work.camera) for work in works for part in work.parts]
