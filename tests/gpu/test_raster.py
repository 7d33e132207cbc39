"""The CUDA rasterizer against the host's in float64, on the host's tile lists."""

import numpy as np
import pytest
import reference
import splats as make

from splaxel_mpi.backends.base import Partial, Splats, TileLists

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

# Exponentials are right to 2e-7, T to a rounding a splat, sums run over some hundred pixels.
IMAGE, GRADIENT = 1e-5, 1e-4
# A rounding may decide which splat takes T below stop: all behind it weighs up to stop.
STOP_GRADIENT = 2e-3


@pytest.fixture
def raster():
    from splaxel_mpi.backends.cuda_raster import CudaRaster

    return CudaRaster()


def row_major(table):
    """Values of pixels in the order of the host's kernels (pixel_of in host/raster.h), by rows."""
    at = np.arange(256)
    result = np.empty_like(table)
    result[..., at % 64 // 4 * 16 + at // 64 * 4 + at % 4] = table
    return result


def to_gpu(splats, lists):
    """The arrays of both on the GPU, intervals as the CUDA backend lays them out."""
    import cupy

    intervals = None
    if lists.intervals is not None:
        intervals = np.empty((len(lists.tiles), 2, 256), np.float32)
        intervals[:, 0], intervals[:, 1] = -3e38, 3e38
        cut = lists.intervals.rows >= 0
        intervals[cut] = row_major(lists.intervals.table[lists.intervals.rows[cut]])
        intervals = cupy.asarray(intervals)
    arrays = (cupy.asarray(a) for a in (lists.tiles, lists.offsets, lists.items))
    gpu = TileLists(*arrays, intervals)
    return Splats(splats.rows, cupy.asarray(splats.data), splats.ids), gpu


def single_and_double(splats):
    """The same numbers in float32 and float64."""
    data = splats.data.astype(np.float32)
    return (Splats(splats.rows, data, splats.ids),
            Splats(splats.rows, data.astype(np.float64), splats.ids))


def compare(raster, splats, camera, stop=0.0, box=None, absolute=False):
    """Largest error of the image, and error of the gradient by columns, both relative.

    Pixels where a rounding may draw a splat or not take no part."""
    import cupy

    single, double = single_and_double(splats)
    near = make.cut_off_pixels(double, camera)
    seeds = (make.random_seeds(camera) * ~near[..., None]).astype(np.float32)
    host = make.Raster(np.float64)
    lists = make.Raster(np.float32).tile_lists(single, camera, box)
    gpu, gpu_lists = to_gpu(single, lists)
    partial = raster.rasterize(gpu, gpu_lists, camera, stop)
    gradient = cupy.asarray(reference.to_tiles(seeds, lists.tiles, camera))
    found = raster.rasterize_backward(
        gpu, gpu_lists, partial, gradient, camera, stop, absolute
    ).get()

    real_lists = host.tile_lists(double, camera, box)
    expected = host.rasterize(double, real_lists, camera, stop)
    real_gradient = reference.to_tiles(seeds.astype(np.float64), real_lists.tiles, camera)
    wanted = host.rasterize_backward(
        double, real_lists, expected, real_gradient, camera, stop, absolute
    )
    image = reference.to_image(lists.tiles, partial.pixels.get(), camera)
    real_image = reference.to_image(real_lists.tiles, expected.pixels, camera)
    image_error = np.abs(image - real_image)[~near].max(initial=0) / np.abs(real_image).max()
    norm = np.maximum(np.linalg.norm(wanted, axis=0), 1e-12)
    return image_error, np.linalg.norm(found - wanted, axis=0) / norm


def check(raster, splats, camera, stop=0.0, limit=IMAGE, **options):
    image, gradient = compare(raster, splats, camera, stop, **options)
    assert image < limit + 2 * stop  # the image is relative to a largest value that may be 1/2
    assert gradient.max() < (STOP_GRADIENT if stop else GRADIENT), gradient


@pytest.mark.parametrize("size", [(1, 1), (17, 16), (449, 33), (64, 48), (250, 130)])
@pytest.mark.parametrize("stop", [0.0, 1e-4])
def test_equals_host(raster, size, stop):
    camera = make.make_camera(*size)
    check(raster, make.random_splats(camera, 600, np.float32, opacity=(0.02, 0.9)), camera, stop)


@pytest.mark.parametrize("stop", [0.0, 1e-4])
@pytest.mark.parametrize("most", [0, 10**9])
def test_equals_host_with_heavy_and_light_tiles(raster, most, stop):
    """Every tile walked as a heavy one, and none."""
    raster.most = most
    camera = make.make_camera(90, 70)
    splats = make.random_splats(camera, 900, np.float32, opacity=(0.02, 0.9))
    check(raster, splats, camera, stop)


@pytest.mark.parametrize("most", [1024, 10**9])
@pytest.mark.parametrize("stop", [0.0, 1e-4])
@pytest.mark.parametrize("opacity", [(0.005, 0.03), (0.02, 0.5)])
def test_equals_host_on_long_lists(raster, most, stop, opacity):
    """Thousands of tiny splats a tile: several segments, ended pixels beside others that go on."""
    raster.most = most
    camera = make.make_camera(40, 24)
    splats = make.random_splats(camera, 12000, np.float32, sigma=(0.55, 1.2), opacity=opacity)
    check(raster, splats, camera, stop)


@pytest.mark.parametrize("stop", [0.0, 1e-4])
@pytest.mark.parametrize("high", [12.0, 30.0])
def test_equals_host_inside_a_cell(raster, stop, high):
    camera = make.make_camera(100, 70)
    splats = make.random_splats(camera, 800, np.float32, opacity=(0.02, 0.9))
    box = np.array([[-np.inf, -2.0, 2.0], [1.5, np.inf, high]])
    check(raster, splats, camera, stop, box=box)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("most", [0, 1024])
@pytest.mark.parametrize("boxed", [False, True])
def test_absolute_sums_equal_host(raster, boxed, most, deterministic):
    """Columns 9 and 10, and the others beside them; heavy and light tiles, whole and cut."""
    raster.most, raster.deterministic = most, deterministic
    camera = make.make_camera(93, 70)
    splats = make.random_splats(camera, 900, np.float32, opacity=(0.02, 0.9))
    box = np.array([[-np.inf, -2.0, 2.0], [1.5, np.inf, 30.0]]) if boxed else None
    check(raster, splats, camera, box=box, absolute=True)


def test_needles_and_giants(raster):
    """Thin, huge and far off-screen splats: conics of all conditions, means far away."""
    camera = make.make_camera(120, 90)
    random = np.random.default_rng(5)
    rows = []
    for k in range(120):
        long, thin = random.uniform(20, 300), random.uniform(0.55, 1.0)
        rows.append((random.uniform(-150, 270), random.uniform(-150, 240), long, thin,
                     random.uniform(0, np.pi), random.uniform(0.05, 0.9), 1 + k))
    for k in range(20):
        rows.append((random.uniform(-3e3, 3e3), random.uniform(-3e3, 3e3), 2e3, 1.5e3, 0.3, 0.2,
                     200 + k))
    check(raster, make.make_splats(rows, np.float32), camera)


def test_fully_off_screen_draws_nothing(raster):
    import cupy

    camera = make.make_camera(32, 32)
    splats = make.make_splats([(16, 16, 2, 2, 0, 0.9, 1)], np.float32)
    lists = make.Raster().tile_lists(splats, camera)
    splats.data[0, 0] = 1e7
    gpu, gpu_lists = to_gpu(splats, lists)
    partial = raster.rasterize(gpu, gpu_lists, camera, 0.0)
    assert (partial.pixels[:, :3] == 0).all() and (partial.pixels[:, 3] == 1).all()
    ones = cupy.ones_like(partial.pixels)
    assert (raster.rasterize_backward(gpu, gpu_lists, partial, ones, camera, 0.0) == 0).all()


@pytest.mark.parametrize("count", [0, 5])
def test_nothing_to_draw(raster, count):
    import cupy

    camera = make.make_camera(32, 20)
    splats = Splats(np.zeros(count, np.int32), cupy.zeros((count, 12), np.float32),
                    np.arange(count))
    lists = TileLists(cupy.zeros(0, np.int32), cupy.zeros(1, np.int64), cupy.zeros(0, np.int32))
    partial = raster.rasterize(splats, lists, camera, 1e-4)
    assert partial.pixels.shape == (0, 4, 256)
    gradient = raster.rasterize_backward(splats, lists, partial, partial.pixels, camera, 1e-4)
    assert gradient.shape == (count, 9) and not gradient.any()


@pytest.mark.parametrize("count, opacity", [(3000, 0.0045), (400, 0.05), (2000, 0.3)])
def test_deep_stack_keeps_gradient(raster, count, opacity):
    """Un-multiplying T over thousands of splats loses no more than a few roundings."""
    camera = make.make_camera(8, 8)
    random = np.random.default_rng(1)
    rows = [(4, 4, 40, 40, 0, opacity * random.uniform(0.95, 1.05), 1 + k) for k in range(count)]
    # thousands of terms of one size: the host's float32 image is off by 1.1e-5 as well
    check(raster, make.make_splats(rows, np.float32), camera, limit=3e-5)


def test_stack_of_opaque_splats(raster):
    """400 splats of 0.99 at stop 0: T is far under the smallest float, yet the front ones keep
    their gradients and T stays a number."""
    camera = make.make_camera(16, 16)
    splats = make.make_splats([(8, 8, 500, 500, 0, 0.9899, 1 + k) for k in range(400)], np.float32)
    check(raster, splats, camera)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    transmittance = raster.rasterize(gpu, lists, camera, 0.0).pixels[:, 3]
    assert (transmittance > 0).all() and (transmittance < 1e-20).all()


def test_stop_is_inclusive(raster):
    """The splat that takes T below stop is drawn, the next is not."""
    camera = make.make_camera(2, 2)
    splats = make.make_splats([(1, 1, 900, 900, 0, 0.9, 1 + k) for k in range(5)], np.float32)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    partial = raster.rasterize(gpu, lists, camera, 5e-3)
    image = reference.to_image(lists.tiles.get(), partial.pixels.get(), camera)
    assert image[..., 3] == pytest.approx(np.full((2, 2), 1e-3), rel=1e-4)
    gradient = raster.rasterize_backward(gpu, lists, partial, partial.pixels, camera, 5e-3).get()
    assert (gradient[:3] != 0).any(axis=1).all() and (gradient[3:] == 0).all()


def test_padding_is_empty_and_its_gradient_ignored(raster):
    import cupy

    camera = make.make_camera(17, 18)
    splats = make.make_splats([(16.5, 17.5, 6, 6, 0, 0.9, 1)], np.float32)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    partial = raster.rasterize(gpu, lists, camera, 0.0)
    corner = partial.pixels[3].reshape(4, 16, 16).get()
    assert (corner[:3, 2:] == 0).all() and (corner[:3, :, 1:] == 0).all()
    assert (corner[3, 2:] == 1).all() and (corner[3, :, 1:] == 1).all() and corner[3, 0, 0] < 1
    seeds = reference.to_tiles(make.random_seeds(camera), lists.tiles.get(), camera)
    inside = reference.to_tiles(np.ones((18, 17, 4)), lists.tiles.get(), camera) > 0
    results = []
    for outside in (0, np.nan):
        gradient = cupy.asarray(np.where(inside, seeds, outside).astype(np.float32))
        results.append(raster.rasterize_backward(gpu, lists, partial, gradient, camera, 0.0).get())
    # sums of atomic additions in any order
    assert results[1] == pytest.approx(results[0], rel=1e-5)


def test_adjoint_in_front_is_the_loss(raster):
    """g_0 = G_C . C + G_T T: a black splat of one pixel and alpha just over 1/255 in front of
    everything has dL/do = -g_0 there."""
    import cupy

    camera = make.make_camera(24, 20)
    splats = make.random_splats(camera, 60, np.float32)
    seeds, (x, y) = make.random_seeds(camera), (11, 7)
    rest = reference.rasterize(splats, camera)[y, x]
    probe = make.make_splats([(x + 0.5, y + 0.5, 1, 1, 0, 1.01 / 255, 0.5)], np.float32)
    probe.data[0, 6:9] = 0
    data = np.concatenate([splats.data, probe.data])
    ids = np.arange(len(data), dtype=np.int64)
    both = Splats(ids.astype(np.int32), data, ids)
    gpu, lists = to_gpu(both, make.Raster().tile_lists(both, camera))
    partial = raster.rasterize(gpu, lists, camera, 0.0)
    tiles = lists.tiles.get()
    gradient = cupy.asarray(reference.to_tiles(seeds.astype(np.float32), tiles, camera))
    found = raster.rasterize_backward(gpu, lists, partial, gradient, camera, 0.0).get()
    assert found[-1, 5] == pytest.approx(-(seeds[y, x] * rest).sum(), abs=2e-5)


def test_clamped_alpha_has_no_geometry_gradient(raster):
    camera = make.make_camera(4, 4)
    splats = make.make_splats([(2, 2, 400, 400, 0, 0.9999, 1)], np.float32)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    partial = raster.rasterize(gpu, lists, camera, 0.0)
    gradient = raster.rasterize_backward(gpu, lists, partial, partial.pixels, camera, 0.0).get()
    assert (gradient[0, :6] == 0).all() and (gradient[0, 6:] != 0).all()


def test_deterministic_gradient_repeats_and_agrees(raster):
    import cupy

    camera = make.make_camera(200, 120)
    splats = make.random_splats(camera, 4000, np.float32)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    seeds = make.random_seeds(camera).astype(np.float32)
    gradient = cupy.asarray(reference.to_tiles(seeds, lists.tiles.get(), camera))
    results = []
    for deterministic in (True, True, False):
        raster.deterministic = deterministic
        partial = raster.rasterize(gpu, lists, camera, 1e-4)
        results.append(
            raster.rasterize_backward(gpu, lists, partial, gradient, camera, 1e-4).get()
        )
    np.testing.assert_array_equal(results[0], results[1])
    error = np.linalg.norm(results[2] - results[0], axis=0) / np.linalg.norm(results[0], axis=0)
    assert error.max() < 1e-5  # the same sums in another order


def test_wrong_arrays_are_refused(raster):
    import cupy

    camera = make.make_camera(16, 16)
    splats = make.make_splats([(8, 8, 5, 5, 0, 0.9, 1)], np.float32)
    gpu, lists = to_gpu(splats, make.Raster().tile_lists(splats, camera))
    with pytest.raises(TypeError, match="splats.data must be a contiguous float32"):
        raster.rasterize(Splats(gpu.rows, gpu.data.astype(np.float64), gpu.ids), lists, camera, 0)
    partial = raster.rasterize(gpu, lists, camera, 0)
    with pytest.raises(TypeError, match="gradient must be"):
        wrong = cupy.zeros((1, 3, 256), np.float32)
        raster.rasterize_backward(gpu, lists, partial, wrong, camera, 0)
    assert isinstance(partial, Partial)
