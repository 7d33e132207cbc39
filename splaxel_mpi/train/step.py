"""One step: a batch of views in chunks, one update of the parameters."""

import logging

import numpy as np

from ..arrays import release
from ..visibility.demand import training
from .loss import view_loss

log = logging.getLogger(__name__)


def forward_backward(renderer, gaussians, views, photos, degree, settings, gradients):
    """Losses of a batch, and gradients of all its views added to ``gradients``.

    views: list of data.base.View; photos: {view index: (height, width, 3) uint8}; settings:
    the train section (chunk, ssim_weight). Collective. Returns (views, 3) float64 of this
    rank's shares: L1, 1 - SSIM, squared error. Parameters do not change, so chunks only bound
    memory and share collectives; the result does not depend on their size. A rank that is alone
    and finds no memory for a chunk takes its views one by one.
    """
    shares, done, chunk = [], 0, settings.chunk
    while done < len(views):
        part = views[done : done + chunk]
        try:
            shares += _chunk(renderer, gaussians, part, photos, degree, settings, gradients)
        except MemoryError:
            # gradients grow at the very end of a chunk, where no large array is made
            if len(part) == 1 or renderer.layout.ranks > 1:
                raise
            log.warning("no memory for %d views at a time: they are taken one by one", len(part))
            release(renderer.backend.xp)
            chunk = 1
            continue
        done += len(part)
    return np.array(shares, np.float64).reshape(-1, 3)


def _chunk(renderer, gaussians, views, photos, degree, settings, gradients):
    """forward_backward of views that share their collectives; a list of shares."""
    cameras, rules = [view.camera for view in views], [training] * len(views)
    works, composed = renderer.draw(gaussians, cameras, degree, rules)
    with renderer.timers("loss"):
        losses = [
            view_loss(renderer.backend, part, photos[view.index], settings.ssim_weight)
            for part, view in zip(composed, views)
        ]
    renderer.back_propagate(
        gaussians, works, composed, [loss.gradient for loss in losses], degree, gradients
    )
    return [(loss.l1, loss.dissimilarity, loss.error) for loss in losses]


def train_step(renderer, optimizer, state, views, photos, degree, settings):
    """One optimizer update from a batch. Returns what forward_backward returns."""
    gradients = state.gradients()
    shares = forward_backward(
        renderer, state.gaussians, views, photos, degree, settings, gradients
    )
    with renderer.timers("adam"):
        optimizer.step(state, gradients, len(views))
    state.images_seen += len(views)
    return shares
