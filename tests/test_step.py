"""One training step: what a batch adds up to, and ties between cells."""

from types import SimpleNamespace

import numpy as np
import oracle
import pytest

from chain import BACKGROUND, NEAR, Run, self_exchange
from scenes import axis_camera, look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import Steps

SETTINGS = SimpleNamespace(chunk=2, in_flight=2, ssim_weight=0.2)


class Keeper:
    """An optimizer that keeps what it is given and changes no parameter."""

    def step(self, state, gradients, views):
        self.views, self.seen = views, gradients.seen.copy()
        self.gradients = {name: getattr(gradients, name).copy() for name in GROUPS}
        state.clear_gradients()


def step(state, run, cameras, keeper):
    views = [SimpleNamespace(camera=camera, index=i) for i, camera in cameras]
    photos = {i: random_photo(camera, i) for i, camera in cameras}
    return Steps(run.renderer, keeper, SETTINGS).step(state, views, photos, 3)


def fresh(gaussians, tree=None):
    tree = tree or Tree.single()
    run = Run(gaussians, tree, self_exchange(), 1, 0, HostBackend(gaussians.dtype), 0.0)
    return State.fresh(run.gaussians, run.renderer.layout.offsets), run


def test_a_batch_is_the_sum_of_its_views():
    """Gradients and densification statistics of 5 views in chunks of 2 are the undivided sums of
    those of single views; statistics go on over steps, gradients do not. Rounding: 1e-12."""
    pytest.importorskip("mpi4py")
    gaussians = random_gaussians(60, 4)
    cameras = [(i, look_at([3 + 0.2 * i, i - 2, 1], [0, 0, 0], 40 - i, 20 + i)) for i in range(5)]
    state, run = fresh(gaussians)
    batch = Keeper()
    shares = step(state, run, cameras, batch)
    assert state.images_seen == batch.views == 5 and shares.shape == (5, 3)
    sums = {name: 0.0 for name in GROUPS}
    norm, count, seen = 0.0, 0, 0
    for k, view in enumerate(cameras):
        one, keeper = fresh(gaussians)[0], Keeper()
        np.testing.assert_allclose(step(one, run, [view], keeper)[0], shares[k], rtol=1e-12)
        norm, count, seen = norm + one.norm, count + one.count, seen | keeper.seen
        sums = {name: sums[name] + keeper.gradients[name] for name in GROUPS}
    for name, array in sums.items():
        error = np.linalg.norm(batch.gradients[name] - array)
        assert 0 < np.linalg.norm(array) and error <= 1e-12 * np.linalg.norm(array), name
    np.testing.assert_allclose(state.norm, norm, rtol=1e-12)
    np.testing.assert_array_equal(state.count, count)
    np.testing.assert_array_equal(batch.seen, seen)
    again = Keeper()
    step(state, run, cameras, again)
    np.testing.assert_allclose(state.norm, 2 * norm, rtol=1e-12)
    np.testing.assert_array_equal(state.count, 2 * count)
    for name, array in again.gradients.items():
        np.testing.assert_array_equal(array, batch.gradients[name])


@pytest.mark.parametrize("real, bar", [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_equal_depths_are_drawn_in_order_of_ids_across_cells(real, bar):
    """A wall of Gaussians at one depth, of both cells and with ids of 63 bits: a ghost's id
    travels with it, or cells would break ties unlike one list of all."""
    pytest.importorskip("mpi4py")
    gaussians = random_gaussians(30, 6, real, size=0.3)
    gaussians.means[:, :2] *= 0.4
    gaussians.means[:, 2] = 0
    gaussians.ids[:] = np.random.default_rng(0).integers(0, 2**63 - 1, 30)
    first = np.zeros(1, np.int32)
    split = Tree(first, np.array([0.0]), first - 1, first - 2)
    camera = axis_camera([0, 0, -3], 48, 32)
    plain, cells = (fresh(gaussians, tree)[1] for tree in (Tree.single(), split))
    expected, image = plain.image(camera), cells.image(camera)
    assert cells.renderer.ghost_count > 5
    assert np.abs(image - expected).max() <= bar * np.abs(expected).max()
    order = np.argsort(gaussians.ids)
    parameters = {name: np.array(a[order], np.float64) for name, a in gaussians.groups()}
    reference, _ = oracle.render(parameters, camera, NEAR, np.array(BACKGROUND))
    # a float32 rounding may move a splat over the cut-off of 1/255
    assert np.abs(expected - reference).max() <= (bar if real is np.float64 else 1 / 255)
