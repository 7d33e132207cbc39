"""States of a rank with arbitrary contents, and what they hold."""

import numpy as np

from splaxel_mpi.scene.gaussians import GROUPS, Gaussians
from splaxel_mpi.scene.rows import Rows
from splaxel_mpi.train.state import State


def arrays_of(state):
    """{name: rows} of all that a Gaussian has, through the names that others use."""
    found = state.gaussians.columns()
    for kind, moments in (("first", state.first), ("second", state.second)):
        found.update({f"{kind}/{name}": moments[name] for name in GROUPS})
    found.update(norm=state.norm, count=state.count, seen_count=state.seen_count)
    return found


def filled(gaussians):
    """A state in which no two values are equal."""
    random, count = np.random.default_rng(0), len(gaussians)
    state = State.fresh(gaussians, np.array([0, count]))
    for moments in (state.first, state.second):
        for array in moments.values():
            array[:] = random.random(array.shape)
    state.norm[:], state.count[:] = random.random(count), random.permutation(count)
    state.seen_count[:] = count + random.permutation(count)
    return state


def share(state, rows):
    """A state of some rows of another."""
    picked = {name: array[rows] for name, array in arrays_of(state).items()}
    return State(Rows(picked))


def newborn(random, count):
    out = Gaussians.empty(count)
    for name, array in out.groups():
        array[:] = random.normal(size=array.shape)
    out.ids[:] = random.integers(0, 2**62, count)
    return out


def changes(state, naive, seed, steps, migrate, check):
    """Change a state by keep, children and migration, and copies of its arrays likewise.

    naive: {name: numpy array}, as arrays_of; migrate: function (state); check: function (state,
    naive) that is called after each change.
    """
    random = np.random.default_rng(seed)
    xp = state.rows.xp
    for _ in range(steps):
        if random.random() < 0.2:
            migrate(state)
            ids = [int(one) for one in state.gaussians.ids]
            place = {one: row for row, one in enumerate(naive["ids"].tolist())}
            order = [place[one] for one in ids]
            naive = {name: array[order] for name, array in naive.items()}
        keep = random.random(len(state.gaussians)) < random.choice([0.0, 0.5, 0.9, 1.0, 1.0])
        children = random.choice([None, newborn(random, int(random.integers(0, 200)))])
        state.replace(xp.asarray(keep), children and children.map(xp.asarray))
        naive = {name: array[keep] for name, array in naive.items()}
        if children is not None:
            born = children.columns()
            for name, array in naive.items():
                zeros = np.zeros((len(children), *array.shape[1:]), array.dtype)
                naive[name] = np.concatenate([array, born.get(name, zeros)])
        check(state, naive)
