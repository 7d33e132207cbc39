"""Composition, optimizer and packing on the host against plain numpy."""

import numpy as np
import pytest
from tables import piece_table

from splaxel_mpi.backends.host_pixels import HostPixels
from splaxel_mpi.backends.pieces import stream_items
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.visibility.tiles import rects


class Host(HostPixels):
    def __init__(self, real=np.float64, threads=1):
        self.real, self.threads = np.dtype(real), threads


@pytest.fixture
def rng():
    return np.random.default_rng(23)


BACKGROUND = np.array([0.2, 0.5, 0.9])


def random_layers(rng, tiles, layers, absent=0.3):
    """Pool and slots in random order, some layers without a tile."""
    pool = rng.random((tiles * layers + 2, 4, 256))
    slots = rng.permutation(len(pool))[: tiles * layers].reshape(tiles, layers).astype(np.int32)
    slots[rng.random(slots.shape) < absent] = -1
    return pool, slots


def compose_reference(pool, slots, background):
    image = np.zeros((len(slots), 3, 256))
    passed = np.ones((len(slots), 256))
    for tile, row in enumerate(slots):
        for slot in row[row >= 0]:
            image[tile] += passed[tile] * pool[slot, :3]
            passed[tile] *= pool[slot, 3]
    return image + passed[:, None] * background[:, None], passed


