"""Adaptive density control on a hand-made state: what is cloned, split, pruned and reset."""

import logging

import numpy as np
import pytest

from exchanges import SelfExchange, run_ranks
from scenes import random_gaussians
from splaxel_mpi.densify import make_densifier
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.settings import Densify
from splaxel_mpi.train.state import State

EXTENT, TOTAL, EVENT = 2.0, 30000, 600
SMALL, LARGE = 0.01 * EXTENT * 0.9, 0.01 * EXTENT * 1.1  # scales below and above densify.size


def make_state(scales, means_of_norm, opacity=0.5, counts=4):
    """Float64 state: largest scale and mean screen gradient of each Gaussian; moments that tell
    their row."""
    count = len(scales)
    gaussians = random_gaussians(count, 1)
    gaussians.scales[:] = np.log(scales)[:, None] - [0.0, 0.5, 1.5]
    gaussians.opacities[:] = np.log(opacity / (1 - opacity))
    gaussians.ids[:] = 100 + np.arange(count)
    state = State.fresh(gaussians, np.array([0, count]))
    for moments in (state.first, state.second):
        for array in moments.values():
            array[:] = 1 + np.arange(count)[:, None]
    state.count[:] = counts
    state.norm[:] = np.asarray(means_of_norm) * state.count
    return state


def densifier(seed=0, **settings):
    return make_densifier(Densify(**settings), EXTENT, seed)


def grow(state, event=EVENT, seed=0, **settings):
    return densifier(seed, **settings).apply(state, event - 1, event, TOTAL, SelfExchange())


def row_of(state, name):
    """Rows by id."""
    (row,) = np.flatnonzero(state.gaussians.ids == name)
    return row


def test_small_ones_are_cloned_and_keep_what_they_have():
    state = make_state([SMALL] * 3, [1e-4, 3e-4, 1.9e-4])
    before = state.gaussians.take(np.arange(3))
    assert grow(state) == dict(cloned=1, split=0, pruned=0, opaque=0, reset=0)
    assert len(state.gaussians) == 4 and len(set(state.gaussians.ids)) == 4
    (new,) = np.flatnonzero(~np.isin(state.gaussians.ids, before.ids))
    for name, array in state.gaussians.groups():
        np.testing.assert_array_equal(array[new], getattr(before, name)[1], err_msg=name)
        for row in range(3):
            old = row_of(state, 100 + row)
            np.testing.assert_array_equal(array[old], getattr(before, name)[row])
            assert (state.first[name][old] == row + 1).all()
        assert not state.first[name][new].any() and not state.second[name][new].any()


def test_the_mean_is_over_the_images_that_saw_it():
    """The threshold holds for the mean, whatever the count; one never seen does not grow."""
    state = make_state([SMALL] * 4, [3e-4, 1e-4, 3e-4, 0], counts=[1, 1000, 1000, 0])
    assert grow(state)["cloned"] == 2
    assert not state.norm.any() and not state.count.any()  # counted anew from here


def test_no_event_changes_nothing():
    state = make_state([SMALL, LARGE], [1, 1])
    done = densifier().apply(state, 600, 699, TOTAL, SelfExchange())
    assert done == dict(cloned=0, split=0, pruned=0, opaque=0, reset=0)
    assert len(state.gaussians) == 2 and state.norm.all() and state.count.all()


