"""MCMC on hand-made states: who is relocated where, what the shared opacity and size draw, how
the noise and the regularisers act, and that none of it depends on the ranks."""

import logging
from math import comb

import numpy as np
import pytest
from exchanges import SelfExchange, run_ranks
from scenes import random_gaussians

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.densify import make_densifier
from splaxel_mpi.densify.mcmc import correction
from splaxel_mpi.densify.scatter import rotations
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.scene.identity import NOISE, normal
from splaxel_mpi.settings import Densify
from splaxel_mpi.train.state import State

EXTENT, TOTAL, EVENT = 2.0, 30000, 600
DEAD = 0.001  # opacity


def make_state(opacity, real=np.float64):
    """State with these opacities; ids from 100, moments of 1."""
    count = len(opacity)
    gaussians = random_gaussians(count, 3, real)
    opacity = np.asarray(opacity, np.float64)
    gaussians.opacities[:, 0] = np.log(opacity / (1 - opacity))
    gaussians.ids[:] = 100 + np.arange(count)
    state = State.fresh(gaussians, np.array([0, count]))
    for moments in (state.first, state.second):
        for array in moments.values():
            array[:] = 1
    return state


def densifier(limit, backend=None, seed=0, **settings):
    settings = Densify(method="mcmc", limit=limit, **settings)
    return make_densifier(settings, EXTENT, seed, backend)


def grow(state, limit, exchange=None, event=EVENT, **settings):
    method = densifier(limit, **settings)
    return method.apply(state, event - 1, event, TOTAL, exchange or SelfExchange())


def opacities(state):
    return 1 / (1 + np.exp(-state.gaussians.opacities[:, 0]))


def test_correction_is_the_formula_of_the_paper():
    """Written out as in the paper, with its double sum, to the rounding of alternating sums."""
    for opacity in (0.006, 0.3, 0.9, 0.999):
        for count in (1, 2, 3, 7, 20):
            shared = 1 - (1 - opacity) ** (1 / count)
            total = sum(
                comb(i - 1, k) * (-1) ** k * shared ** (k + 1) / np.sqrt(k + 1)
                for i in range(1, count + 1) for k in range(i)
            )
            found = correction(np.array([opacity]), np.array([count]))
            np.testing.assert_allclose(np.ravel(found), [shared, opacity / total], rtol=1e-9)
    assert len(correction(np.zeros(0), np.zeros(0, int))[0]) == 0


def test_correction_stays_finite_for_any_number():
    """Opacities up to 1 among up to a million: N opaque discs of one size would cover more, so
    sizes shrink, towards a limit as N grows."""
    count = np.array([1, 2, 51, 52, 10**3, 10**6])
    for opacity in (0.005, 0.5, 1.0):
        shared, factor = correction(np.full(6, opacity), count)
        assert (shared > 0).all() and (np.diff(shared) < 0).all()
        assert factor[0] == 1 and (0 < factor).all() and (np.diff(factor) <= 1e-9).all()
        assert abs(factor[-1] - factor[-2]) < 2e-3


def family_of(state, before, parent):
    """Rows of a parent and its children: what no event changes is their colour."""
    return np.flatnonzero((state.gaussians.sh0 == before.sh0[parent]).all(1))


def covariance(gaussians):
    """R diag(s^2) R^T, (n, 3, 3)."""
    turn = rotations(gaussians.quats)
    return np.einsum("nij,nj,nkj->nik", turn, np.exp(2 * gaussians.scales), turn)


def test_dead_ones_move_to_live_ones():
    state = make_state([0.5, DEAD, 0.25, DEAD])
    before = state.gaussians.take(np.arange(4))
    assert grow(state, 4) == dict(dead=2, born=2)
    assert len(state.gaussians) == 4 == len(set(state.gaussians.ids))
    assert not np.isin([101, 103], state.gaussians.ids).any()
    assert np.isin([100, 102], state.gaussians.ids).all()
    for parent in (0, 2):
        family = family_of(state, before, parent)
        count = len(family)
        shared, factor = correction(
            1 / (1 + np.exp(-before.opacities[parent])), np.array([count])
        )
        np.testing.assert_allclose(opacities(state)[family], shared[0], rtol=1e-12)
        scales = before.scales[parent] + np.log(factor)
        np.testing.assert_allclose(state.gaussians.scales[family], [scales] * count, rtol=1e-12)
        # apart by a hundredth of their size, so that rounding does not say which is in front
        offset = state.gaussians.means[family] - before.means[parent]
        sigma = np.sqrt(np.diag(covariance(before)[parent]))
        old = np.flatnonzero(state.gaussians.ids[family] == before.ids[parent])
        assert not offset[old].any() and (abs(offset) < 0.06 * sigma).all()
        assert (np.delete(abs(offset), old, 0) > 1e-6 * sigma).all()
        # as the moments of Adam belong to what is no longer there
        moved = count > 1
        for name in GROUPS:
            assert state.first[name][family].any() != moved, name


