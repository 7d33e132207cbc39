"""Projection and its gradient on the host against plain numpy and central differences."""

import dataclasses

import numpy as np
import pytest
import reference_projection as reference

from splaxel_mpi.backends.base import EXTENT_X, Gradients
from splaxel_mpi.backends.host_project import HostProject
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

NEAR = 0.2


class Host(HostProject):
    def __init__(self, real=np.float64, threads=1):
        self.real, self.threads = np.dtype(real), threads


def convert(gaussians, dtype):
    arrays = {name: array.astype(dtype) for name, array in gaussians.groups()}
    return Gaussians(**arrays, ids=gaussians.ids)


def zero_gradients(gaussians):
    count = len(gaussians)
    arrays = {name: np.zeros_like(array) for name, array in gaussians.groups()}
    return Gradients(**arrays, seen=np.zeros(count, np.uint8),
                     norm=np.zeros(count, gaussians.dtype), count=np.zeros(count, np.int32))


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_equals_plain_formulas(rng, degree):
    gaussians = reference.random_gaussians(rng, 400, spread=2.5)
    camera = reference.random_camera(rng)
    splats = Host().project(gaussians, camera, degree, NEAR)
    rows, data = reference.project(gaussians, camera, degree, NEAR)
    assert 20 < len(rows) < 380
    np.testing.assert_array_equal(splats.rows, rows)
    np.testing.assert_array_equal(splats.ids, gaussians.ids[rows])
    assert splats.rows.dtype == np.int32 and splats.ids.dtype == np.int64
    # both in float64; inverting a thin covariance costs a few digits
    np.testing.assert_allclose(splats.data[:, :EXTENT_X], data[:, :EXTENT_X], rtol=1e-9,
                               atol=1e-12)
    # boxes carry a margin of 1e-3 standard deviations
    growth = splats.data[:, EXTENT_X:] - data[:, EXTENT_X:]
    assert (growth > 0).all()
    assert (growth < 2e-3 * data[:, EXTENT_X:] / 0.1).all()


def test_box_holds_every_visible_pixel_centre(rng):
    gaussians = convert(reference.random_gaussians(rng, 300, spread=2.0), np.float32)
    camera = reference.random_camera(rng)
    splats = Host(np.float32).project(gaussians, camera, 0, NEAR)
    x, y = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
    for u, v, a, b, c, opacity, *_, extent_x, extent_y in splats.data.astype(np.float64):
        dx, dy = x - u, y - v
        alpha = opacity * np.exp(-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy)
        drawn = alpha >= 1 / 255
        assert not (drawn & ((abs(dx) > extent_x) | (abs(dy) > extent_y))).any()


def test_threads_do_not_change_the_result(rng):
    gaussians = convert(reference.random_gaussians(rng, 1001, spread=2.0), np.float32)
    camera = reference.random_camera(rng)
    one, three = (Host(np.float32, threads).project(gaussians, camera, 3, NEAR)
                  for threads in (1, 3))
    np.testing.assert_array_equal(one.rows, three.rows)
    np.testing.assert_array_equal(one.data, three.data)
    gradient = rng.normal(size=(len(one), 9)).astype(np.float32)
    outs = [zero_gradients(gaussians) for _ in range(2)]
    for out, threads in zip(outs, (1, 3)):
        Host(np.float32, threads).project_backward(gaussians, camera, 3, one, gradient, out)
    for field in dataclasses.fields(Gradients):
        np.testing.assert_array_equal(*(getattr(out, field.name) for out in outs))


