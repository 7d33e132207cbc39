"""MCMC and absolute gradients on the GPU against the host in float32, and in whole steps."""

from types import SimpleNamespace

import numpy as np
import pytest

from exchanges import SelfExchange
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends.cuda_tally import Tally
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.densify import make_densifier
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.settings import Densify, Train
from splaxel_mpi.train.one_rank import OneRank
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import Steps, make_steps

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NEAR = 0.05


@pytest.fixture(scope="module")
def backend():
    pytest.importorskip("mpi4py")
    from splaxel_mpi.backends.cuda import CudaBackend

    backend = CudaBackend()
    backend.deterministic = True
    return backend


def faint(count):
    """float32 Gaussians of opacities around the gate of the noise, with ids of 63 bits."""
    gaussians = random_gaussians(count, 1, np.float32)
    gaussians.opacities[:] = np.linspace(-9, 3, count)[:, None]
    gaussians.ids[:] += 2**62
    return gaussians


@pytest.mark.parametrize("count", [0, 1, 257, 5000])
def test_noise_is_that_of_the_host(backend, count):
    """The same draws; sine, logarithm and exponential differ in the last digits."""
    gaussians = faint(count)
    moved = gaussians.map(backend.to_device)
    backend.noise(moved, 2**63 - 5, 4321, 3.0)
    before = gaussians.means.copy()
    HostBackend(np.float32).noise(gaussians, 2**63 - 5, 4321, 3.0)
    largest = np.abs(gaussians.means - before).max(initial=0)
    assert largest > 0.01 or count < 2
    error = np.abs(moved.means.get() - gaussians.means).max(initial=0)
    assert error <= 2e-6 * max(1, largest)


def test_regularisers_are_those_of_the_host(backend):
    gaussians = faint(1000)
    state = State.fresh(gaussians, np.array([0, 1000]))
    expected = state.gradients()
    HostBackend(np.float32).regularise(gaussians, expected, 0.3, 0.7)
    other = State.fresh(gaussians.map(backend.to_device), np.array([0, 1000]))
    found = other.gradients()
    backend.regularise(other.gaussians, found, 0.3, 0.7)
    for name in ("opacities", "scales"):
        one, two = getattr(found, name).get(), getattr(expected, name)
        np.testing.assert_allclose(one, two, rtol=2e-6, atol=1e-12)
        assert two.any()


def test_nothing_is_done_once_the_tally_is_stopped(backend):
    gaussians = faint(100).map(backend.to_device)
    before, tally = gaussians.means.copy(), Tally()
    tally.stop_word[:1] = 1
    backend.noise(gaussians, 1, 2, 3.0, tally)
    gradients = State.fresh(gaussians, np.array([0, 100])).gradients()
    backend.regularise(gaussians, gradients, 1.0, 1.0, tally)
    assert (gaussians.means == before).all() and not gradients.scales.any()
    tally.stop_word[:1] = 0
    backend.noise(gaussians, 1, 2, 3.0, tally)
    assert (gaussians.means != before).any()


def test_absolute_sums_go_into_the_statistic_alone(backend):
    gaussians, camera = faint(500), look_at([3.5, -3.2, 1.0], [0, 0, 0], 97, 61)
    gaussians = gaussians.map(backend.to_device)
    splats = backend.project(gaussians, camera, 2, NEAR)
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(len(splats), 11)).astype(np.float32)
    plain, absolute = (State.fresh(gaussians, np.array([0, 500])).gradients() for _ in range(2))
    both = backend.to_device(gradient)
    backend.project_backward(gaussians, camera, 2, splats, both[:, :9].copy(), plain)
    backend.project_backward(gaussians, camera, 2, splats, both, absolute)
    expected = np.hypot(48.5 * gradient[:, 9], 30.5 * gradient[:, 10])
    np.testing.assert_allclose(absolute.norm.get()[splats.rows.get()], expected, rtol=1e-5)
    for name in [*GROUPS, "seen", "count"]:
        one, two = getattr(absolute, name).get(), getattr(plain, name).get()
        np.testing.assert_array_equal(one, two, err_msg=name)


