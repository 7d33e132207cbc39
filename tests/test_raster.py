"""The host rasterizer against a plain float64 reference and central differences."""

import numpy as np
import pytest
import reference
from splats import (  # noqa: F401 (each_isa is a fixture)
    REALS,
    TOLERANCE,
    cut_off_pixels,
    each_isa,
    gradient_of,
    image_of,
    make_camera,
    make_splats,
    random_seeds,
    random_splats,
    render,
)

from splaxel_mpi.backends.base import Splats
from splaxel_mpi.backends.host_raster import ISA, isa
from splaxel_mpi.errors import UserError

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("size", [(1, 1), (17, 16), (449, 33), (64, 48)])
@pytest.mark.parametrize("stop", [0.0, 1e-4])
def test_forward_equals_reference(real, size, stop, each_isa):
    camera = make_camera(*size)
    splats = random_splats(camera, 150, real)
    expected = reference.rasterize(splats, camera, stop)
    error = np.abs(image_of(splats, camera, real, stop) - expected).max(axis=2)
    # A pixel next to a cut-off may differ by one splat of 1/255, next to stop by stop.
    if real == np.float32:
        error = error[~cut_off_pixels(splats, camera)]
    assert error.max() / np.abs(expected).max() < TOLERANCE[real] + stop * (real == np.float32)


@pytest.mark.parametrize("real", REALS)
def test_padding_is_empty(real, each_isa):
    camera = make_camera(17, 18)
    splats = make_splats([(16.5, 17.5, 6, 6, 0, 0.9, 1)], real)
    _, lists, partial = render(splats, camera, real)
    assert lists.tiles.tolist() == [0, 1, 2, 3]
    corner = partial.pixels[3].reshape(4, 16, 16)
    assert (corner[:3, 2:] == 0).all() and (corner[:3, :, 1:] == 0).all()
    assert (corner[3, 2:] == 1).all() and (corner[3, :, 1:] == 1).all()
    assert corner[3, 0, 0] < 1


@pytest.mark.parametrize("real", REALS)
def test_gradient_ignores_what_lies_outside_the_image(real, each_isa):
    camera = make_camera(17, 18)
    splats = make_splats([(16.5, 17.5, 6, 6, 0, 0.9, 1)], real)
    raster, lists, partial = render(splats, camera, real)
    gradient = reference.to_tiles(random_seeds(camera).astype(real), lists.tiles, camera)
    expected = raster.rasterize_backward(splats, lists, partial, gradient, camera, 0)
    inside = reference.to_tiles(np.ones((18, 17, 4), real), lists.tiles, camera) > 0
    gradient[~inside] = np.nan
    found = raster.rasterize_backward(splats, lists, partial, gradient, camera, 0)
    np.testing.assert_array_equal(found, expected)


def test_gradient_equals_central_differences(each_isa):
    camera = make_camera(21, 19)
    splats = random_splats(camera, 12, np.float64, sigma=(1.5, 6), opacity=(0.2, 0.9))
    seeds = random_seeds(camera)
    weight = seeds * ~cut_off_band(splats, camera)[..., None]
    found = gradient_of(splats, camera, np.float64, weight)
    expected = np.zeros_like(found)
    for row in range(len(splats)):
        for column in range(9):
            step = 1e-5 * max(1e-2, abs(splats.data[row, column]))
            values = []
            for sign in (1, -1):
                data = splats.data.copy()
                data[row, column] += sign * step
                moved = Splats(splats.rows, data, splats.ids)
                values.append((image_of(moved, camera, np.float64) * weight).sum())
            expected[row, column] = (values[0] - values[1]) / (2 * step)
    scale = np.abs(expected).max(axis=0)
    assert (np.abs(found - expected).max(axis=0) / scale).max() < 1e-6


def cut_off_band(splats, camera):
    """Pixels where a small step may switch a splat on or off."""
    band = np.zeros((camera.height, camera.width), bool)
    x, y = reference.pixel_centres(camera)
    for splat in splats.data:
        dx, dy = x - splat[0], y - splat[1]
        q = 0.5 * (splat[2] * dx**2 + splat[4] * dy**2) + splat[3] * dx * dy
        band |= np.abs(255 * splat[5] * np.exp(-q) - 1) < 2e-2
    return band


