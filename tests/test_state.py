"""A rank's training state: everything that belongs to a Gaussian goes where it goes."""

import numpy as np
from exchanges import run_ranks

from scenes import random_gaussians
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.train.state import State

COUNT = 300


def arrays_of(state):
    """{name: rows} of all that a Gaussian has."""
    found = dict(state.gaussians.groups(), ids=state.gaussians.ids)
    for kind, moments in (("first", state.first), ("second", state.second)):
        found.update({f"{kind} {name}": moments[name] for name in GROUPS})
    found.update(norm=state.norm, count=state.count)
    return found


def whole():
    """A state in which no two values are equal."""
    random = np.random.default_rng(0)
    state = State.fresh(random_gaussians(COUNT, 5, np.float32), np.array([0, COUNT]))
    for moments in (state.first, state.second):
        for array in moments.values():
            array[:] = random.random(array.shape)
    state.norm[:], state.count[:] = random.random(COUNT), random.permutation(COUNT)
    return state


def test_moments_and_statistics_migrate_with_their_gaussians():
    expected, ranks = arrays_of(whole()), 3

    def migrate(exchange):
        state = whole()
        rows = np.arange(exchange.rank, COUNT, ranks)
        extras = {name: array[rows] for name, array in state.extras().items()}
        state.set_rows(state.gaussians.take(rows), extras, state.offsets)
        tree = build(state.gaussians.means, None, 5, exchange)
        state.migrate(tree, exchange)
        assert state.offsets[-1] == len(state.gaussians)
        return arrays_of(state)

    parts = run_ranks(ranks, migrate)
    for name, array in expected.items():
        found = np.concatenate([part[name] for part in parts])
        order = np.argsort(np.concatenate([part["ids"] for part in parts]))
        np.testing.assert_array_equal(found[order], array, err_msg=name)
        assert found.dtype == array.dtype
