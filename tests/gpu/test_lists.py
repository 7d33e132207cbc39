"""Tile lists of the CUDA backend: the same tiles, items, order and intervals as the host's.

Equality is exact: both sides test tiles by the same unfused operations (math/tiles.cuh). What
the two libraries round differently, the logarithm, is rounded from double; that it differs in a
bit that decides about a tile has a chance of some 1e-10 a splat.
"""

import numpy as np
import pytest
import reference
from splats import Raster, make_camera, make_splats, random_splats
from test_intervals import random_tree, rotation
from test_tile_lists import EXTREME

from splaxel_mpi.backends import cuda_lists, cuda_sort
from splaxel_mpi.backends.base import Splats
from splaxel_mpi.scene.camera import Camera

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
HOST = Raster(np.float32, 2)


class Lists(cuda_lists.CudaLists):
    """The lists alone."""

    real = np.dtype(np.float32)


def to_device(splats):
    import cupy

    return Splats(*(cupy.asarray(array) for array in (splats.rows, splats.data, splats.ids)))


def device_lists(splats, camera, box=None, mask=None, lists=None):
    import cupy

    mask = None if mask is None else cupy.asarray(mask)
    return (lists or Lists()).tile_lists(to_device(splats), camera, box, mask)


def check(splats, camera, box=None, mask=None, lists=None):
    """Lists of both backends are equal; returns the device's."""
    found = device_lists(splats, camera, box, mask, lists)
    expected = HOST.tile_lists(splats, camera, box, mask)
    for name, dtype in (("tiles", np.int32), ("offsets", np.int64), ("items", np.int32)):
        array = getattr(found, name)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array.get(), getattr(expected, name), name)
    assert (found.intervals is None) == (expected.intervals is None)
    return found


@pytest.mark.parametrize("width, height", [(1, 1), (16, 16), (17, 250), (333, 201), (1920, 1080)])
def test_lists_equal_those_of_the_host(width, height):
    camera = make_camera(width, height)
    for seed, sigma in enumerate([(0.55, 3), (0.6, 12), (1, 200)]):
        check(random_splats(camera, 3001, np.float32, seed, sigma), camera)


@pytest.mark.parametrize("count", [1, 31, 33, 255, 256, 257, 8193])
def test_any_number_of_splats(count):
    camera = make_camera(120, 90)
    check(random_splats(camera, count, np.float32, seed=count), camera)


def test_nothing_to_list():
    camera = make_camera(40, 30)
    away = make_splats([(-500, 10, 3, 3, 0, 0.5, 1), (20, 900, 3, 3, 0, 0.5, 1)], np.float32)
    dark = np.zeros(camera.tile_count, np.uint8)
    for found in (
        check(make_splats(np.zeros((0, 7)), np.float32), camera),
        check(away, camera),
        check(random_splats(camera, 50, np.float32), camera, mask=dark),
    ):
        assert found.tiles.shape == (0,) and found.offsets.get().tolist() == [0]


# how many splats share a depth: pairs, runs that are settled on the fly, runs that are not
@pytest.mark.parametrize("depths", [3000, 400, 100, 5, 1])
@pytest.mark.parametrize("ids", ["ascending", "ghosts last", "descending", "any"])
def test_equal_depths_are_in_order_of_id(depths, ids):
    camera, random = make_camera(90, 70), np.random.default_rng(depths)
    splats = random_splats(camera, 5000, np.float32)
    splats.data[:, 9] = random.integers(1, depths + 1, 5000) * np.float32(0.37)
    splats.ids[:] = np.arange(5000)
    if ids == "ghosts last":
        splats.ids[4500:] = random.permutation(4500)[:500]
        splats.ids[:4500] *= 2
    elif ids == "descending":
        splats.ids[:] = splats.ids[::-1].copy()
    elif ids == "any":
        splats.ids[:] = random.permutation(5000) * 10**14
    found = check(splats, camera)
    offsets, items = found.offsets.get(), found.items.get()
    for begin, end in zip(offsets, offsets[1:]):
        keys = list(zip(splats.data[items[begin:end], 9], splats.ids[items[begin:end]]))
        assert keys == sorted(keys)


def test_masked_tiles_are_absent():
    camera = make_camera(164, 148)
    splats = random_splats(camera, 1000, np.float32, sigma=(0.6, 40))
    for share in (0.9, 0.5, 0.02):
        mask = (np.random.default_rng(2).random(camera.tile_count) < share).astype(np.uint8)
        assert mask[check(splats, camera, mask=mask).tiles.get()].all()