def test_large_ones_are_split_into_two_draws_of_themselves():
    """Children are distributed as their parents are, which are gone: a mean shift and a
    covariance within 5 standard errors, over parents of one shape."""
    count = 4000
    state = make_state([LARGE] * count, [3e-4] * count)
    parents = state.gaussians
    parents.quats[:] = [0.9, 0.3, -0.5, 0.2]
    parents.means[:] = 0
    parents = parents.take(np.arange(count))
    assert grow(state) == dict(cloned=0, split=count, pruned=0, opaque=0, reset=0)
    children = state.gaussians
    assert len(children) == 2 * count == len(set(children.ids))
    assert not np.isin(children.ids, parents.ids).any()
    np.testing.assert_allclose(children.scales, np.tile(parents.scales - np.log(1.6), (2, 1)))
    for name in ("quats", "opacities", "sh0", "shN"):
        inherited = np.tile(getattr(parents, name), (2, 1))
        np.testing.assert_array_equal(getattr(children, name), inherited, err_msg=name)
    for name in GROUPS:
        assert not state.first[name].any() and not state.second[name].any()
    covariance = covariance_of(parents.scales[0], parents.quats[0])
    error = np.sqrt(np.diag(covariance))
    assert (abs(children.means.mean(0)) < 5 * error / np.sqrt(2 * count)).all()
    found = children.means.T @ children.means / (2 * count)
    assert (abs(found - covariance) < 5 * np.outer(error, error) * np.sqrt(2 / (2 * count))).all()
    first, second = children.means[:count], children.means[count:]
    assert (abs(first.T @ second / count) < 5 * np.outer(error, error) / np.sqrt(count)).all()


def covariance_of(scales, quat):
    """R diag(s^2) R^T from the action of the quaternion on vectors."""
    from scipy.spatial.transform import Rotation

    w, x, y, z = quat
    turn = Rotation.from_quat([x, y, z, w]).as_matrix()
    return turn @ np.diag(np.exp(2 * scales)) @ turn.T


def test_draws_depend_on_id_event_and_seed_alone():
    def children(order, event=EVENT, seed=0):
        state = make_state([LARGE] * 5, [3e-4] * 5)
        state.gaussians = state.gaussians.take(order)
        grow(state, event, seed)
        rows = np.argsort(state.gaussians.ids)
        return state.gaussians.ids[rows], state.gaussians.means[rows]

    ids, means = children(np.arange(5))
    again = children(np.arange(5)[::-1])
    np.testing.assert_array_equal(ids, again[0])
    np.testing.assert_array_equal(means, again[1])
    assert not np.isin(children(np.arange(5), 700)[0], ids).any()
    assert (children(np.arange(5), seed=1)[1] != means).all()


def test_the_highest_grow_where_the_limit_has_no_room_for_all(caplog):
    """5 of 8 would grow, the limit leaves 3: the steepest, and of equal ones the smaller id.
    Growth is refused with one warning, also at later events."""
    means = np.array([3, 9, 1, 5, 5, 0.5, 7, 1]) * 1e-4
    state = make_state([SMALL, LARGE, SMALL, SMALL, SMALL, SMALL, LARGE, SMALL], means)
    state.budget.scene = 11
    with caplog.at_level(logging.WARNING):
        assert grow(state) == dict(cloned=1, split=2, pruned=0, opaque=0, reset=0)
        assert len(state.gaussians) == 11
        assert np.isin([100, 103, 104], state.gaussians.ids).all()
        assert not np.isin([101, 106], state.gaussians.ids).any()
        np.testing.assert_array_equal(
            np.sort((state.gaussians.means[:, None] == state.gaussians.means).all(2).sum(1)),
            [1] * 9 + [2] * 2,
        )
        same = (state.gaussians.means == state.gaussians.means[row_of(state, 103)]).all(1)
        assert same.sum() == 2
        state.norm[:], state.count[:] = 1, 1
        assert grow(state, 700)["cloned"] == 0
        assert len(state.gaussians) == 11
    assert len(caplog.records) == 1 and "densify.limit" in caplog.records[0].getMessage()


@pytest.mark.parametrize("limit", [0, 450, 401, 300])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_make_the_scene_of_one(ranks, limit):
    """Bit for bit, whoever holds the rows, under any limit."""
    random = np.random.default_rng(0)
    scales, means = random.choice([SMALL, LARGE], 400), random.uniform(0, 4e-4, 400)

    def one(exchange):
        state = make_state(scales, means)
        state.budget.scene = limit
        owner = np.where(np.arange(400) % 7 < 5, 0, np.arange(400) % ranks)
        if exchange.ranks > 1:
            state.replace(owner == exchange.rank, None)
        done = densifier().apply(state, EVENT - 1, EVENT, TOTAL, exchange)
        return done, state.gaussians

    ((done, alone),) = run_ranks(1, one)
    parts = run_ranks(ranks, one)
    assert done["cloned"] + done["split"] == len(alone) - 400
    assert len(alone) == max(400, limit) if limit else len(alone) > 550
    order = np.argsort(np.concatenate([part.ids for _, part in parts]))
    expected = np.argsort(alone.ids)
    for name in [*GROUPS, "ids"]:
        found = np.concatenate([getattr(part, name) for _, part in parts])[order]
        np.testing.assert_array_equal(found, getattr(alone, name)[expected], err_msg=name)