@pytest.mark.parametrize("layers", [0, 1, 2, 8])
@pytest.mark.parametrize("real, tolerance", [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_compose(rng, layers, real, tolerance):
    pool, slots = random_layers(rng, 7, layers)
    image, passed = Host(real, 2).compose(pool.astype(real), slots, BACKGROUND)
    want, want_passed = compose_reference(pool, slots, BACKGROUND)
    assert image.dtype == real and passed.dtype == real
    np.testing.assert_allclose(image, want, rtol=tolerance)
    np.testing.assert_allclose(passed, want_passed, rtol=tolerance, atol=1e-12)


def test_compose_backward_against_central_differences(rng):
    tiles, layers, step = 3, 5, 1e-6
    pool, slots = random_layers(rng, tiles, layers)
    gradient = rng.normal(size=(tiles, 3, 256))
    wanted = np.where(slots < 0, -1, slots)
    out = Host().compose_backward(pool, slots, BACKGROUND, gradient, wanted.astype(np.int32),
                                  len(pool))
    numeric = np.zeros_like(pool)
    for slot in slots[slots >= 0]:
        for plane in range(4):  # pixels do not interact: all 256 are moved at once
            sides = []
            for sign in (1, -1):
                moved = pool.copy()
                moved[slot, plane] += sign * step
                image, _ = Host().compose(moved, slots, BACKGROUND)
                sides.append((image * gradient).sum(axis=(0, 1)))
            numeric[slot, plane] = (sides[0] - sides[1]) / (2 * step)
    # (f(x + h) - f(x - h)) / 2h of a function linear in every value: rounding over 1e-6 is left
    assert np.linalg.norm(out - numeric) <= 1e-6 * np.linalg.norm(numeric)
    unused = np.setdiff1d(np.arange(len(pool)), slots)
    assert not out[unused].any()


def test_compose_backward_gives_only_what_is_wanted(rng):
    pool, slots = random_layers(rng, 6, 4)
    gradient = rng.normal(size=(6, 3, 256))
    full = Host().compose_backward(pool, slots, BACKGROUND, gradient, slots, len(pool))
    wanted = np.full_like(slots, -1)
    chosen = [tuple(at) for at in np.argwhere(slots >= 0)[::3]]
    for row, at in enumerate(chosen):
        wanted[at] = len(chosen) - 1 - row
    out = Host(threads=2).compose_backward(pool, slots, BACKGROUND, gradient, wanted,
                                           len(chosen) + 1)
    for at in chosen:
        np.testing.assert_array_equal(out[wanted[at]], full[slots[at]])
    assert not out[-1].any()


def test_rows_beyond_the_count_are_not_wanted(rng):
    pool, slots = random_layers(rng, 6, 4)
    gradient = rng.normal(size=(6, 3, 256))
    full = Host().compose_backward(pool, slots, BACKGROUND, gradient, slots, len(pool))
    some = Host().compose_backward(pool, slots, BACKGROUND, gradient, slots, 7)
    np.testing.assert_array_equal(some, full[:7])


def test_opaque_front_layer_hides_without_division(rng):
    pool, slots = random_layers(rng, 2, 4, absent=0)
    pool[slots[:, 0], 3] = 0
    image, passed = Host().compose(pool, slots, BACKGROUND)
    np.testing.assert_array_equal(image, pool[slots[:, 0], :3])
    assert not passed.any()
    gradient = rng.normal(size=(2, 3, 256))
    out = Host().compose_backward(pool, slots, BACKGROUND, gradient, slots, len(pool))
    assert np.isfinite(out).all()
    assert not out[slots[:, 1:]].any()
    np.testing.assert_array_equal(out[slots[:, 0], :3], gradient)
    # the gradient of an opaque layer's transmittance is what it hides
    behind, _ = compose_reference(pool, slots[:, 1:], BACKGROUND)
    np.testing.assert_allclose(out[slots[:, 0], 3], (gradient * behind).sum(1), rtol=1e-12,
                               atol=1e-13)


@pytest.mark.parametrize("layers", [0, 1, 5])
@pytest.mark.parametrize("real, tolerance", [(np.float32, 1e-5), (np.float64, 1e-13)])
def test_residuals(rng, layers, real, tolerance):
    """Against plain loops; pixels of clipped tiles outside the image (T = 1) do not count."""
    camera = Camera(37, 21, 30, 30, 18, 10, np.eye(3), np.zeros(3))  # 3 x 2 tiles
    tiles = np.array([5, 0, 2, 3], np.int32)
    pool, slots = random_layers(rng, len(tiles), layers)
    expected = np.zeros((len(tiles), layers + 1))
    for k, tile in enumerate(tiles):
        passed, high, wide = np.ones((16, 16)), 16 if tile < 3 else 5, 5 if tile % 3 == 2 else 16
        for m in range(layers + 1):
            expected[k, m] = passed[:high, :wide].max()
            if m < layers and slots[k, m] >= 0:
                passed = passed * pool[slots[k, m], 3].reshape(16, 16)
        outside = np.ones((16, 16), bool)
        outside[:high, :wide] = False
        for slot in slots[k][slots[k] >= 0]:
            pool[slot, 3, outside.ravel()] = 1
    found = Host(real, 2).residuals(pool.astype(real), slots, tiles, camera)
    assert found.dtype == real
    np.testing.assert_allclose(found, expected, rtol=tolerance)
    with pytest.raises(ValueError, match="tiles must lie in 0 to 5"):
        Host(real).residuals(pool.astype(real), slots, tiles + np.int32(1), camera)


def test_compose_rejects_wrong_arguments(rng):
    pool, slots = random_layers(rng, 2, 2)
    slots[0, 0] = len(pool)
    with pytest.raises(ValueError, match="slots must lie in -1 to 5"):
        Host().compose(pool, slots, BACKGROUND)
    slots[0, 0] = 0
    with pytest.raises(ValueError, match="pool must be .*float32"):
        Host(np.float32).compose(pool, slots, BACKGROUND)


def adam_reference(x, g, m, v, rate, betas, epsilon, step, scale):
    g = g * scale
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    m_hat, v_hat = m / (1 - betas[0] ** step), v / (1 - betas[1] ** step)
    return x - rate * m_hat / (np.sqrt(v_hat) + epsilon), m, v


@pytest.mark.parametrize("width", [1, 3, 4, 45])
@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("real, tolerance", [(np.float32, 1e-5), (np.float64, 1e-12)])
def test_adam_follows_the_formula(rng, width, selective, real, tolerance):
    settings = (0.01, (0.9, 0.999), 1e-15)
    state = [rng.normal(size=(101, width)), np.zeros((101, width)), np.zeros((101, width))]
    arrays = [array.astype(real) for array in state]
    for step in range(1, 6):
        gradient = rng.normal(size=(101, width)) * 10.0 ** rng.integers(-6, 3, (101, 1))
        seen = (rng.random(101) < 0.6).astype(np.uint8) if selective else None
        rows = seen.astype(bool) if selective else slice(None)
        updated = adam_reference(state[0], gradient, *state[1:], *settings, step, 0.25)
        for array, new in zip(state, updated):
            array[rows] = new[rows]
        host = Host(real, threads=1 + step % 3)
        used, clear = gradient.astype(real), step % 2 == 0
        group = (arrays[0], used, *arrays[1:], settings[0])
        host.adam_groups([group], seen, *settings[1:], step, 0.25, clear=clear)
        left = gradient.astype(real)
        left[rows if clear else slice(0)] = 0
        np.testing.assert_array_equal(used, left)
    for got, want in zip(arrays, state):
        np.testing.assert_allclose(got, want, rtol=10 * tolerance, atol=tolerance * abs(want).max())


def test_adam_at_a_late_step_and_without_gradient():
    x, m, v = np.ones((2, 3)), np.zeros((2, 3)), np.zeros((2, 3))
    rules = (0.9, 0.999), 1e-15
    Host().adam_groups([(x, np.zeros((2, 3)), m, v, 0.1)], None, *rules, 10**7, 1.0)
    np.testing.assert_array_equal(x, 1)
    Host().adam_groups([(x, np.ones((2, 3)), m, v, 0.1)], None, *rules, 10**7, 1.0)
    np.testing.assert_allclose(x, 1 - 0.1 * 0.1 / np.sqrt(0.001), rtol=1e-12)
    with pytest.raises(ValueError, match="step must be 1 or more"):
        Host().adam_groups([(x, x, m, v, 0.1)], None, *rules, 0, 1.0)
    with pytest.raises(ValueError, match="seen must be .*uint8"):
        Host().adam_groups([(x, x, m, v, 0.1)], np.ones(2, bool), *rules, 1, 1.0)
    with pytest.raises(ValueError, match="parameter must be .*shape \\(2, 3\\)"):
        Host().adam_groups([(x, x, m, v, 0.1), (*[np.ones((3, 3))] * 4, 0.1)], None, *rules, 1, 1)


def camera_of(width, height):
    return Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))


