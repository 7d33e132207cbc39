"""Adaptive density control: clone, split, prune, opacity reset (paper section 2 and its source,
3DGS section 5)."""

import logging
import math

import numpy as np

from ..arrays import module_of
from ..scene.gaussians import Gaussians
from ..scene.identity import child_ids, normal
from ..schedule.events import crossed
from .base import Densifier
from .choice import falling, smallest
from .scatter import scatter

log = logging.getLogger(__name__)

# A split Gaussian becomes two of this fraction of its size, as 3DGS has it.
SPLIT_SHRINK = 1.6
# Pruned Gaussians above this opacity may have hidden what is behind them: each leaves at least
# 1 / (1 - 0.1) of the light that it received, and their removal adds up over a pixel. Halves and
# clones stand where their parents did; what shines through them is found at the next visits.
OPAQUE = 0.1
# Part of growth after which opacities are not reset any more. Of a reset at 3000 images many
# Gaussians do not come back (5 % on a drone survey, 12 % on a room), and growth that ended at 3500
# had no time to replace them: 0.5 dB on the survey.
RESET_UNTIL = 0.8


class AdaptiveDensity(Densifier):
    """ADC on this rank's Gaussians; with absgrad by the sums of absolute gradients of AbsGS
    (Ye et al. 2024), which do not cancel over a Gaussian's pixels."""

    name = "adc"
    opens = ("opaque", "reset")

    @property
    def needs_absolute(self):
        """See Densifier."""
        return self.settings.absgrad

    def _resetting(self, before, after, total):
        last = min(self._last_reset(total), self.last_event(after, total))
        return crossed(before, last, self.settings.reset_every)

    def _last_reset(self, total):
        """Image count up to which opacities may be reset."""
        return math.floor(RESET_UNTIL * self.settings.stop_fraction * total)

    def due(self, before, after, total):
        """See Densifier.due."""
        return super().due(before, after, total) or self._resetting(before, after, total)

    def apply(self, state, before, after, total, exchange):
        """See Densifier.apply. Counts cloned, split, pruned, opaque (of the pruned) and reset."""
        done = dict(cloned=0, split=0, pruned=0, opaque=0, reset=0)
        event = self.growth(before, after, total)
        if event is not None:
            done.update(self._grow(state, event, exchange))
            done.update(self._prune(state, event, total))
            state.clear_statistics()
        if self._resetting(before, after, total):
            done["reset"] = self._reset(state)
        return done

    def _grow(self, state, images, exchange):
        """Clone small and split large Gaussians whose mean screen gradient is high."""
        gaussians, xp = state.gaussians, module_of(state.norm)
        high = self._high(state, exchange)
        small = xp.exp(gaussians.scales.max(1)) <= self.settings.size * self.extent
        clone, split = xp.flatnonzero(high & small), xp.flatnonzero(high & ~small)
        children = [_clones(gaussians, clone, images)]
        children += [_halves(gaussians, split, images, k, self.seed) for k in (1, 2)]
        keep = xp.ones(len(gaussians), bool)
        keep[split] = False
        parents = xp.concatenate([clone, split, split])
        state.replace(keep, Gaussians.concatenate(children, xp), parents)
        return dict(cloned=len(clone), split=len(split))

    def _high(self, state, exchange):
        """Those that grow, (n,) bool: mean gradient above the threshold, and of these the
        highest where the budget has no room for all. Each adds one Gaussian."""
        xp = module_of(state.norm)
        counts = xp.maximum(state.count, 1)
        high = state.norm > self.settings.least_gradient * counts
        wanted = int(high.sum())
        allowed = state.budget.allowed(exchange, len(high), wanted)
        rows = xp.flatnonzero(high)
        mean = state.norm[rows].astype(np.float64) / counts[rows]
        chosen = smallest(falling(mean), state.gaussians.ids[rows], allowed, exchange)
        high[rows[~chosen]] = False
        return high

    def _prune(self, state, images, total):
        """Drop Gaussians that are nearly transparent, oversized or not finite. Counts of them, and
        of the opaque ones among them."""
        gaussians, settings, xp = state.gaussians, self.settings, module_of(state.norm)
        opacity = 1 / (1 + xp.exp(-gaussians.opacities[:, 0]))
        keep = opacity >= settings.prune_opacity
        finite = gaussians.finite()
        if not finite.all():
            log.warning("%d Gaussians are not finite and are removed", int((~finite).sum()))
        keep &= finite
        # sizes are trusted only after a reset has thinned out what hides behind opaque ones
        if 0 < settings.reset_every < images and settings.reset_every <= self._last_reset(total):
            keep &= xp.exp(gaussians.scales.max(1)) <= settings.prune_scale * self.extent
        opaque = int((~keep & ~(opacity < OPAQUE)).sum())
        state.replace(keep, None)
        return dict(pruned=int(len(keep) - keep.sum()), opaque=opaque)

    def _reset(self, state):
        """Lower every opacity to reset_opacity and forget its moments."""
        top = np.log(self.settings.reset_opacity / (1 - self.settings.reset_opacity))
        opacities = state.gaussians.opacities
        module_of(opacities).minimum(opacities, opacities.dtype.type(top), out=opacities)
        state.first["opacities"][:] = 0
        state.second["opacities"][:] = 0
        return len(opacities)


def _clones(gaussians, rows, images):
    """Copies of rows under new ids."""
    out = gaussians.take(rows)
    out.ids = child_ids(gaussians.ids[rows], images, 0, module_of(rows))
    return out


def _halves(gaussians, rows, images, k, seed):
    """The k-th (1 or 2) child of each split row: drawn from the parent, shrunk."""
    xp = module_of(rows)
    out, ids = gaussians.take(rows), gaussians.ids[rows]
    scatter(out, normal(ids, images, k, seed, xp))
    out.scales -= out.dtype.type(np.log(SPLIT_SHRINK))
    out.ids = child_ids(ids, images, k, xp)
    return out
