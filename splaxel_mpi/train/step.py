"""One step: a batch of views in chunks, one update of the parameters."""

import numpy as np

from ..visibility.demand import training
from .loss import view_loss


def forward_backward(renderer, gaussians, views, photos, degree, settings, gradients):
    """Losses of a batch, and gradients of all its views added to ``gradients``.

    views: list of data.base.View; photos: {view index: (height, width, 3) uint8}; settings:
    the train section (chunk, ssim_weight). Collective. Returns (views, 3) float64 of this
    rank's shares: L1, 1 - SSIM, squared error. Parameters do not change, so chunks only bound
    memory and share collectives; the result does not depend on their size.
    """
    shares = []
    for start in range(0, len(views), settings.chunk):
        chunk = views[start : start + settings.chunk]
        cameras = [view.camera for view in chunk]
        rules = [training] * len(chunk)
        works, composed = renderer.draw(gaussians, cameras, degree, rules)
        with renderer.timers("loss"):
            losses = [
                view_loss(renderer.backend, part, photos[view.index], settings.ssim_weight)
                for part, view in zip(composed, chunk)
            ]
        renderer.back_propagate(
            gaussians, works, composed, [loss.gradient for loss in losses], degree, gradients
        )
        shares += [(loss.l1, loss.dissimilarity, loss.error) for loss in losses]
    return np.array(shares, np.float64).reshape(-1, 3)


def train_step(renderer, optimizer, state, views, photos, degree, settings, densifier=None):
    """One optimizer update from a batch, with what the densifier (None: none) does in every
    step. Returns what forward_backward returns."""
    gradients = state.gradients()
    shares = forward_backward(
        renderer, state.gaussians, views, photos, degree, settings, gradients
    )
    before, after = state.images_seen, state.images_seen + len(views)
    with renderer.timers("adam"):
        if densifier:
            densifier.regularise(state, gradients, len(views))
        optimizer.step(state, gradients, len(views))
        if densifier:
            densifier.disturb(state, optimizer.rate("means", before, len(views)), before, after)
    state.images_seen = after
    return shares
