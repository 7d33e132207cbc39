"""Composition, loss and packing on the GPU against the host backend."""

import numpy as np
import pytest
from tables import piece_table

from splaxel_mpi.backends import cuda_module, cuda_pixels
from splaxel_mpi.backends.cuda_pixels import CudaPixels
from splaxel_mpi.backends.host_pixels import HostPixels
from splaxel_mpi.scene.camera import Camera

pytestmark = pytest.mark.gpu


class Host(HostPixels):
    def __init__(self, real=np.float32):
        self.real, self.threads = np.dtype(real), 2


@pytest.fixture
def cuda():
    import cupy

    class Cuda(CudaPixels):
        xp, real = cupy, np.dtype(np.float32)

    return Cuda()


@pytest.fixture
def rng():
    return np.random.default_rng(31)


BACKGROUND = np.array([0.2, 0.5, 0.9], np.float32)


def camera_of(width, height):
    return Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))


def on_device(*arrays):
    import cupy

    return [cupy.asarray(array) for array in arrays]


def random_layers(rng, tiles, layers, absent=0.3):
    pool = rng.random((tiles * layers + 2, 4, 256), np.float32)
    slots = rng.permutation(len(pool))[: tiles * layers].reshape(tiles, layers).astype(np.int32)
    slots[rng.random(slots.shape) < absent] = -1
    return pool, slots


# counts that fill the blocks of four tiles and that do not, and more layers than registers hold
@pytest.mark.parametrize("tiles, layers", [(0, 3), (1, 0), (1, 1), (7, 2), (64, 8), (5, 40)])
def test_compose_and_its_gradient(cuda, rng, tiles, layers):
    pool, slots = random_layers(rng, tiles, layers)
    gradient = rng.normal(size=(tiles, 3, 256)).astype(np.float32)
    wanted = np.full_like(slots, -1)
    held = np.argwhere(slots >= 0)[::2]
    for row, at in enumerate(held):
        wanted[tuple(at)] = len(held) - 1 - row
    count = len(held) + 1
    image, passed = cuda.compose(*on_device(pool, slots), BACKGROUND)
    out = cuda.compose_backward(*on_device(pool, slots), BACKGROUND,
                                *on_device(gradient, wanted), count)
    want = Host().compose(pool, slots, BACKGROUND)
    want_out = Host().compose_backward(pool, slots, BACKGROUND, gradient, wanted, count)
    # the same operations in the same order, without contraction: bitwise but for g . S
    np.testing.assert_array_equal(image.get(), want[0])
    np.testing.assert_array_equal(passed.get(), want[1])
    np.testing.assert_allclose(out.get(), want_out, rtol=1e-6, atol=1e-6)
    assert not out[-1].any()


@pytest.mark.parametrize("tiles, layers", [(0, 3), (1, 0), (1, 1), (6, 2), (6, 40)])
def test_residuals(cuda, rng, tiles, layers):
    """Products in the same order and maxima: bitwise. Three of the six tiles are clipped."""
    camera, where = camera_of(37, 21), rng.permutation(6)[:tiles].astype(np.int32)
    pool, slots = random_layers(rng, tiles, layers)
    found = cuda.residuals(*on_device(pool, slots, where), camera)
    want = Host().residuals(pool, slots, where, camera)
    np.testing.assert_array_equal(found.get(), want)


def test_compose_leaves_out_what_does_not_exist(cuda, rng):
    pool, slots = random_layers(rng, 6, 3, absent=0)
    worse = slots.copy()
    worse[1, 1], worse[4, 2] = len(pool), 2**31 - 1
    absent = np.where(worse == slots, slots, -1)
    image, passed = cuda.compose(*on_device(pool, worse), BACKGROUND)
    want = Host().compose(pool, absent, BACKGROUND)
    np.testing.assert_array_equal(image.get(), want[0])
    np.testing.assert_array_equal(passed.get(), want[1])


@pytest.mark.parametrize("size", [(1, 1), (37, 21), (160, 96)])
@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_layouts(cuda, rng, size, share):
    camera = camera_of(*size)
    tiles = np.flatnonzero(rng.random(camera.tile_count) < share).astype(np.int32)
    data = rng.random((len(tiles), 3, 256), np.float32)
    place, = on_device(tiles)
    image = cuda.to_image(place, *on_device(data), camera)
    want = Host().to_image(tiles, data, camera)
    covered = np.zeros(camera.tile_count, bool)
    covered[tiles] = True
    tiles_x, tiles_y = camera.tiles
    covered = covered.reshape(tiles_y, tiles_x).repeat(16, 0).repeat(16, 1)
    np.testing.assert_array_equal(image.get()[:, covered], want[:, covered])
    out = cuda.xp.empty((len(tiles), 3, 256), np.float32)
    cuda.to_tiles(place, image, camera, out)
    np.testing.assert_array_equal(out.get(), data)