@pytest.mark.parametrize("stop", [0.0, 1e-4])
def test_float_gradient_equals_double(stop, each_isa):
    camera = make_camera(100, 70)
    single = random_splats(camera, 800, np.float32, opacity=(0.02, 0.9))
    double = Splats(single.rows, single.data.astype(np.float64), single.ids)
    seeds = random_seeds(camera) * ~cut_off_pixels(single, camera)[..., None]
    found = gradient_of(single, camera, np.float32, seeds, stop)
    expected = gradient_of(double, camera, np.float64, seeds, 0.0)
    error = np.linalg.norm(found - expected, axis=0) / np.linalg.norm(expected, axis=0)
    # 1e-4 relative L2 per parameter; a stop leaves out what weighs up to stop
    assert error.max() < (1e-4 if stop == 0 else 2e-3)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("real", REALS)
def test_absolute_sums_are_those_of_single_pixels(real, threads, each_isa):
    """|dL/du| and |dL/dv| pixel by pixel, from as many backward passes with the seed of one
    pixel; what they leave untouched are the other columns, bit for bit."""
    camera = make_camera(19, 17)
    splats = random_splats(camera, 25, real, opacity=(0.2, 0.95))
    seeds = random_seeds(camera)
    found = gradient_of(splats, camera, real, seeds, absolute=True, threads=threads)
    plain = gradient_of(splats, camera, real, seeds, threads=threads)
    np.testing.assert_array_equal(found[:, :9], plain)
    expected = np.zeros((25, 2))
    for pixel in np.ndindex(17, 19):
        one = np.zeros_like(seeds)
        one[pixel] = seeds[pixel]
        expected += abs(gradient_of(splats, camera, real, one)[:, :2])
    assert (expected.max(0) > 1.2 * abs(plain[:, :2]).max(0)).all()  # plain ones cancel
    assert abs(found[:, 9:] - expected).max() < 10 * TOLERANCE[real] * expected.max()


@pytest.mark.parametrize("count, opacity", [(3000, 0.0045), (400, 0.05), (2000, 0.3)])
def test_deep_stack_keeps_float_gradient(count, opacity, each_isa):
    """Un-multiplying T over thousands of splats loses no more than a few roundings."""
    camera = make_camera(8, 8)
    random = np.random.default_rng(1)
    rows = [(4, 4, 40, 40, 0, opacity * random.uniform(0.95, 1.05), 1 + k) for k in range(count)]
    single = make_splats(rows, np.float32)
    double = Splats(single.rows, single.data.astype(np.float64), single.ids)
    seeds = random_seeds(camera)
    found = gradient_of(single, camera, np.float32, seeds)
    expected = gradient_of(double, camera, np.float64, seeds)
    error = np.linalg.norm(found - expected, axis=0) / np.linalg.norm(expected, axis=0)
    assert error.max() < 1e-4


@pytest.mark.parametrize("real", REALS)
def test_stack_of_opaque_splats(real, each_isa):
    """400 splats of 0.99 at stop 0: T is far under the smallest float, yet the front ones keep
    their gradients and T stays finite."""
    camera = make_camera(4, 4)
    splats = make_splats([(2, 2, 500, 500, 0, 0.9899, 1 + k) for k in range(400)], real)
    image = image_of(splats, camera, real)
    expected = reference.rasterize(splats, camera)
    assert np.abs(image - expected).max() < TOLERANCE[real]
    assert (image[..., 3] >= 0).all() and image[..., 3].max() < 1e-20
    seeds = random_seeds(camera)
    gradient = gradient_of(splats, camera, real, seeds)
    assert np.isfinite(gradient).all()
    # dL/do of splat i from the definition: t_i (c_i - b_i) . G, e^-q times
    color = splats.data[:, 6:9].astype(np.float64)
    for i in range(3):
        rows = range(i + 1, len(splats))
        behind = Splats(splats.rows[rows], splats.data[rows], splats.ids[rows])
        front = reference.rasterize(splats.slice(0, i), camera)[..., 3]
        change = (color[i] - reference.rasterize(behind, camera)[..., :3]) * seeds[..., :3]
        share = reference.alphas(splats.data[i], camera) / splats.data[i, 5]
        expected = (front * share * change.sum(axis=2)).sum()
        assert gradient[i, 5] == pytest.approx(expected, rel=1e-4 if real == np.float32 else 1e-9)


@pytest.mark.parametrize("real", REALS)
def test_transmittance_seed_alone(real, each_isa):
    """dL/dT: the term h T / (1 - a_i) of every splat, without any colour."""
    camera = make_camera(3, 2)
    splats = make_splats([(1.5, 1, 30, 30, 0, 0.3 + 0.1 * k, 1 + k) for k in range(5)], real)
    seeds = np.zeros((2, 3, 4))
    seeds[..., 3] = [[1, -2, 3], [0.5, 0, 4]]
    gradient = gradient_of(splats, camera, real, seeds)
    transmittance = reference.rasterize(splats, camera)[..., 3]
    for i in range(5):
        alpha = reference.alphas(splats.data[i], camera)
        term = -seeds[..., 3] * transmittance / (1 - alpha)
        expected = (term * alpha / splats.data[i, 5]).sum()
        assert gradient[i, 5] == pytest.approx(expected, rel=1e-5 if real == np.float32 else 1e-12)
    assert np.abs(gradient[:, 6:]).max() == 0