def test_float32_follows_float64(rng):
    gaussians = convert(reference.random_gaussians(rng, 500, spread=1.0), np.float32)
    camera = reference.random_camera(rng)
    single = Host(np.float32).project(gaussians, camera, 3, NEAR)
    wide = convert(gaussians, np.float64)
    double = Host().project(wide, camera, 3, NEAR)
    np.testing.assert_array_equal(single.rows, double.rows)
    # float32 rounding of about 20 operations, relative to the column's largest value
    scale = abs(double.data).max(axis=0)
    assert (abs(single.data - double.data).max(axis=0) / scale < 1e-5).all()
    gradient = rng.normal(size=(len(double), 9))
    out, reference_out = zero_gradients(gaussians), zero_gradients(wide)
    Host(np.float32).project_backward(gaussians, camera, 3, single,
                                      gradient.astype(np.float32), out)
    Host().project_backward(wide, camera, 3, double, gradient, reference_out)
    for name in GROUPS:
        got, want = getattr(out, name), getattr(reference_out, name)
        assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want), name


def loss_and_gradient(host, gaussians, camera, degree, weights):
    splats = host.project(gaussians, camera, degree, NEAR)
    out = zero_gradients(gaussians)
    weights = weights[splats.rows]
    host.project_backward(gaussians, camera, degree, splats, weights, out)
    return (splats.data[:, :9] * weights).sum(), len(splats), out


def check_central_differences(gaussians, camera, degree, weights, step=1e-5):
    """Every parameter of every Gaussian in turn; L2 per group, relative, below 1e-6."""
    host = Host()
    _, visible, out = loss_and_gradient(host, gaussians, camera, degree, weights)
    for name, array in gaussians.groups():
        numeric = np.zeros_like(array)
        for at in np.ndindex(*array.shape):
            kept = array[at]
            array[at] = kept + step
            above, seen_above, _ = loss_and_gradient(host, gaussians, camera, degree, weights)
            array[at] = kept - step
            below, seen_below, _ = loss_and_gradient(host, gaussians, camera, degree, weights)
            array[at] = kept
            assert seen_above == seen_below == visible
            numeric[at] = (above - below) / (2 * step)
        error = np.linalg.norm(numeric - getattr(out, name))
        assert error <= 1e-6 * max(np.linalg.norm(numeric), 1e-3), (name, error)


def test_gradients_against_central_differences(rng):
    gaussians = reference.random_gaussians(rng, 12, spread=0.4)
    gaussians.opacities[:] = abs(gaussians.opacities)
    camera = reference.random_camera(rng)
    weights = rng.normal(size=(12, 9))
    splats = Host().project(gaussians, camera, 3, NEAR)
    assert len(splats) == 12
    assert (splats.data[:, 6:9] > 1e-3).mean() > 0.8
    check_central_differences(gaussians, camera, 3, weights)


def clamped_scene(rng):
    """Large Gaussians whose means project beyond the 15 % border where x/z is clamped."""
    gaussians = reference.random_gaussians(rng, 8)
    gaussians.scales[:] = rng.normal(-0.5, 0.1, (8, 3))
    gaussians.opacities[:] = 2
    camera = Camera(96, 64, 90.0, 88.0, 50.0, 30.0, np.eye(3), np.zeros(3))
    slopes = np.array([[1.1, 0], [-1.1, 0.1], [0, 0.9], [0.1, -0.9], [1, 0.8], [-1, -0.8],
                       [1.05, -0.7], [-0.9, 0.75]])
    depths = rng.uniform(1.5, 2.5, 8)
    gaussians.means[:] = np.column_stack([slopes * depths[:, None], depths])
    return gaussians, camera


def test_gradients_where_the_jacobian_is_clamped(rng):
    gaussians, camera = clamped_scene(rng)
    splats = Host().project(gaussians, camera, 3, NEAR)
    rows, data = reference.project(gaussians, camera, 3, NEAR)
    np.testing.assert_array_equal(splats.rows, rows)
    np.testing.assert_allclose(splats.data[:, :10], data[:, :10], rtol=1e-10, atol=1e-13)
    assert len(rows) == 8
    # columns weighted to count alike: conics of large splats are tiny beside pixel positions
    weights = rng.normal(size=(8, 9)) / abs(data[:, :9]).mean(axis=0)
    check_central_differences(gaussians, camera, 3, weights)


