"""Adaptive density control: clone, split, prune, opacity reset (paper section 2 and its source,
3DGS section 5)."""

import logging
import math

import numpy as np

from ..arrays import module_of
from ..scene.gaussians import Gaussians
from ..scene.identity import child_ids, normal
from ..schedule.events import crossed, latest
from .base import Densifier

log = logging.getLogger(__name__)

# A split Gaussian becomes two of this fraction of its size, as 3DGS has it.
SPLIT_SHRINK = 1.6
# Pruned Gaussians above this opacity may have hidden what is behind them: each leaves at least
# 1 / (1 - 0.1) of the light that it received, and their removal adds up over a pixel. Halves and
# clones stand where their parents did; what shines through them is found at the next visits.
OPAQUE = 0.1


class AdaptiveDensity(Densifier):
    """ADC on this rank's Gaussians."""

    name = "adc"
    opens = ("opaque", "reset")

    def __init__(self, settings, extent, seed):
        self.settings, self.extent, self.seed = settings, extent, seed

    def _growth(self, before, after, total):
        """Image count of the growth event that lies between two counts, None without one."""
        end = self._end(after, total)
        return latest(max(before, self.settings.start), end, self.settings.every)

    def _resetting(self, before, after, total):
        return crossed(before, self._end(after, total), self.settings.reset_every)

    def _end(self, after, total):
        """Last image count that may have an event. None at the end of a run, where no step
        follows that could put right what an event disturbs."""
        stop = math.ceil(self.settings.stop * total) - 1
        return min(after, stop) if after < total else 0

    def due(self, before, after, total):
        """See Densifier.due."""
        growth = self._growth(before, after, total)
        return growth is not None or self._resetting(before, after, total)

    def apply(self, state, before, after, total, exchange):
        """See Densifier.apply."""
        done = dict(cloned=0, split=0, pruned=0, opaque=0, reset=0)
        event = self._growth(before, after, total)
        if event is not None:
            done.update(self._grow(state, event))
            done.update(self._prune(state, event))
            state.norm[:], state.count[:] = 0, 0
        if self._resetting(before, after, total):
            done["reset"] = self._reset(state)
        return done

    def _grow(self, state, images):
        """Clone small and split large Gaussians whose mean screen gradient is high."""
        gaussians, xp = state.gaussians, module_of(state.norm)
        high = state.norm > self.settings.threshold * xp.maximum(state.count, 1)
        small = xp.exp(gaussians.scales.max(1)) <= self.settings.size * self.extent
        clone, split = xp.flatnonzero(high & small), xp.flatnonzero(high & ~small)
        children = [_clones(gaussians, clone, images)]
        children += [_halves(gaussians, split, images, k, self.seed) for k in (1, 2)]
        keep = xp.ones(len(gaussians), bool)
        keep[split] = False
        state.replace(keep, Gaussians.concatenate(children, xp))
        return dict(cloned=len(clone), split=len(split))

    def _prune(self, state, images):
        """Drop Gaussians that are nearly transparent, oversized or not finite. Counts of them, and
        of the opaque ones among them."""
        gaussians, settings, xp = state.gaussians, self.settings, module_of(state.norm)
        opacity = 1 / (1 + xp.exp(-gaussians.opacities[:, 0]))
        keep = opacity >= settings.prune_opacity
        finite = xp.ones(len(gaussians), bool)
        for _, array in gaussians.groups():
            finite &= xp.isfinite(array).all(1)
        if not finite.all():
            log.warning("%d Gaussians are not finite and are removed", int((~finite).sum()))
        keep &= finite
        # sizes are trusted only after a reset has thinned out what hides behind opaque ones
        if settings.reset_every and images > settings.reset_every:
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
    offset = normal(ids, images, k, seed, xp).astype(out.dtype) * xp.exp(out.scales)
    out.means += (rotations(out.quats) * offset[:, None, :]).sum(2)
    out.scales -= out.dtype.type(np.log(SPLIT_SHRINK))
    out.ids = child_ids(ids, images, k, xp)
    return out


def rotations(quats):
    """Rotation matrices (n, 3, 3) of quaternions (n, 4), w first, any length but zero."""
    xp = module_of(quats)
    length = xp.sqrt((quats * quats).sum(1, keepdims=True))
    w, x, y, z = (quats / xp.maximum(length, 1e-12)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return xp.stack([xp.stack(row, axis=-1) for row in rows], axis=1)