def test_growth_is_by_five_percent_up_to_the_limit():
    state = make_state([0.3] * 200)
    counts = []
    for event in range(600, 1200, 100):
        grow(state, 240, event=event)
        counts.append(len(state.gaussians))
    assert counts == [210, 220, 231, 240, 240, 240]
    assert len(set(state.gaussians.ids)) == 240


def test_expected_shares_follow_opacity():
    """Over many image counts a Gaussian gets children in proportion to its opacity; within 5
    standard errors of independent draws, which scatter more."""
    opacity = np.array([0.02, 0.1, 0.3, 0.58])
    got = np.zeros(4)
    events = range(600, 600 + 100 * 200, 100)
    for event in events:
        state = make_state([*opacity, DEAD, DEAD, DEAD])
        before = state.gaussians.take(np.arange(4))
        grow(state, 7, event=event, stop=1.0)
        got += [len(family_of(state, before, parent)) - 1 for parent in range(4)]
    share = opacity / opacity.sum()
    draws = 3 * len(events)
    assert got.sum() == draws
    assert (abs(got - draws * share) < 5 * np.sqrt(draws * share)).all()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_make_the_scene_of_one(ranks):
    """Bit for bit, whoever holds the rows, a rank without any included."""
    random = np.random.default_rng(0)
    opacity = np.where(random.random(400) < 0.2, DEAD, random.uniform(0.01, 0.99, 400))

    def one(exchange):
        state = make_state(opacity)
        rows = np.arange(400)
        keep = (rows * 7 % ranks == exchange.rank) & (exchange.rank != 1)
        keep |= (rows * 7 % ranks == 1) & (exchange.rank == 0)
        state.replace(keep if exchange.ranks > 1 else rows >= 0, None)
        for event in (600, 700, 800):
            grow(state, 420, exchange, event)
        return state.gaussians

    (alone,) = run_ranks(1, one)
    parts = run_ranks(ranks, one)
    assert len(parts[1]) == 0 and len(alone) == 420
    order = np.argsort(np.concatenate([part.ids for part in parts]))
    expected = np.argsort(alone.ids)
    for name in [*GROUPS, "ids"]:
        found = np.concatenate([getattr(part, name) for part in parts])[order]
        np.testing.assert_array_equal(found, getattr(alone, name)[expected], err_msg=name)


def test_one_survivor_takes_all():
    state = make_state([DEAD] * 900 + [0.9])
    assert grow(state, 901) == dict(dead=900, born=900)
    assert len(set(state.gaussians.ids)) == 901
    np.testing.assert_allclose(opacities(state), 0.005)  # not less: that would be dead at once
    assert np.isfinite(state.gaussians.scales).all()


def test_none_alive_changes_nothing_and_says_so_once(caplog):
    state = make_state([DEAD] * 5)
    method = densifier(9)
    with caplog.at_level(logging.WARNING):
        for event in (600, 700):
            done = method.apply(state, event - 1, event, TOTAL, SelfExchange())
            assert done == dict(dead=0, born=0)
    assert len(state.gaussians) == 5
    assert [record.getMessage().startswith("all 5 Gaussians are fainter")
            for record in caplog.records] == [True]


def test_a_limit_below_the_count_keeps_what_is_there():
    state = make_state([0.5] * 8 + [DEAD] * 2)
    assert grow(state, 5) == dict(dead=2, born=2)
    assert len(state.gaussians) == 10


def test_broken_ones_are_relocated():
    state = make_state([0.5] * 4)
    state.gaussians.sh0[1, 1] = np.nan
    state.gaussians.opacities[2] = np.nan
    assert grow(state, 4) == dict(dead=2, born=2)
    assert state.gaussians.finite().all() and len(state.gaussians) == 4