@pytest.mark.parametrize("length", [1e-3, 1e3])
def test_gradients_of_quaternions_far_from_unit_length(rng, length):
    gaussians = reference.random_gaussians(rng, 4, spread=0.3)
    gaussians.opacities[:] = 1
    gaussians.quats *= length / np.linalg.norm(gaussians.quats, axis=1, keepdims=True)
    camera = reference.random_camera(rng)
    weights = rng.normal(size=(4, 9))
    _, _, out = loss_and_gradient(Host(), gaussians, camera, 1, weights)
    numeric = np.zeros((4, 4))
    for at in np.ndindex(4, 4):
        kept = gaussians.quats[at]
        values = []
        for sign in (1, -1):
            gaussians.quats[at] = kept + sign * 1e-5 * length
            values.append(loss_and_gradient(Host(), gaussians, camera, 1, weights)[0])
        gaussians.quats[at] = kept
        numeric[at] = (values[0] - values[1]) / (2e-5 * length)
    assert np.linalg.norm(out.quats - numeric) <= 1e-6 * np.linalg.norm(numeric)


def test_statistics_count_every_visible_splat_and_add_up(rng):
    gaussians = reference.random_gaussians(rng, 50)
    camera = reference.random_camera(rng)
    host = Host()
    splats = host.project(gaussians, camera, 2, NEAR)
    gradient = rng.normal(size=(len(splats), 9))
    gradient[0] = 0
    out = zero_gradients(gaussians)
    for _ in range(2):
        host.project_backward(gaussians, camera, 2, splats, gradient, out)
    norm = np.zeros(50)
    norm[splats.rows] = 2 * np.hypot(48 * gradient[:, 0], 32 * gradient[:, 1])
    np.testing.assert_allclose(out.norm, norm, rtol=1e-12)
    visible = np.isin(np.arange(50), splats.rows)
    np.testing.assert_array_equal(out.count, 2 * visible)
    np.testing.assert_array_equal(out.seen, visible)
    assert not out.means[~visible].any() and not out.shN[~visible].any()
    assert not out.shN[:, 24:].any()  # bands above the degree in use
    once = zero_gradients(gaussians)
    once.norm = once.count = None
    host.project_backward(gaussians, camera, 2, splats, gradient, once)
    np.testing.assert_allclose(out.scales, 2 * once.scales, rtol=1e-12)


