"""3DGS as Markov chain Monte Carlo (Kheradmand et al. 2024): dead Gaussians are relocated onto
live ones, the scene grows to its limit, positions are disturbed, opacity and size cost.

How many of the new and relocated Gaussians each live one gets is decided without gathering any:
of the m to place, one of weight w among a sum W is to get m w / W. It gets the whole part, and
the rest go to those that finish first in a race of u / (fraction of m w / W), with u uniform
and keyed by id and image count: sequential Poisson sampling (Ohlsson 1998), which places exactly
m, each with the probability of its fraction. Weights are integers, so W is the same on any
ranks; a single search for the m-th finish decides; a Gaussian that is there on one rank count and
not on another disturbs no draw but its own. Independent draws, as in the paper, have the same
means and scatter more.
"""

import logging
from dataclasses import replace

import numpy as np

from ..arrays import module_of
from ..scene.identity import APART, PLACE, child_ids, normal, uniform
from .base import Densifier
from .choice import rising, scene_sums, smallest
from .scatter import scatter

log = logging.getLogger(__name__)

WEIGHT = 1 << 20  # weight of opacity 1: the least that lives, 0.005, has four digits
# Gaussians at one place share at most this opacity: that of more would take the logarithm of a
# number that float32 rounds to zero.
MOST_OPACITY = 1 - 2.0**-20
# Terms of the sum in correction(). Each is at most (-ln(1 - opacity))^j / j!, which for the
# MOST_OPACITY, 13.9^j / j!, is below the last digit of the result from here on.
TERMS = 72
# Standard deviations by which children lie apart. Adam's first steps move a parent and its
# children alike, all by the rate; were they at one place, rounding would say which is in front.
SCATTER = 0.01