@pytest.mark.parametrize("real", REALS)
def test_adjoint_in_front_is_the_loss(real, each_isa):
    """g_0 = G_C . C + G_T T: a black splat of one pixel and alpha just over 1/255 in front of
    everything has dL/do = -g_0 there."""
    camera = make_camera(24, 20)
    splats = random_splats(camera, 60, real)
    seeds = random_seeds(camera)
    x, y = 11, 7
    rest = reference.rasterize(splats, camera)[y, x]
    probe = make_splats([(x + 0.5, y + 0.5, 1, 1, 0, 1.01 / 255, 0.5)], real)
    probe.data[0, 6:9] = 0
    data = np.concatenate([splats.data, probe.data])
    ids = np.arange(len(data), dtype=np.int64)
    both = Splats(ids.astype(np.int32), data, ids)
    gradient = gradient_of(both, camera, real, seeds)
    expected = -(seeds[y, x] * rest).sum()
    assert gradient[-1, 5] == pytest.approx(expected, abs=2e-5 if real == np.float32 else 1e-12)


@pytest.mark.parametrize("real", REALS)
def test_clamped_alpha_has_no_geometry_gradient(real, each_isa):
    camera = make_camera(4, 4)
    splats = make_splats([(2, 2, 400, 400, 0, 0.9999, 1)], real)
    gradient = gradient_of(splats, camera, real, random_seeds(camera))
    assert (gradient[0, :6] == 0).all() and (gradient[0, 6:] != 0).all()


@pytest.mark.parametrize("real", REALS)
def test_stop_is_inclusive(real, each_isa):
    """The splat that takes T below stop is drawn, the next is not."""
    camera = make_camera(2, 2)
    splats = make_splats([(1, 1, 900, 900, 0, 0.9, 1 + k) for k in range(5)], real)
    image = image_of(splats, camera, real, stop=5e-3)
    assert image[..., 3] == pytest.approx(np.full((2, 2), 1e-3), rel=1e-4)
    gradient = gradient_of(splats, camera, real, random_seeds(camera), stop=5e-3)
    assert (gradient[:3] != 0).any(axis=1).all() and (gradient[3:] == 0).all()


@pytest.mark.parametrize("real", REALS)
def test_instruction_sets_agree(real, monkeypatch):
    camera = make_camera(100, 50)
    splats = random_splats(camera, 500, real)
    seeds = random_seeds(camera) * ~cut_off_pixels(splats, camera)[..., None]
    results = []
    for name in ISA:
        monkeypatch.setenv("SPLAXEL_ISA", name)
        try:
            isa()
        except UserError:
            continue
        image = image_of(splats, camera, real)
        results.append((image * (seeds != 0), gradient_of(splats, camera, real, seeds)))
    for image, gradient in results[1:]:
        assert np.abs(image - results[0][0]).max() < TOLERANCE[real]
        error = np.linalg.norm(gradient - results[0][1], axis=0)
        limit = 1e-5 if real == np.float32 else 1e-12
        assert (error / np.linalg.norm(results[0][1], axis=0)).max() < limit


def test_unknown_instruction_set_is_refused(monkeypatch):
    monkeypatch.setenv("SPLAXEL_ISA", "sse9")
    with pytest.raises(UserError, match="SPLAXEL_ISA=sse9: choose one of base, avx2, avx512"):
        isa()


@pytest.mark.parametrize("real", REALS)
def test_thread_count_changes_no_bit(real):
    camera = make_camera(100, 70)
    splats = random_splats(camera, 600, real)
    box = np.array([[-np.inf] * 3, [3.0, np.inf, 20.0]])
    seeds = random_seeds(camera)
    results = []
    for threads in (1, 2, 5):
        _, lists, partial = render(splats, camera, real, 1e-4, threads, box)
        gradient = gradient_of(splats, camera, real, seeds, 1e-4, threads=threads, box=box)
        results.append((lists.tiles, lists.offsets, lists.items, partial.pixels, gradient))
    for other in results[1:]:
        for one, two in zip(results[0], other):
            np.testing.assert_array_equal(one, two)