@pytest.mark.parametrize("tiles", [1, 1023, 8160])
def test_share_of_a_view(cuda, rng, tiles):
    sums, counted = rng.random((tiles, 3)), rng.random(tiles) < 0.5
    out, want = cuda.xp.empty((2, 3), np.float64), np.empty(3)
    cuda.share(*on_device(sums, counted), 77, out[1])
    Host().share(sums, counted, 77, want)
    np.testing.assert_allclose(out[1].get(), want, rtol=1e-12)  # another order of addition


def random_view(rng, camera, fill=3.0):
    """Image, padded with what it likes, and photograph."""
    tiles_x, tiles_y = camera.tiles
    photo = rng.integers(0, 256, (camera.height, camera.width, 3), np.uint8)
    image = np.full((3, 16 * tiles_y, 16 * tiles_x), fill, np.float32)
    noise = rng.uniform(-0.1, 0.4, (3, camera.height, camera.width))
    image[:, : camera.height, : camera.width] = 0.7 * photo.transpose(2, 0, 1) / 255 + noise
    return image, photo


def whole(camera):
    return 0, 0, camera.width, camera.height


def compare_loss(cuda, image, photo, camera, tiles, rect, weight):
    gradient, sums = cuda.loss(*on_device(image, photo), camera, *on_device(tiles), rect, weight)
    want, want_sums = Host(np.float64).loss(image.astype(float), photo, camera, tiles, rect,
                                            weight)
    gradient, sums = gradient.get(), sums.get()
    assert gradient.dtype == np.float32 and sums.dtype == np.float64
    # as the float32 host build: moments cancel to variances, hundreds of roundings against C2
    assert np.linalg.norm(gradient - want) <= 1e-4 * np.linalg.norm(want)
    np.testing.assert_array_equal(gradient != 0, want != 0)
    np.testing.assert_allclose(sums, want_sums, rtol=1e-4, atol=1e-4)
    return gradient, sums


# narrower than the window, one tile, clipped tiles, one region and more, 4 : 3
@pytest.mark.parametrize(
    "size", [(1, 1), (5, 7), (16, 16), (17, 33), (37, 21), (64, 32), (65, 33), (290, 18),
             (401, 299), (4097, 19), (3, 4097)]
)
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_loss(cuda, rng, size, weight):
    camera = camera_of(*size)
    image, photo = random_view(rng, camera)
    tiles = np.ones(camera.tile_count, np.uint8)
    compare_loss(cuda, image, photo, camera, tiles, whole(camera), weight)


def test_some_tiles_equal_the_whole_image_there(cuda, rng):
    """Also where the image is wrong more than 10 pixels from the supervised tiles."""
    camera = camera_of(330, 170)
    image, photo = random_view(rng, camera)
    every = np.ones(camera.tile_count, np.uint8)
    want, want_sums = compare_loss(cuda, image, photo, camera, every, whole(camera), 0.3)
    tiles_x, tiles_y = camera.tiles
    grid = rng.random((tiles_y, tiles_x)) < 0.1
    grid[:2], grid[-1, -1] = False, True
    near = np.zeros((16 * tiles_y, 16 * tiles_x), bool)
    for y, x in zip(*np.nonzero(grid)):
        near[max(0, 16 * y - 10) : 16 * y + 26, max(0, 16 * x - 10) : 16 * x + 26] = True
    image[:, ~near] = np.nan
    rows, columns = np.nonzero(near[:170, :330])
    rect = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    tiles = grid.astype(np.uint8).ravel()
    gradient, sums = cuda.loss(*on_device(image, photo), camera, *on_device(tiles), rect, 0.3)
    held = np.repeat(np.repeat(grid, 16, 0), 16, 1)
    np.testing.assert_array_equal(gradient.get()[:, held], want[:, held])
    assert not gradient.get()[:, ~held].any()
    np.testing.assert_array_equal(sums.get()[tiles == 1], want_sums[tiles == 1])
    assert not sums.get()[tiles == 0].any()


def test_tiles_outside_the_rectangle_are_not_supervised(cuda, rng):
    camera = camera_of(200, 100)
    image, photo = random_view(rng, camera)
    every = np.ones(camera.tile_count, np.uint8)
    compare_loss(cuda, image, photo, camera, every, (17, 5, 150, 60), 0.2)
    gradient, sums = compare_loss(cuda, image, photo, camera, every, (0, 0, 0, 0), 0.2)
    assert not gradient.any() and not sums.any()


def test_gradient_vanishes_where_image_and_photo_agree(cuda, rng):
    camera = camera_of(70, 66)
    image, photo = random_view(rng, camera)
    image[:, :66, :70] = photo.transpose(2, 0, 1) / np.float32(255)
    tiles = np.ones(camera.tile_count, np.uint8)
    gradient, sums = cuda.loss(*on_device(image, photo), camera, *on_device(tiles),
                               whole(camera), 0.2)
    # |x - y| has no gradient at 0: one of it would be 0.8 / (3 * 70 * 66) = 6e-5
    assert abs(gradient).max() < 1e-8
    assert sums[:, 0].max() == 0 and sums[:, 2].max() == 0 and abs(sums[:, 1]).max() < 1e-2


