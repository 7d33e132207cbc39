"""L1 + SSIM and its gradient on the host against direct windows and central differences."""

import numpy as np
import pytest

from splaxel_mpi.backends.host_pixels import HostPixels
from splaxel_mpi.scene.camera import Camera


class Host(HostPixels):
    def __init__(self, real=np.float64, threads=1):
        self.real, self.threads = np.dtype(real), threads


def camera_of(width, height):
    return Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))


def padded(image, camera, fill=0.0):
    tiles_x, tiles_y = camera.tiles
    out = np.full((3, 16 * tiles_y, 16 * tiles_x), fill, image.dtype)
    out[:, : camera.height, : camera.width] = image
    return out


def all_tiles(camera):
    return np.ones(camera.tile_count, np.uint8)


def whole(camera):
    return 0, 0, camera.width, camera.height


def window_2d():
    offsets = np.arange(-5, 6)
    weight = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    return weight / weight.sum()


def ssim_map(x, y):
    """SSIM of every pixel of two (height, width) images: direct 11 x 11 windows over images
    that are zero outside."""
    weight = window_2d()

    def mean(image):
        views = np.lib.stride_tricks.sliding_window_view(np.pad(image, 5), (11, 11))
        return np.einsum("hwij,ij->hw", views, weight)

    mean_x, mean_y = mean(x), mean(y)
    variance_x, variance_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    return ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)
            / ((mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2)))


def reference_loss(image, photo, weight):
    """Loss of (3, height, width) against (height, width, 3) uint8."""
    y = photo.transpose(2, 0, 1) / 255
    ssim = np.mean([ssim_map(a, b) for a, b in zip(image, y)])
    return (1 - weight) * abs(image - y).mean() + weight * (1 - ssim)


def tile_sums(values, camera):
    """Sums of (3, height, width) over channels and the pixels of each tile."""
    tiles_x, tiles_y = camera.tiles
    return padded(values, camera).reshape(3, tiles_y, 16, tiles_x, 16).sum((0, 2, 4)).ravel()


def random_pair(rng, camera):
    photo = rng.integers(0, 256, (camera.height, camera.width, 3), np.uint8)
    image = 0.7 * photo.transpose(2, 0, 1) / 255 + rng.uniform(-0.1, 0.4, (3, camera.height,
                                                                          camera.width))
    return image, photo


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# narrower than the window, one tile, clipped tiles, and more tiles than one sweep is wide
@pytest.mark.parametrize("size", [(1, 1), (5, 7), (16, 16), (37, 21), (290, 18)])
def test_sums_equal_direct_windows(rng, size):
    camera = camera_of(*size)
    image, photo = random_pair(rng, camera)
    y = photo.transpose(2, 0, 1) / 255
    # the padding holds what it likes
    _, sums = Host().loss(padded(image, camera, 3.0), photo, camera, all_tiles(camera),
                          whole(camera), 0.2)
    ssim = np.array([ssim_map(a, b) for a, b in zip(image, y)])
    np.testing.assert_allclose(sums[:, 0], tile_sums(abs(image - y), camera), rtol=1e-12)
    np.testing.assert_allclose(sums[:, 1], tile_sums(1 - ssim, camera), rtol=1e-9, atol=1e-9)
    squares = (np.clip(image, 0, 1) - y) ** 2
    np.testing.assert_allclose(sums[:, 2], tile_sums(squares, camera), rtol=1e-12)
    values = 3 * camera.width * camera.height
    loss = (0.8 * sums[:, 0].sum() + 0.2 * sums[:, 1].sum()) / values
    assert loss == pytest.approx(reference_loss(image, photo, 0.2), rel=1e-10)


