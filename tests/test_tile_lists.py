"""Tile lists: order, completeness, masks, and splats at the edge of what numbers hold."""

import numpy as np
import pytest
import reference
from splats import (  # noqa: F401 (each_isa is a fixture)
    REALS,
    Raster,
    each_isa,
    gradient_of,
    image_of,
    make_camera,
    make_splats,
    random_seeds,
    random_splats,
    render,
)

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("real", REALS)
def test_nothing_to_draw(real):
    camera = make_camera(40, 30)
    empty = make_splats(np.zeros((0, 7)), real)
    away = make_splats([(-500, 10, 3, 3, 0, 0.5, 1), (20, 900, 3, 3, 0, 0.5, 1)], real)
    for splats in (empty, away):
        raster, lists, partial = render(splats, camera, real)
        assert len(lists.tiles) == 0 and lists.offsets.tolist() == [0]
        assert partial.pixels.shape == (0, 4, 256)
        seeds = np.zeros((0, 4, 256), real)
        gradient = raster.rasterize_backward(splats, lists, partial, seeds, camera, 0)
        assert gradient.shape == (len(splats), 9) and (gradient == 0).all()


@pytest.mark.parametrize("real", REALS)
def test_lists_are_in_order_of_depth_then_id(real):
    camera = make_camera(60, 40)
    splats = random_splats(camera, 400, real)
    random = np.random.default_rng(5)
    splats.data[:, 9] = random.integers(1, 6, 400) * real(0.37)
    splats.ids[:] = random.permutation(400) * 10**12
    lists = Raster(real, 2).tile_lists(splats, camera)
    assert (np.diff(lists.tiles) > 0).all() and lists.offsets[-1] == len(lists.items)
    for begin, end in zip(lists.offsets, lists.offsets[1:]):
        items = lists.items[begin:end]
        assert end > begin
        keys = list(zip(splats.data[items, 9], splats.ids[items]))
        assert keys == sorted(keys)


def drawn_tiles(splat, camera):
    """Tiles in which the reference draws a pixel of the splat."""
    y, x = np.nonzero(reference.alphas(splat, camera))
    return set((y // 16 * camera.tiles[0] + x // 16).tolist())


@pytest.mark.parametrize("real", REALS)
def test_lists_hold_every_drawn_tile_and_few_more(real):
    camera = make_camera(120, 90)
    splats = random_splats(camera, 500, real, sigma=(0.5, 30))
    lists = Raster(real).tile_lists(splats, camera)
    listed = [set() for _ in range(len(splats))]
    for tile, begin, end in zip(lists.tiles, lists.offsets, lists.offsets[1:]):
        for item in lists.items[begin:end]:
            listed[item].add(int(tile))
    drawn = [drawn_tiles(splat, camera) for splat in splats.data]
    assert all(need <= have for need, have in zip(drawn, listed))
    # an ellipse may pass between pixel centres; a bounding box would add far more
    needed = sum(map(len, drawn))
    assert len(lists.items) < 1.03 * needed + 5


@pytest.mark.parametrize("real", REALS)
def test_masked_tiles_are_absent(real):
    camera = make_camera(64, 48)
    splats = random_splats(camera, 100, real)
    mask = (np.random.default_rng(2).random(camera.tile_count) < 0.5).astype(np.uint8)
    _, lists, partial = render(splats, camera, real, mask=mask)
    _, whole, complete = render(splats, camera, real)
    assert set(lists.tiles) == set(whole.tiles) & set(np.nonzero(mask)[0])
    kept = np.isin(whole.tiles, lists.tiles)
    np.testing.assert_array_equal(partial.pixels, complete.pixels[kept])


EXTREME = {
    "huge": (30, 20, 1e6, 1e6, 0.3, 0.5, 1),
    "huge and off-screen": (-3e4, 2e4, 2e4, 3e4, 0.3, 0.9, 1),
    "far off-screen": (3e9, -3e9, 5, 5, 0, 0.9, 1),
    "needle": (33, 21, 0.55, 3000, 0.7, 0.9, 1),
    "flat needle": (33, 21.02, 2000, 0.55, 0, 0.9, 1),
    "upright needle": (33.02, 21, 0.55, 2000, 0, 0.9, 1),
    "needle through a corner": (-900, -700, 1500, 0.55, 0.6435, 0.95, 1),
    "under a pixel": (33.5, 21.5, 0.55, 0.55, 0, 0.01, 1),
    "between pixels": (32.0, 32.0, 0.55, 0.55, 0, 0.006, 1),
    "too faint": (33.5, 21.5, 5, 5, 0, 0.0039, 1),
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("real", REALS)
def test_extreme_splats(name, real, each_isa):
    camera = make_camera(70, 50)
    splats = make_splats([EXTREME[name]], real)
    expected = reference.rasterize(splats, camera)
    error = np.abs(image_of(splats, camera, real) - expected).max(axis=2)
    if real == np.float32:
        # q of a needle is a difference of terms up to 1e5: single pixels at the cut-off flip
        assert (error > 2e-2).sum() == 0 and (error > 1e-3).sum() <= 3
    else:
        assert error.max() < 1e-8
    gradient = gradient_of(splats, camera, real, random_seeds(camera))
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("real", REALS)
def test_broken_numbers_draw_nothing(real, each_isa):
    """NaN and infinity do not crash or reach the image; a sound splat beside them is drawn."""
    camera = make_camera(40, 30)
    good = (20, 15, 3, 3, 0, 0.8, 2)
    splats = make_splats([good] * 25, real)
    for k in range(12):
        splats.data[2 * k, k] = np.nan
        splats.data[2 * k + 1, k] = np.inf
    splats.data[:24, 6:9] = 0.5  # colours are the caller's
    image = image_of(splats, camera, real)
    assert np.isfinite(image).all() and image[15, 20, 3] < 0.25