def test_absolute_sums_replace_the_gradient_in_the_statistic_alone(rng):
    gaussians = reference.random_gaussians(rng, 50)
    camera = reference.random_camera(rng)
    host = Host()
    splats = host.project(gaussians, camera, 2, NEAR)
    gradient = rng.normal(size=(len(splats), 11))
    gradient[:, 9:] **= 2
    plain, absolute = zero_gradients(gaussians), zero_gradients(gaussians)
    host.project_backward(gaussians, camera, 2, splats, gradient[:, :9].copy(), plain)
    host.project_backward(gaussians, camera, 2, splats, gradient, absolute)
    expected = np.hypot(48 * gradient[:, 9], 32 * gradient[:, 10])
    np.testing.assert_allclose(absolute.norm[splats.rows], expected, rtol=1e-12)
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN", "seen", "count"):
        np.testing.assert_array_equal(getattr(absolute, name), getattr(plain, name))


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_degenerate_gaussians_are_not_visible(rng, real):
    camera = Camera(96, 64, 90.0, 88.0, 50.0, 30.0, np.eye(3), np.zeros(3))
    base = Gaussians.empty(1, real)
    base.means[:] = [0, 0, 3]
    base.scales[:] = -2
    base.quats[:, 0] = 1
    changes = [
        ("means", (0, 0), np.nan), ("means", (0, 2), np.inf), ("means", (0, 1), -np.inf),
        ("scales", (0, 1), np.nan), ("scales", (0, 0), np.inf), ("scales", (0, 0), 1e4),
        ("scales", (0, 2), -np.inf), ("quats", (0, 0), 0), ("quats", (0, 1), np.nan),
        ("quats", (0, 1), np.inf), ("opacities", (0, 0), np.nan), ("opacities", (0, 0), np.inf),
        ("opacities", (0, 0), -6), ("opacities", (0, 0), -1e30), ("sh0", (0, 1), np.nan),
        ("sh0", (0, 1), -np.inf), ("shN", (0, 44), np.inf), ("means", (0, 2), 0),
        ("means", (0, 2), NEAR), ("means", (0, 2), -3), ("means", (0, 0), 100),
    ]
    scene = Gaussians.concatenate([base] * (len(changes) + 1))
    for row, (name, (_, column), value) in enumerate(changes):
        getattr(scene, name)[row, column] = value
    splats = Host(real).project(scene, camera, 3, real(NEAR))
    np.testing.assert_array_equal(splats.rows, [len(changes)])
    assert np.isfinite(splats.data).all()


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_extreme_but_finite_gaussians(real):
    """Huge, needle-thin and point-like Gaussians give finite splats and gradients."""
    camera = Camera(96, 64, 90.0, 88.0, 50.0, 30.0, np.eye(3), np.zeros(3))
    scene = Gaussians.empty(4, real)
    scene.means[:] = [0.1, 0.2, 3]
    scene.scales[:] = [[12, 12, 12], [3, -20, -20], [-40, -40, -40], [8, -8, 0]]
    scene.quats[:] = [0.3, 0.4, -0.5, 0.6]
    splats = Host(real).project(scene, camera, 3, NEAR)
    np.testing.assert_array_equal(splats.rows, range(4))
    assert np.isfinite(splats.data).all()
    assert (splats.data[:, 2] > 0).all() and (splats.data[:, 4] > 0).all()
    # the low-pass alone shapes the point-like one
    np.testing.assert_allclose(splats.data[2, 2:5], [1 / 0.3, 0, 1 / 0.3], rtol=1e-5, atol=1e-6)
    out = zero_gradients(scene)
    Host(real).project_backward(scene, camera, 3, splats, np.ones((4, 9), real), out)
    for name in GROUPS:
        assert np.isfinite(getattr(out, name)).all(), name


def test_thin_splat_keeps_its_digits_in_float32():
    """A needle of 3000 px by 0.55 px: the conic in float32 within 1e-4 of float64."""
    camera = Camera(4000, 4000, 3000.0, 3000.0, 2000.0, 2000.0, np.eye(3), np.zeros(3))
    scene = Gaussians.empty(1, np.float32)
    scene.means[:] = [0.01, -0.02, 3]
    scene.scales[:] = [np.log(3.0), -12, -12]
    scene.quats[:] = [np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)]
    single = Host(np.float32).project(scene, camera, 0, NEAR).data[0, 2:5]
    double = Host().project(convert(scene, np.float64), camera, 0, NEAR).data[0, 2:5]
    np.testing.assert_allclose(single, double, rtol=1e-4)


def test_empty_and_wrong_arguments():
    camera = Camera(96, 64, 90.0, 88.0, 50.0, 30.0, np.eye(3), np.zeros(3))
    empty = Gaussians.empty(0)
    splats = Host(np.float32).project(empty, camera, 3, NEAR)
    assert len(splats) == 0 and splats.data.shape == (0, 12)
    with pytest.raises(ValueError, match="means must be .*float64"):
        Host().project(empty, camera, 3, NEAR)
    with pytest.raises(ValueError, match="degree must be 0 to 3"):
        Host(np.float32).project(empty, camera, 4, NEAR)
    with pytest.raises(ValueError, match="near plane"):
        Host(np.float32).project(empty, camera, 3, -1.0)
    scene = Gaussians.empty(2, np.float32)
    scene.means[:, 2], scene.quats[:, 0] = 3, 1
    splats = Host(np.float32).project(scene, camera, 3, NEAR)
    splats.rows = np.array([0, 2], np.int32)
    with pytest.raises(ValueError, match="rows must lie in 0 to 1"):
        Host(np.float32).project_backward(scene, camera, 3, splats, np.zeros((2, 9), np.float32),
                                          zero_gradients(scene))