def test_faint_and_broken_ones_are_pruned():
    state = make_state([SMALL] * 4, [0] * 4, opacity=np.array([[0.0049], [0.0051], [0.5], [0.5]]))
    state.gaussians.sh0[3, 1] = np.nan
    done = grow(state)
    assert done["pruned"] == 2 and done["opaque"] == 1
    np.testing.assert_array_equal(state.gaussians.ids, [101, 102])
    assert (state.first["means"][:, 0] == [2, 3]).all() and len(state.count) == 2


@pytest.mark.parametrize("event, left", [(2900, 2), (3000, 2), (3100, 1)])
@pytest.mark.parametrize("batch", [1, 16])
def test_oversized_ones_are_pruned_once_opacities_were_reset(event, left, batch):
    """The event at 3000 itself prunes before it resets, also when the batch ends after it."""
    state = make_state([0.1 * EXTENT * 0.99, 0.1 * EXTENT * 1.01], [0, 0])
    after = -(-event // batch) * batch
    done = densifier().apply(state, after - batch, after, TOTAL, SelfExchange())
    assert len(state.gaussians) == left
    assert done["opaque"] == done["pruned"] == 2 - left  # they are of medium opacity
    assert {"opaque", "reset"} == set(densifier().opens)  # what clears masks


def test_oversized_ones_stay_where_growth_ends_too_early_for_a_reset():
    """At 3000 of 7000 images there is none: only 500 images of growth would follow."""
    state = make_state([0.1 * EXTENT * 1.01], [0])
    assert densifier().apply(state, 2999, 3000, 7000, SelfExchange())["reset"] == 0
    assert densifier().apply(state, 3099, 3100, 7000, SelfExchange())["pruned"] == 0
    assert len(state.gaussians) == 1


def test_reset_lowers_opacities_and_forgets_their_moments():
    state = make_state([SMALL] * 3, [0] * 3, opacity=np.array([[0.9], [0.3], [0.007]]))
    low = state.gaussians.opacities[2].copy()
    assert densifier().apply(state, 2999, 3000, TOTAL, SelfExchange())["reset"] == 3
    opacity = 1 / (1 + np.exp(-state.gaussians.opacities[:, 0]))
    np.testing.assert_allclose(opacity[:2], 0.01)
    np.testing.assert_array_equal(state.gaussians.opacities[2], low)
    for name in GROUPS:
        kept = name != "opacities"
        assert state.first[name].all() == kept and state.second[name].all() == kept, name


def events(batch, total, **settings):
    """Image counts at the ends of batches at which something is due."""
    method = densifier(**settings)
    ends = [min(start + batch, total) for start in range(0, total, batch)]
    return [end for start, end in zip([0, *ends], ends) if method.due(start, end, total)]


def test_events_are_those_of_the_images():
    assert events(1, 2000) == list(range(600, 1000, 100))
    assert events(1, 2000, reset_every=700) == [600, 700, 800, 900]


@pytest.mark.parametrize("batch", [1, 16])
def test_the_last_fifth_of_growth_sees_no_reset(batch):
    """Here growth ends at 1000 images."""
    due = {every: events(batch, 2000, start=2000, reset_every=every) for every in (400, 800, 801)}
    assert due == {400: [400, 800], 800: [800], 801: []}


@pytest.mark.parametrize("batch", [3, 16, 64])
def test_batches_see_the_events_of_single_images(batch):
    """An event belongs to the batch that holds its image, also at the bounds of growth."""
    single = events(1, 2000, stop=0.6)
    assert events(batch, 2000, stop=0.6) == [-(-event // batch) * batch for event in single]


def test_nothing_is_disturbed_after_the_last_step():
    assert events(128, 1000, stop=1.0, reset_every=900) == [640, 768, 896]