def test_memory_of_a_rank_bounds_what_it_bears(caplog):
    def one(exchange):
        state = make_state([0.5] * 100)
        state.gaussians.ids[:] += 1000 * exchange.rank
        state.budget.rank = 103 if exchange.rank else 0
        done = grow(state, 400, exchange, growth=0.5)
        return done["born"], len(state.gaussians)

    with caplog.at_level(logging.WARNING):
        found = run_ranks(2, one)
    assert found[1][1] <= 103 and sum(born for born, _ in found) == 3
    assert any("memory is full" in record.getMessage() for record in caplog.records)


def test_no_event_changes_nothing():
    state = make_state([0.5, DEAD])
    assert densifier(9).apply(state, 600, 699, TOTAL, SelfExchange()) == dict(dead=0, born=0)
    assert not densifier(9).due(24900, 25000, TOTAL)  # 0.83 of the run
    assert densifier(9).due(24799, 24800, TOTAL)
    assert len(state.gaussians) == 2


@pytest.mark.parametrize("real, bar", [(np.float64, 1e-13), (np.float32, 2e-6)])
@pytest.mark.parametrize("threads", [1, 3])
def test_noise_is_that_of_the_formula(real, bar, threads):
    """Against numpy from the draws of scene.identity; float32: roundings of sine and root."""
    gaussians = random_gaussians(500, 1, real)
    gaussians.opacities[:] = np.linspace(-9, 3, 500)[:, None]
    gaussians.ids[:] += 2**62
    before = gaussians.take(np.arange(500)).map(lambda a: a.astype(np.float64))
    scale, seed, images = 3.0, 2**63 - 5, 4321
    HostBackend(real, threads).noise(gaussians, seed, images, scale)
    opacity = 1 / (1 + np.exp(-before.opacities[:, 0]))
    exponent = 100 * (opacity - 0.005)
    draws = normal(gaussians.ids, images, NOISE, seed)
    moved = np.einsum("nij,nj->ni", covariance(before), draws)
    moved *= (scale / (1 + np.exp(exponent)))[:, None]
    moved[exponent > 30] = 0
    assert (abs(moved).max(1) > 1e-3).sum() > 50
    error = abs(gaussians.means - (before.means + moved))
    assert error.max() <= bar * max(1, abs(moved).max())
    np.testing.assert_array_equal(gaussians.means[-50:], before.means[-50:].astype(real))


def test_noise_differs_from_step_to_step():
    def moved(**changes):
        gaussians = random_gaussians(20, 1)
        gaussians.opacities[:] = -6
        before = gaussians.means.copy()
        densifier(50, HostBackend(np.float64), changes.get("seed", 0)).disturb(
            State.fresh(gaussians, np.array([0, 20])), changes.get("rate", 1e-3), 0,
            changes.get("after", 8),
        )
        return gaussians.means - before

    reference = moved()
    np.testing.assert_array_equal(moved(), reference)
    np.testing.assert_allclose(moved(rate=2e-3), 2 * reference, rtol=1e-9, atol=1e-15)
    for changes in (dict(after=16), dict(seed=1)):
        assert (moved(**changes) != reference).all()


def test_regularisers_are_the_gradient_of_their_cost():
    """Central differences of views times the mean costs of the scene, here half of it on
    another rank."""
    views = 3
    state = make_state([0.1, 0.5, 0.9])
    method = densifier(9, HostBackend(np.float64), opacity_cost=0.02, scale_cost=0.03)
    method.scene = 6

    def cost():
        gaussians = state.gaussians
        opacity = (1 / (1 + np.exp(-gaussians.opacities))).sum() / 6
        return views * (0.02 * opacity + 0.03 * np.exp(gaussians.scales).sum() / (18 * EXTENT))

    gradients = state.gradients()
    gradients.scales[:] = 7  # added to
    method.regularise(state, gradients, views)
    for name, start in (("opacities", 0), ("scales", 7)):
        array, gradient = getattr(state.gaussians, name), getattr(gradients, name)
        for place in np.ndindex(array.shape):
            old, step, sides = array[place], 1e-5, []
            for sign in (1, -1):
                array[place] = old + sign * step
                sides.append(cost())
            array[place] = old
            expected = start + (sides[0] - sides[1]) / (2 * step)
            assert gradient[place] == pytest.approx(expected, rel=1e-7)
    assert not gradients.means.any() and not gradients.quats.any()


def test_every_rank_learns_the_size_of_the_scene():
    def one(exchange):
        method = densifier(9)
        method.follow(make_state([0.5] * (exchange.rank + 1)), exchange)
        return method.scene

    assert run_ranks(3, one) == [6, 6, 6]