def random_pieces(rng, count, planes, real):
    """Tiles of all magnitudes that float16 tells apart, and rectangles of some of them."""
    rows = rng.permutation(count + 3)[:count]
    low = rng.integers(0, 12, (count, 2))
    rects = np.concatenate([low, low + rng.integers(1, 17 - low)], axis=1)
    rects[::3] = 0, 0, 16, 16
    magnitude = 10.0 ** rng.integers(-9, 5, (count + 3, planes, 256))
    return (rng.normal(size=magnitude.shape) * magnitude).astype(real), rows, rects


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("planes, half", [(3, False), (4, False), (4, True)])
def test_pack_and_unpack(rng, planes, half, real):
    pixels, rows, rects = random_pieces(rng, 40, planes, real)
    table, count = piece_table(rows, rects)
    host = Host(real, threads=2)
    stream = host.pack(pixels, table, count, half, 2.0)
    items, kind = stream_items(real, planes, half)
    assert stream.dtype == kind and len(stream) == items * count
    want, pieces = np.full(pixels.shape, 7, real), []
    for row, (x0, y0, x1, y1) in zip(rows, rects):
        inside = pixels[row].reshape(planes, 16, 16)[:, y0:y1, x0:x1]
        pieces.append(inside.reshape(planes, -1))
        if half:
            with np.errstate(over="ignore"):
                colour = (2 * inside[:3]).astype(np.float32).astype(np.float16)
            words = [colour.ravel().view(np.uint16), inside[3].ravel().view(np.uint16)]
            pieces[-1] = np.concatenate(words)
            inside = np.concatenate([colour.astype(real) / 2, inside[3:]])
        want[row].reshape(planes, 16, 16)[:, y0:y1, x0:x1] = inside
    np.testing.assert_array_equal(stream, np.concatenate([piece.ravel() for piece in pieces]))
    out = np.full(pixels.shape, 7, real)
    host.unpack(stream, table, out, half, 0.5)
    np.testing.assert_array_equal(out, want)


def test_half_is_ieee_half():
    """Every half there and back, and what lies between two of them, as numpy has it."""
    halves = np.arange(65536, dtype=np.uint16)
    exact = halves.view(np.float16).astype(np.float32)
    pixels = np.zeros((128, 4, 256), np.float32)
    table, count = piece_table(np.arange(128), np.broadcast_to([0, 0, 16, 16], (128, 4)))
    bits = exact.view(np.uint32)
    values = [exact, (bits + 0x1000).view(np.float32), (bits + 0x0FFF).view(np.float32),
              (bits + 0x1001).view(np.float32)]
    for value in values:
        for part in np.split(value, 2):
            pixels[:, 0] = part.reshape(128, 256)
            stream = Host(np.float32).pack(pixels, table, count, True)
            got = stream.reshape(128, -1)[:, :256].ravel()
            with np.errstate(over="ignore"):
                want = part.astype(np.float16)
            numbers = ~np.isnan(want)
            np.testing.assert_array_equal(got[numbers], want.view(np.uint16)[numbers])
            assert np.isnan(got.view(np.float16)[~numbers]).all()
            out = np.zeros_like(pixels)
            Host(np.float32).unpack(stream, table, out, True)
            np.testing.assert_array_equal(out[:, 0].ravel(), want.astype(np.float32))


def test_the_stream_of_all_tiles_is_as_large_as_the_image():
    camera = camera_of(449, 800)
    tiles = np.arange(camera.tile_count)
    table, count = piece_table(tiles, rects(camera))
    assert count == 449 * 800
    assert Host().pack(np.zeros((len(tiles), 4, 256)), table, count).size == 4 * count


def test_pack_rejects_wrong_arguments():
    pixels, nothing = np.zeros((1, 4, 256)), np.zeros((0, 2), np.int64)
    assert Host().pack(pixels, nothing, 0).size == 0
    whole, count = piece_table([0], [[0, 0, 16, 16]])
    for row, rect in ((1, [0, 0, 16, 16]), (0, [0, 0, 17, 16]), (0, [5, 0, 4, 16])):
        table, size = piece_table([row], [rect])
        with pytest.raises(ValueError, match="does not lie in 1 tiles"):
            Host().pack(pixels, table, max(size, 300))
    with pytest.raises(ValueError, match="does not lie in 1 tiles and 255 pixels"):
        Host().unpack(np.zeros(4 * 255), whole, pixels)
    with pytest.raises(ValueError, match="pixels must be .*4"):
        Host().pack(np.zeros((1, 3, 256)), whole, count, True)
    with pytest.raises(ValueError, match="stream must be .*uint16"):
        Host().unpack(np.zeros(7 * 256), whole, pixels, True)
