"""Contract of a densifier: how the set of Gaussians changes during training."""

import math

from ..schedule.events import latest


class Densifier:
    """Grows and prunes Gaussians at events that count images.

    Created with (settings, extent, seed, backend): the densify section, the scene extent, the
    seed of the run, and the backend whose kernels the hooks of every step call. Decisions and
    draws depend on a Gaussian's own arrays, its id, the image count, the seed and integer sums
    over the scene, never on ranks, so any rank count makes the same scene.

    A step calls regularise before the optimizer and disturb after it. needs_dense: every step
    moves every Gaussian, so the optimizer may not pass over those that no view of the batch
    sees. needs_absolute: statistics are of absolute screen gradients, see
    Backend.rasterize_backward.
    """

    name = ""
    opens = ()  # counts of apply() that let light through where there was none
    needs_dense = needs_absolute = False

    def __init__(self, settings, extent, seed, backend=None):
        self.settings, self.extent, self.seed, self.backend = settings, extent, seed, backend

    def growth(self, before, after, total):
        """Image count of the growth event that lies between two counts, None without one."""
        end = self.last_event(after, total)
        return latest(max(before, self.settings.start), end, self.settings.every)

    def last_event(self, after, total):
        """Last image count up to ``after`` that may have an event. 0 at the end of a run, where
        no step follows that could put right what an event disturbs."""
        stop = math.ceil(self.settings.stop_fraction * total) - 1
        return min(after, stop) if after < total else 0

    def due(self, before, after, total):
        """True when an event lies between two image counts (before < event <= after)."""
        return self.growth(before, after, total) is not None

    def apply(self, state, before, after, total, exchange):
        """Change the rows of ``state`` in place. Collective over the ranks of ``exchange``.

        total: images of the run. Returns a dict of counts of this rank, the same names on all.
        Rows are then out of cell order; the caller migrates them.
        """
        raise NotImplementedError

    def follow(self, state, exchange):
        """Learn how many Gaussians the scene has, before the first step and whenever rows were
        added or removed. Collective."""

    def regularise(self, state, gradients, views, tally=None):
        """Add to the gradients, which are sums over ``views`` images, before the optimizer
        divides them. tally: see Backend.regularise."""

    def disturb(self, state, rate, before, after, tally=None):
        """Move Gaussians after an update. rate: learning rate of the positions in that update,
        world units; before, after: image counts of its batch; tally: see Backend.noise."""