@pytest.mark.parametrize("cells, seed", [(2, 1), (5, 2), (8, 3)])
def test_cells(cells, seed):
    """Lists and intervals of every cell of a tree; the intervals to the bit."""
    tree, turn = random_tree(cells, seed), rotation(seed)
    center = np.random.default_rng(seed).uniform(-8, 8, 3)
    camera = Camera(203, 131, 190, 185, 99.5, 70.25, turn, -turn @ center)
    splats = random_splats(camera, 4000, np.float32, seed)
    splats.data[:, 9] *= 0.3
    mask = (np.random.default_rng(seed).random(camera.tile_count) < 0.7).astype(np.uint8)
    with_intervals = 0
    for box in tree.boxes():
        check(splats, camera, box, mask)
        found = check(splats, camera, box)
        if found.intervals is None:
            continue
        with_intervals += 1
        check_intervals(found, camera, box)
        check_host_intervals(found, HOST.tile_lists(splats, camera, box).intervals)
    assert with_intervals


def check_host_intervals(found, expected):
    """The host keeps tiles that a face crosses alone, in columns of 4 x 16 pixels."""
    position = np.arange(256)
    pixel = position % 64 // 4 * 16 + position // 64 * 4 + position % 4
    crossed = expected.rows >= 0
    np.testing.assert_array_equal(
        found.intervals.get()[crossed][:, :, pixel], expected.table[expected.rows[crossed]]
    )


def check_intervals(found, camera, box):
    """The plain reference clips nowhere: infinite ends are 3e38 here, empty rays (3e38, -3e38)."""
    intervals, tiles = found.intervals.get(), found.tiles.get()
    assert intervals.shape == (len(tiles), 2, 256) and intervals.dtype == np.float32
    far = np.float32(3e38)
    enter, leave = reference.ray_intervals(camera, box, np.float32)
    empty = ~(enter < leave)
    enter, leave = np.clip(enter, -far, far), np.clip(leave, -far, far)
    enter[empty], leave[empty] = far, -far
    across, down = camera.tiles
    pad = ((0, 16 * down - camera.height), (0, 16 * across - camera.width))
    for plane, (image, outside) in enumerate([(enter, far), (leave, -far)]):
        image = np.pad(image, pad, constant_values=outside)
        cut = image.reshape(down, 16, across, 16).swapaxes(1, 2).reshape(-1, 256)
        np.testing.assert_array_equal(intervals[:, plane], cut[tiles])


def test_cell_that_fills_the_view_has_no_intervals():
    camera = make_camera(64, 48)
    splats = random_splats(camera, 200, np.float32)
    everything = np.array([[-np.inf] * 3, [np.inf] * 3])
    around = np.array([[-1e6] * 3, [1e6] * 3])
    for box in (everything, around):
        assert check(splats, camera, box).intervals is None
    beside = np.array([[1000.0, -np.inf, -np.inf], [np.inf] * 3])
    assert len(check(splats, camera, beside).tiles) == 0


@pytest.mark.parametrize("name", EXTREME)
def test_extreme_splats(name):
    camera = make_camera(70, 50)
    check(make_splats([EXTREME[name]], np.float32), camera)


def test_broken_numbers():
    camera = make_camera(40, 30)
    splats = make_splats([(20, 15, 3, 3, 0, 0.8, 2)] * 25, np.float32)
    for k in range(12):
        splats.data[2 * k, k], splats.data[2 * k + 1, k] = np.nan, np.inf
    check(splats, camera)
    check(splats, camera, np.array([[-np.inf] * 3, [np.inf, np.inf, 3.0]]))


def test_more_instances_than_any_view_before():
    """The capacity grows by repeating the pass, and stays."""
    camera, lists = make_camera(1280, 720), Lists()
    check(random_splats(camera, 100, np.float32), camera, lists=lists)
    wide = random_splats(camera, 400, np.float32, sigma=(300, 900), opacity=(0.5, 0.9))
    found = check(wide, camera, lists=lists)
    assert len(found.items) > 1 << 20
    check(wide, camera, lists=lists)
    check(random_splats(camera, 100, np.float32), camera, lists=lists)