def test_loss_repeats_bit_by_bit(cuda, rng):
    camera = camera_of(333, 222)
    image, photo = on_device(*random_view(rng, camera))
    tiles, = on_device(np.ones(camera.tile_count, np.uint8))
    first = cuda.loss(image, photo, camera, tiles, whole(camera), 0.2)
    for _ in range(3):
        again = cuda.loss(image, photo, camera, tiles, whole(camera), 0.2)
        assert all((a == b).all() for a, b in zip(first, again))


def test_a_broken_image_shows(cuda, rng):
    """A NaN reaches the sums of its tile: it must not be clipped away."""
    camera = camera_of(64, 64)
    image, photo = random_view(rng, camera)
    image[1, 40, 20] = np.nan
    tiles = np.ones(camera.tile_count, np.uint8)
    _, sums = cuda.loss(*on_device(image, photo), camera, *on_device(tiles), whole(camera), 0.2)
    broken = np.isnan(sums.get())
    assert broken[9].all() and not broken[[0, 3, 12, 15]].any()


def test_small_regions_for_devices_with_less_shared_memory(cuda, rng, monkeypatch):
    camera = camera_of(333, 222)
    image, photo = random_view(rng, camera)
    tiles = (rng.random(camera.tile_count) < 0.5).astype(np.uint8)
    wide = compare_loss(cuda, image, photo, camera, tiles, whole(camera), 0.2)
    cuda_pixels.loss_kernel.cache_clear()
    monkeypatch.setattr(cuda_pixels, "LOSS_WIDTHS", cuda_pixels.LOSS_WIDTHS[1:])
    narrow = compare_loss(cuda, image, photo, camera, tiles, whole(camera), 0.2)
    cuda_pixels.loss_kernel.cache_clear()
    np.testing.assert_array_equal(wide[0], narrow[0])
    np.testing.assert_allclose(wide[1], narrow[1], rtol=1e-6)


def test_loss_rejects_wrong_arguments(cuda, rng):
    camera = camera_of(33, 20)
    image, photo = on_device(*random_view(rng, camera))
    none, = on_device(np.zeros(camera.tile_count, np.uint8))
    with pytest.raises(ValueError, match="image must be"):
        cuda.loss(image[:, 1:], photo, camera, none, whole(camera), 0.2)
    with pytest.raises(ValueError, match="photo must be"):
        cuda.loss(image, photo / 255, camera, none, whole(camera), 0.2)
    with pytest.raises(ValueError, match="rect must lie in 0, 0, 33, 20"):
        cuda.loss(image, photo, camera, none, (0, 0, 34, 20), 0.2)


@pytest.mark.parametrize("count", [1, 40, 9000])
@pytest.mark.parametrize("planes, half", [(3, False), (4, False), (4, True)])
def test_pack_and_unpack(cuda, rng, planes, half, count):
    """Streams equal those of the host bit by bit, in halves with subnormals and overflow too."""
    rows = rng.permutation(count + 3)[:count]
    low = rng.integers(0, 12, (count, 2))
    rects = np.concatenate([low, low + rng.integers(1, 17 - low)], axis=1)
    rects[::3] = 0, 0, 16, 16
    magnitude = np.float32(10) ** rng.integers(-9, 6, (count + 3, planes, 1))
    pixels = (rng.normal(size=(count + 3, planes, 256)) * magnitude).astype(np.float32)
    table, size = piece_table(rows, rects)
    device_table, device_pixels = on_device(table, pixels)
    stream = cuda.pack(device_pixels, device_table, size, half, 4.0)
    want = Host().pack(pixels, table, size, half, 4.0)
    np.testing.assert_array_equal(stream.get(), want)
    out = np.full(pixels.shape, 7, np.float32)
    device_out, = on_device(out)
    cuda.unpack(stream, device_table, device_out, half, 0.25)
    Host().unpack(want, table, out, half, 0.25)
    np.testing.assert_array_equal(device_out.get(), out)


def test_pack_of_nothing_and_wrong_arguments(cuda):
    pixels, nothing, whole = on_device(np.zeros((1, 4, 256), np.float32),
                                       np.zeros((0, 2), np.int64),
                                       piece_table([0], [[0, 0, 16, 16]])[0])
    empty = cuda.pack(pixels, nothing, 0)
    assert empty.size == 0
    cuda.unpack(empty, nothing, pixels)
    with pytest.raises(ValueError, match="table must be"):
        cuda.pack(pixels, whole.astype(np.int32), 256)
    with pytest.raises(ValueError, match="stream must be .*uint16"):
        cuda.unpack(pixels.ravel(), whole, pixels, True)


def test_every_kernel_of_the_part_compiles_for_this_device():
    for source, names in [("loss.cu", ["loss"]),
                          ("compose.cu", ["compose", "compose_backward", "residuals"]),
                          ("pack.cu", ["pack", "unpack", "pack_half", "unpack_half"])]:
        for name in names:
            assert cuda_module.kernel(source, name).local_size_bytes == 0  # nothing spilled