def steps_of(backend, kind, settings, batch):
    """State and losses after steps and two growth events."""
    from chain import Run
    from mpi4py import MPI

    from splaxel_mpi.mpi.staged import StagedExchange
    from splaxel_mpi.partition.layout import Layout
    from splaxel_mpi.partition.tree import Tree

    how = Train(epsilon=1e-6, images=1000, optimizer="dense")
    tree = Tree.single()
    run = Run(random_gaussians(2000, 3, np.float32), tree, StagedExchange(MPI.COMM_SELF),
              1, 0, backend, 1e-4)
    state = State.fresh(run.gaussians, run.renderer.layout.offsets)
    method = make_densifier(settings, 2.0, 0, backend)
    optimizer = Optimizer(backend, how, 2.0, batch)
    steps = make_steps(run.renderer, optimizer, how, method)
    if kind is Steps:
        steps = Steps(run.renderer, optimizer, how, method)
    assert isinstance(steps, kind)
    method.follow(state, SelfExchange())
    views = [SimpleNamespace(camera=look_at([4 - i, i - 3, 1], [0, 0, 0], 97, 61), index=i)
             for i in range(4)]
    photos = {v.index: backend.to_device(random_photo(v.camera, v.index)) for v in views}
    shares = []
    for turn in range(4):
        before = state.images_seen
        shares.append(steps.step(state, views[:batch], photos, 3))
        if method.due(before, state.images_seen, 1000):
            shares.append(steps.settle())
            method.apply(state, before, state.images_seen, 1000, SelfExchange())
            method.follow(state, SelfExchange())
            state.offsets = np.array([0, len(state.gaussians)])
            run.renderer.set_layout(Layout(tree, 0, 1, state.offsets))
    shares.append(steps.settle())
    return state, np.concatenate(shares)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("changes", [
    dict(method="mcmc", limit=2200, prune_opacity=0.1),
    dict(method="adc", absgrad=True, threshold=1e-3),
])
def test_steps_without_the_host_equal_those_of_the_general_path(backend, batch, changes):
    """Noise, regularisers, absolute sums and growth in both; the rasterizer adds in a fixed
    order, so that only the fusing of a product may differ."""
    settings = Densify(start=0, every=2 * batch, stop=1.0, **changes)
    (state, shares), (want, want_shares) = (
        steps_of(backend, kind, settings, batch) for kind in (OneRank, Steps))
    np.testing.assert_allclose(shares, want_shares, rtol=1e-5)
    assert len(want.gaussians) > 2000
    np.testing.assert_array_equal(state.gaussians.ids.get(), want.gaussians.ids.get())
    for name in GROUPS:
        one, two = getattr(state.gaussians, name).get(), getattr(want.gaussians, name).get()
        assert np.abs(one - two).max() <= 1e-4 * np.abs(two).max(), name


@pytest.mark.parametrize("method", ["mcmc", "adc"])
def test_a_run_grows_as_on_the_host(tmp_path, method):
    """Short trainings of the small city agree in quality; sums are in no fixed order here."""
    import json

    MPI = pytest.importorskip("mpi4py.MPI")
    from runs import small_city, train

    city, found = small_city(tmp_path / "city"), {}
    more = ["densify.absgrad=true"] if method == "adc" else [
        "densify.method=mcmc", "densify.limit=500", "densify.prune_opacity=0.05"]
    for name in ("host", "cuda"):
        run = train(city, tmp_path / name, MPI.COMM_SELF, f"backend.name={name}", *more)
        found[name] = json.loads((run / "summary.json").read_text())
    assert abs(found["cuda"]["psnr"] - found["host"]["psnr"]) < 0.1
    assert abs(found["cuda"]["gaussians"] / found["host"]["gaussians"] - 1) < 0.02
