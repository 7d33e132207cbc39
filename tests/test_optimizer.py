"""The batch rule of the optimizer, and the view order, against their definitions."""

from collections import Counter

import numpy as np
import pytest

from scenes import random_gaussians
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.schedule import make_scheduler
from splaxel_mpi.settings import Train
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.state import State

EXTENT, COUNT = 3.0, 20
RATES = dict(means=1.6e-4 * EXTENT, scales=5e-3, quats=1e-3, opacities=0.05, sh0=2.5e-3,
             shN=1.25e-4)
EPSILON = 1e-3  # large enough to be seen in the result


def expected_path(parameter, gradients, sizes, name, images, seen=None):
    """Adam by its definition with gradients / B, rates sqrt(B), epsilon / sqrt(B), betas^B. The
    corrections divide by the weight that the moments hold: 1 - beta^(images so far)."""
    x, m, v, done = parameter.copy(), 0 * parameter, 0 * parameter, 0
    for k, (gradient, size) in enumerate(zip(gradients, sizes)):
        rate = RATES[name] * np.sqrt(size)
        if name == "means":
            rate *= 0.01 ** (done / images)
        rows = slice(None) if seen is None else seen[k]
        g, first, second = gradient[rows] / size, 0.9**size, 0.999**size
        done += size
        m[rows] = first * m[rows] + (1 - first) * g
        v[rows] = second * v[rows] + (1 - second) * g**2
        root = np.sqrt(v[rows] / (1 - 0.999**done)) + EPSILON / np.sqrt(size)
        x[rows] -= rate * m[rows] / (1 - 0.9**done) / root
    return x


@pytest.mark.parametrize("optimizer", ["dense", "selective"])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [4, 4, 4], [4, 4, 1], [8, 3, 3]])
def test_updates_follow_the_batch_rule(optimizer, sizes):
    """The last batch of a run is smaller, and a resumed run may have another size."""
    images, random = sum(sizes), np.random.default_rng(0)
    settings = Train(images=images, optimizer=optimizer, epsilon=EPSILON)
    state = State.fresh(random_gaussians(COUNT, 2), np.array([0, COUNT]))
    start = state.gaussians.take(np.arange(COUNT))
    gradients = [
        {name: random.normal(size=(COUNT, width)) for name, width in GROUPS.items()}
        for _ in sizes
    ]
    seen = [random.random(COUNT) < 0.6 for _ in sizes]
    adam = Optimizer(HostBackend(np.float64), settings, EXTENT, sizes[0])
    for size, gradient, rows in zip(sizes, gradients, seen):
        out = state.gradients()
        out.seen[:] = rows
        for name, array in gradient.items():
            getattr(out, name)[:] = array
        adam.step(state, out, size)
        state.images_seen += size
    for name, array in state.gaussians.groups():
        rows = seen if optimizer == "selective" else None
        path = [gradient[name] for gradient in gradients]
        want = expected_path(getattr(start, name), path, sizes, name, images, rows)
        np.testing.assert_allclose(array, want, rtol=1e-12, atol=1e-14, err_msg=name)


def test_position_rate_falls_log_linearly():
    adam = Optimizer(None, Train(images=1000), EXTENT, 4)
    rates = [adam.rate("means", images) for images in (0, 500, 1000, 2000)]
    np.testing.assert_allclose(rates, 2 * RATES["means"] * np.array([1, 0.1, 0.01, 0.01]))
    assert adam.rate("sh0", 0) == adam.rate("sh0", 900) == 2 * RATES["sh0"]


TRAIN = [3, 5, 8, 9, 12, 13, 17]


def views(start, stop, size, seed=0):
    """Views of images start to stop, asked for in batches."""
    scheduler = make_scheduler("fixed", TRAIN, seed)
    return [view for at in range(start, stop, size) for view in scheduler.batch(at, size)]


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_every_epoch_shows_every_view_once_in_an_order_of_its_own(size):
    order = views(0, 420, size)[:420]
    epochs = [tuple(order[start : start + 7]) for start in range(0, 420, 7)]
    assert all(Counter(epoch) == Counter(TRAIN) for epoch in epochs)
    assert len(set(epochs)) > 50  # of 60, out of 5040 orders
    assert order == views(0, 420, 1)  # whatever the size of batches
    assert order != views(0, 420, 1, seed=1)


def test_a_resumed_run_goes_on_where_it_stood():
    assert views(40, 100, 4) == views(0, 100, 4)[40:]