def test_parts_of_one_array():
    """Views and cells that are listed together, of two sizes, with and without masks and cells,
    one of them empty, rows of none between them: each has the lists it would have alone."""
    import cupy

    lists, random = Lists(), np.random.default_rng(3)
    lists._capacity = cuda_lists.Capacity(rows=100, instances=50)  # too few at first
    wide, narrow, boxes = make_camera(333, 201), make_camera(90, 70), random_tree(3, 1).boxes()
    sizes, gap = [(wide, 700), (narrow, 300), (wide, 0), (wide, 500), (narrow, 40)], 37
    rows = sum(count + gap for _, count in sizes)
    base = Splats(cupy.empty(rows, np.int32), cupy.full((rows, 12), np.nan, np.float32),
                  cupy.zeros(rows, np.int64))
    jobs, alone, start = [], [], 11
    for k, (camera, count) in enumerate(sizes):
        splats = random_splats(camera, max(count, 1), np.float32, k, (0.6, 20)).slice(0, count)
        part = base.slice(start, start + count)
        part.data[...], part.ids[...] = cupy.asarray(splats.data), cupy.asarray(splats.ids)
        part.place = base, start
        mask = (random.random(camera.tile_count) < 0.6).astype(np.uint8) if k % 2 else None
        job = camera, boxes[k] if k < 3 else None, mask, None
        jobs.append((part, *job))
        alone.append(HOST.tile_lists(splats, *job))
        start += count + gap
    for _ in range(2):  # the second time there is room
        for (part, *_), expected, found in zip(jobs, alone, lists.start_tile_lists(jobs).take()):
            np.testing.assert_array_equal(found.held, expected.tiles)
            np.testing.assert_array_equal(found.tiles.get(), expected.tiles)
            offsets, items = found.offsets.get(), found.items.get() - part.place[1]
            np.testing.assert_array_equal(offsets - offsets[0], expected.offsets)
            np.testing.assert_array_equal(items[offsets[0] : offsets[-1]], expected.items)


def test_more_tiles_than_16_bits_number():
    camera = make_camera(4112, 4112)
    assert camera.tile_count > 1 << 16
    found = check(random_splats(camera, 20000, np.float32), camera)
    assert found.tiles.get().max() >= 1 << 16


def test_later_lists_leave_earlier_ones_alone():
    camera, lists = make_camera(200, 100), Lists()
    box = np.array([[-np.inf] * 3, [2.0, np.inf, np.inf]])
    splats = random_splats(camera, 2000, np.float32)
    first = device_lists(splats, camera, box, lists=lists)
    kept = [array.copy() for array in (first.tiles, first.offsets, first.items, first.intervals)]
    device_lists(random_splats(camera, 3000, np.float32, seed=9), camera, box, lists=lists)
    for array, copy in zip((first.tiles, first.offsets, first.items, first.intervals), kept):
        assert (array == copy).all()


def test_arrays_that_kernels_would_misread_are_refused():
    camera = make_camera(40, 30)
    splats = to_device(random_splats(camera, 10, np.float32))
    splats.data = splats.data.astype(np.float64)
    with pytest.raises(TypeError, match="float32"):
        Lists().tile_lists(splats, camera)


@pytest.mark.parametrize("method", ["at hand", "cupy"])
@pytest.mark.parametrize("key_type", [np.uint16, np.uint32, np.int64])
def test_sort_is_stable(method, key_type, monkeypatch):
    import cupy

    if method == "cupy":
        monkeypatch.setattr(cuda_sort, "_sorter", lambda *types: cuda_sort.ArgSort())
    random = np.random.default_rng(1)
    for count, bits in [(0, 8), (1, 8), (1000, 5), (300_000, 13)]:
        keys = random.integers(0, 1 << bits, count + 5).astype(key_type)
        values = random.integers(0, 1 << 30, count + 5).astype(np.int32)
        found = cuda_sort.sort_pairs(cupy.asarray(keys), cupy.asarray(values), count, bits)
        order = np.argsort(keys[:count], kind="stable")
        np.testing.assert_array_equal(found[0].get(), keys[order])
        np.testing.assert_array_equal(found[1].get(), values[order])


def test_lists_without_the_sorting_package(monkeypatch):
    monkeypatch.setattr(cuda_sort, "_sorter", lambda *types: cuda_sort.ArgSort())
    camera = make_camera(333, 201)
    splats = random_splats(camera, 3000, np.float32)
    splats.data[:, 9] = np.ceil(splats.data[:, 9])
    check(splats, camera)