@pytest.mark.parametrize("size", [(3, 2), (19, 23)])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_gradient_against_central_differences(rng, size, weight):
    camera = camera_of(*size)
    image, photo = random_pair(rng, camera)
    gradient, _ = Host().loss(padded(image, camera), photo, camera, all_tiles(camera),
                              whole(camera), weight)
    assert not gradient[:, size[1] :].any() and not gradient[:, :, size[0] :].any()
    step = 1e-5
    kinks = abs(image - photo.transpose(2, 0, 1) / 255) < 2 * step
    assert not kinks.any()
    points = [(c, y, x) for c in range(3) for y in range(0, size[1], 3)
              for x in range(0, size[0], 3)]
    numeric = np.zeros(len(points))
    for k, at in enumerate(points):
        for sign in (1, -1):
            moved = image.copy()
            moved[at] += sign * step
            numeric[k] += sign * reference_loss(moved, photo, weight) / (2 * step)
    got = np.array([gradient[at] for at in points])
    assert np.linalg.norm(got - numeric) <= 1e-6 * np.linalg.norm(numeric)


def test_gradient_is_zero_where_image_and_photo_agree(rng):
    camera = camera_of(40, 33)
    photo = rng.integers(0, 256, (33, 40, 3), np.uint8)
    image = padded(photo.transpose(2, 0, 1) / 255.0, camera)
    gradient, sums = Host().loss(image, photo, camera, all_tiles(camera), whole(camera), 0.2)
    # SSIM is at its maximum of 1 there and |x - y| has gradient 0; float64 rounding is left
    assert abs(gradient).max() < 1e-14
    assert abs(sums).max() < 1e-9


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_some_tiles_equal_the_whole_image_there(rng, real):
    """Supervised tiles get what the whole image gives, also when the image is wrong more than
    10 pixels from them, at every cut into windows."""
    camera = camera_of(330, 170)
    image, photo = random_pair(rng, camera)
    image = padded(image.astype(real), camera)
    host = Host(real)
    want, want_sums = host.loss(image, photo, camera, all_tiles(camera), whole(camera), 0.3)
    tiles_x, tiles_y = camera.tiles
    tiles = (rng.random(camera.tile_count) < 0.1).astype(np.uint8)
    tiles[-1] = 1
    grid = tiles.reshape(tiles_y, tiles_x).astype(bool)
    grid[:2] = False
    tiles = grid.astype(np.uint8).ravel()
    held = np.repeat(np.repeat(grid, 16, 0), 16, 1)
    near = np.zeros_like(held)
    for y, x in zip(*np.nonzero(grid)):
        near[max(0, 16 * y - 10) : 16 * y + 26, max(0, 16 * x - 10) : 16 * x + 26] = True
    image[:, ~near] = 7
    rows, columns = np.nonzero(near[:170, :330])
    rect = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    for threads in (1, 2):
        host.threads = threads
        gradient, sums = host.loss(image, photo, camera, tiles, rect, 0.3)
        np.testing.assert_array_equal(gradient[:, held], want[:, held])
        assert not gradient[:, ~held].any()
        np.testing.assert_array_equal(sums[tiles == 1], want_sums[tiles == 1])
        assert not sums[tiles == 0].any()


def test_float32_follows_float64(rng):
    camera = camera_of(100, 60)
    image, photo = random_pair(rng, camera)
    single, double = (
        Host(real).loss(padded(image.astype(np.float32).astype(real), camera), photo, camera,
                        all_tiles(camera), whole(camera), 0.2)
        for real in (np.float32, np.float64)
    )
    # moments cancel to variances: a few hundred float32 roundings against C2 = 9e-4
    assert np.linalg.norm(single[0] - double[0]) < 1e-4 * np.linalg.norm(double[0])
    np.testing.assert_allclose(single[1], double[1], rtol=1e-4)


def test_nothing_supervised_and_wrong_arguments(rng):
    camera = camera_of(33, 20)
    image, photo = random_pair(rng, camera)
    image = padded(image, camera)
    none = np.zeros(camera.tile_count, np.uint8)
    for rect in (whole(camera), (0, 0, 0, 0)):
        gradient, sums = Host().loss(image, photo, camera, none, rect, 0.2)
        assert not gradient.any() and not sums.any()
    with pytest.raises(ValueError, match="image must be"):
        Host().loss(image[:, 1:], photo, camera, none, whole(camera), 0.2)
    with pytest.raises(ValueError, match="photo must be"):
        Host().loss(image, photo / 255, camera, none, whole(camera), 0.2)
    with pytest.raises(ValueError, match="rect must lie in 0, 0, 33, 20"):
        Host().loss(image, photo, camera, none, (0, 0, 34, 20), 0.2)