class MarkovChain(Densifier):
    """MCMC on this rank's Gaussians."""

    name = "mcmc"
    # the dead are too faint to hide anything, and what a parent hid its children hide in its place
    opens = ()
    needs_dense = True

    def __init__(self, settings, extent, seed, backend=None):
        super().__init__(settings, extent, seed, backend)
        self.scene = 0  # Gaussians of all ranks
        self.warned = False

    def apply(self, state, before, after, total, exchange):
        """See Densifier.apply. Counts dead (those that went) and born: relocated or new."""
        event = self.growth(before, after, total)
        if event is None:
            return dict(dead=0, born=0)
        dead = self._dead(state.gaussians)
        count, gone = scene_sums(exchange, len(dead), int(dead.sum()))
        if gone == count:
            self._warn_dead(count, event, exchange)
            return dict(dead=0, born=0)
        target = min(self.settings.limit, int((1 + self.settings.growth) * count))
        wanted = max(0, target - count) + gone
        children = self._placed(state, dead, wanted, event, exchange)
        self._bear(state, dead, children, event)
        return dict(dead=int(dead.sum()), born=int(children.sum()))

    def follow(self, state, exchange):
        """See Densifier.follow."""
        self.scene = scene_sums(exchange, len(state.gaussians))[0]

    def regularise(self, state, gradients, views, tally=None):
        """See Densifier.regularise. The loss of every image has opacity_cost times the mean
        opacity and scale_cost times the mean scale, in scene extents, of the whole scene."""
        opacity, scale = self.settings.opacity_cost, self.settings.scale_cost
        each = views / max(1, self.scene)
        self.backend.regularise(
            state.gaussians, gradients, opacity * each, scale * each / (3 * self.extent), tally
        )

    def disturb(self, state, rate, before, after, tally=None):
        """See Densifier.disturb: noise of covariance (noise rate S / extent^2)^2, S that of the
        Gaussian: as in the paper, with lengths in scene extents, so that it follows their unit.
        With rates that grow as sqrt(B), a batch of B scatters as B single images do."""
        scale = self.settings.noise * rate / self.extent**2
        self.backend.noise(state.gaussians, self.seed, after, scale, tally)

    def _warn_dead(self, count, images, exchange):
        if not self.warned and exchange.rank == 0:
            log.warning(
                "all %d Gaussians are fainter than densify.prune_opacity at image %d: none is "
                "relocated; lower densify.opacity_cost or train.rates.opacity", count, images,
            )
        self.warned = True

    def _dead(self, gaussians):
        """Too faint to be drawn, or not finite: (n,) bool."""
        finite = gaussians.finite()
        if not finite.all():
            log.warning("%d Gaussians are not finite and are removed", int((~finite).sum()))
        return ~(opacity_of(gaussians) > self.settings.prune_opacity) | ~finite

    def _placed(self, state, dead, count, images, exchange):
        """How many of ``count`` Gaussians each row bears: (n,) int64. Fewer in all where some
        rank has no memory for its share."""
        children = self._race(state.gaussians, dead, count, images, exchange)
        # the limit of the scene is in the count already
        budget = replace(state.budget, scene=0)
        living = len(dead) - int(dead.sum())
        allowed = budget.allowed(exchange, living, int(children.sum()))
        if allowed < count:
            children = self._race(state.gaussians, dead, allowed, images, exchange)
        return children

    def _race(self, gaussians, dead, count, images, exchange):
        """Children of each row, (n,) int64, ``count`` over all ranks; see the module."""
        xp = module_of(dead)
        weight = xp.rint(opacity_of(gaussians) * WEIGHT)
        weight = xp.where(dead, 0, xp.maximum(weight, 1)).astype(np.int64)
        everything = scene_sums(exchange, int(weight.sum()))[0]
        children, rest = xp.divmod(weight * count, everything)
        left = count - scene_sums(exchange, int(children.sum()))[0]
        rows = xp.flatnonzero(rest)
        ids = gaussians.ids[rows]
        finish = uniform(ids, images, PLACE, self.seed, xp) / (rest[rows] / everything)
        children[rows[smallest(rising(finish), ids, left, exchange)]] += 1
        return children

    def _bear(self, state, dead, children, images):
        """Share what rows are among themselves and their children; drop the dead."""
        gaussians, xp = state.gaussians, module_of(dead)
        parents = xp.flatnonzero(children)
        born = children[parents]
        opacity, shrink = correction(opacity_of(gaussians)[parents], born + 1)
        # as peers do: none dies of sharing
        opacity = xp.maximum(opacity, self.settings.prune_opacity)
        gaussians.opacities[parents, 0] = xp.log(opacity / (1 - opacity))
        gaussians.scales[parents] += xp.log(shrink)[:, None].astype(gaussians.dtype)
        for moments in (state.first, state.second):
            for array in moments.values():
                array[parents] = 0
        ends = xp.cumsum(born)
        children = xp.arange(int(born.sum()))
        parent = xp.searchsorted(ends, children, side="right")
        place = children - (ends - born)[parent]
        out = gaussians.take(parents[parent])
        out.ids = child_ids(out.ids, images, place, xp)
        scatter(out, normal(out.ids, images, APART, self.seed, xp), SCATTER)
        state.replace(~dead, out, parents[parent])


def opacity_of(gaussians):
    """Opacities after the sigmoid, (n,) float64 so that they weigh alike in any precision."""
    xp = module_of(gaussians.opacities)
    return 1 / (1 + xp.exp(-gaussians.opacities[:, 0].astype(np.float64)))


def correction(opacity, count):
    """Opacity and factor on the scales for ``count`` Gaussians in place of one, so that what is
    drawn changes least (Kheradmand et al. 2024, equation 9).

    opacity: (n,) float64, of the one; count: (n,) int, the one included. With o' = 1 - (1 -
    o)^(1/N) the factor is o / sum_i sum_k C(i - 1, k) (-1)^k o'^(k+1) / sqrt(k + 1); the sum
    over i = 1..N of C(i - 1, k) is C(N, k + 1). Returns two arrays (n,).
    """
    xp = module_of(opacity)
    opacity = xp.minimum(opacity, MOST_OPACITY)
    shared = -xp.expm1(xp.log1p(-opacity) / count)
    term, total = -xp.ones_like(shared), xp.zeros_like(shared)
    for j in range(1, min(TERMS, int(count.max()) if len(count) else 0) + 1):
        term *= -shared * (count - j + 1) / j
        total += term / j**0.5
    return shared, opacity / xp.where(total > 0, total, 1)
