"""One step: a batch of views in chunks, one update of the parameters."""

import logging

import numpy as np

from ..arrays import release
from ..mpi.pipeline import in_flight
from .loss import chunk_loss
from .one_rank import OneRank
from .timers import Timers

log = logging.getLogger(__name__)


def forward_backward(
    renderer, gaussians, views, photos, degree, settings, gradients, chunks=None, observe=None
):
    """Losses of a batch, and gradients of all its views added to ``gradients``.

    views: list of data.base.View; photos: {view index: (height, width, 3) uint8}, on the host or
    the device; settings: the train section (chunk, in_flight, ssim_weight); chunks: views of each
    chunk, None: settings.chunk; observe: function (view, compose.base.ViewWork), called once a
    view has gone both ways.
    Collective. Returns (views, 3) float64 of the backend, this rank's shares: L1, 1 - SSIM,
    squared error.
    Parameters do not change, so chunks only bound memory and share collectives, and while one
    exchanges others are computed; the result does not depend on their size, and not in a bit on
    how many are under way: gradients are added view by view. A rank that is alone has nothing to
    exchange, and so takes one chunk at a time; where it finds no memory for it, view by view.
    """
    shares = []
    depth = settings.in_flight if renderer.layout.ranks > 1 else 1
    parts = _cut(views, chunks or [settings.chunk] * len(views))
    renderer.compositor.start_batch()
    counts = renderer.visible_count, renderer.ghost_count
    while parts:
        flights = (
            _chunk(renderer, gaussians, part, photos, degree, settings, gradients)
            for part in list(parts)
        )
        try:
            for rows, works in in_flight(flights, depth, renderer.exchange.progress):
                part = parts.pop(0)
                for view, work in zip(part, works) if observe else ():
                    observe(view, work)
                shares.append(rows)
                counts = renderer.visible_count, renderer.ghost_count
                del works
        except MemoryError:
            # gradients grow at the very end of a chunk, where no large array is made
            if len(parts[0]) == 1 or renderer.layout.ranks > 1:
                raise
            renderer.visible_count, renderer.ghost_count = counts
            count = len(parts[0])
            log.warning("no memory for %d views at a time: they are taken one by one", count)
            release(renderer.backend.xp)
            parts = [[view] for part in parts for view in part]
    if renderer.saturation:
        renderer.saturation.commit()
    xp = renderer.backend.xp
    return xp.concatenate(shares) if shares else xp.zeros((0, 3))


def _cut(views, sizes):
    """Views in chunks of these sizes, as far as there are any."""
    ends = np.cumsum([0, *sizes]).tolist()
    return [views[a:b] for a, b in zip(ends, ends[1:]) if a < len(views)]


def _chunk(renderer, gaussians, views, photos, degree, settings, gradients):
    """forward_backward of views that share their collectives: generator (mpi.pipeline) that
    returns (shares, works)."""
    cameras, indices = [view.camera for view in views], [view.index for view in views]
    rules = [renderer.compositor.training] * len(views)
    works, composed = yield from renderer.drawing(gaussians, cameras, degree, rules, indices)
    with renderer.timers("loss"):
        photos = [photos[view.index] for view in views]
        loss = chunk_loss(renderer.backend, composed, photos, settings.ssim_weight)
    yield from renderer.back_propagating(
        gaussians, works, composed, loss.gradient, degree, gradients
    )
    return loss.shares, works


class Steps:
    """One update after another. renderer, optimizer: see there; settings: the train section;
    densifier: whose part of every step is done, None for none; observe: as for
    forward_backward, or None."""

    def __init__(self, renderer, optimizer, settings, densifier=None, observe=None):
        self.renderer, self.optimizer, self.settings = renderer, optimizer, settings
        self.densifier, self.observe, self.shrunk = densifier, observe, False
        self.shares = []  # on a device, of steps that it may still be at
        self.photos = None  # of the last step: a device may still read them

    # whether Adam's flags of broken numbers are known to be raised on a rank that is alone: then
    # the guard is to look at once
    troubled = False
    # called on every rank of several between the gradients of a step and its update: what is to
    # travel meanwhile begins here
    before_update = staticmethod(lambda: None)

    def shrink(self):
        """Need less memory from now on: take views one by one. False where they are already."""
        settings = self.settings
        before, self.shrunk = self.shrunk or settings.chunk == settings.in_flight == 1, True
        self.settings = settings.model_copy(update={"chunk": 1, "in_flight": 1})
        return not before

    def step(self, state, views, photos, degree, chunks=None):
        """One optimizer update from a batch.

        photos: as for forward_backward; degree: SH bands used; chunks: as there. Collective.
        Returns this rank's shares of the losses, as forward_backward, of all views whose losses
        are known by now and were not returned before, in order.
        """
        gradients = state.gradients()
        shares = forward_backward(
            self.renderer, state.gaussians, views, photos, degree, self.settings, gradients,
            None if self.shrunk else chunks, self.observe,
        )
        before, after = state.images_seen, state.images_seen + len(views)
        self.before_update()
        with self.renderer.timers("adam"):
            if self.densifier:
                self.densifier.regularise(state, gradients, len(views))
            self.optimizer.step(state, gradients, len(views))
            if self.densifier:
                rate = self.optimizer.rate("means", before, len(views))
                self.densifier.disturb(state, rate, before, after)
        state.images_seen = after
        # those of the step before have been read: this one has waited for the device
        self.photos = photos
        if self.renderer.backend.xp is np:
            return shares
        self.shares.append(shares)
        return np.zeros((0, 3))

    def settle(self):
        """Wait until all steps are done: only then may others look at the state or change it.
        Returns the shares that step has not returned yet."""
        backend, shares, self.shares = self.renderer.backend, self.shares, []
        return backend.to_host(backend.xp.concatenate(shares)) if shares else np.zeros((0, 3))


def make_steps(renderer, optimizer, settings, densifier=None, observe=None):
    """Steps for a rank: those that never wait for the device where they are to be had. The
    renderer and the optimizer are set to what the densifier (None: none) needs.

    observe: as for Steps; one rank alone has nothing to schedule and does not call it.
    """
    if densifier:
        renderer.absolute = densifier.needs_absolute
        optimizer.dense |= densifier.needs_dense
    layout, running = renderer.layout, None
    if layout.ranks == layout.cells == 1:
        background = renderer.compositor.background
        running = renderer.backend.free_running(
            renderer.near, renderer.stop, background, settings.ssim_weight
        )
    if running:
        renderer.timers = Timers()  # what it waits for is the device's time
        return OneRank(renderer, optimizer, running, densifier)
    return Steps(renderer, optimizer, settings, densifier, observe)
