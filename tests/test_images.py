"""Pixels of views: decoding, undistortion, and the cache that a node shares."""

import logging
import threading
import time

import cv2
import numpy as np
import pytest
from PIL import Image

from make_dataset import build, make, shared_data, write_binary, write_images
from splaxel_mpi.data.budget import default_budget
from splaxel_mpi.data.dataset import load
from splaxel_mpi.data.images import ImageCache, decode
from splaxel_mpi.data.undistort import lens_of, undistort
from splaxel_mpi.errors import UserError

ONE = 24 * 16 * 3  # bytes of an image of the default size, a multiple of the cache's 64


def with_image(folder, image, size=(24, 16), **save):
    """A data set of one view whose photograph is the given PIL image."""
    scene = build(views=1, size=size)
    write_binary(folder, scene)
    (folder / "images").mkdir()
    image.save(folder / "images" / scene.names[0], **save)
    return load(folder, holdout=0)


def test_pixels_are_those_of_the_file(tmp_path):
    scene = make(tmp_path)
    for view in load(tmp_path).views:
        pixels = decode(view)
        assert pixels.dtype == np.uint8 and pixels.shape == (16, 24, 3)
        np.testing.assert_array_equal(pixels, scene.pixels[view.name])


def test_scale_is_a_box_filter(tmp_path):
    scene = make(tmp_path, size=(25, 17))
    for scale in (2, 1.5):
        view = load(tmp_path, scale=scale).views[3]
        full = Image.fromarray(scene.pixels[view.name])
        wanted = full.resize((int(25 // scale), int(17 // scale)), Image.Resampling.BOX)
        np.testing.assert_array_equal(decode(view), np.asarray(wanted))


def test_transparency_is_composited_on_black(tmp_path):
    rgba = np.full((16, 24, 4), 200, np.uint8)
    rgba[:, :12, 3], rgba[:, 12:, 3] = 0, 255
    pixels = decode(with_image(tmp_path, Image.fromarray(rgba)).views[0])
    assert (pixels[:, :12] == 0).all() and (pixels[:, 12:] == 200).all()


def test_grey_of_8_and_16_bits(tmp_path):
    grey = np.arange(16 * 24).reshape(16, 24) % 256
    (tmp_path / "8").mkdir()
    (tmp_path / "16").mkdir()
    one = decode(with_image(tmp_path / "8", Image.fromarray(grey.astype(np.uint8))).views[0])
    deep = Image.fromarray((grey * 257).astype(np.uint16))
    two = decode(with_image(tmp_path / "16", deep).views[0])
    for pixels in (one, two):
        np.testing.assert_array_equal(pixels, np.repeat(grey[..., None], 3, 2))


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def test_exif_orientation_is_ignored_aloud(tmp_path, caplog):
    scene = build(views=1)
    stored = scene.pixels[scene.names[0]]
    with caplog.at_level(logging.WARNING):
        data = with_image(tmp_path, Image.fromarray(stored), exif=exif(6))
    np.testing.assert_array_equal(decode(data.views[0]), stored)
    assert [record.getMessage().count("EXIF orientation 6") for record in caplog.records] == [1]


def test_exif_orientation_that_the_camera_expects_is_an_error(tmp_path):
    turned = Image.fromarray(np.zeros((24, 16, 3), np.uint8))
    with pytest.raises(UserError, match="stored as 16x24 with EXIF orientation 6"):
        with_image(tmp_path, turned, exif=exif(6))


# ---- undistortion


def radial(x, y, k1, k2):
    r2 = x * x + y * y
    return 1 + k1 * r2 + k2 * r2 * r2


# name, parameters after focal lengths and principal point, distorted position of a direction
LENSES = [
    ("SIMPLE_RADIAL", (-0.2,), lambda x, y: (x * radial(x, y, -0.2, 0), y * radial(x, y, -0.2, 0))),
    ("RADIAL", (0.1, 0.05), lambda x, y: (x * radial(x, y, 0.1, 0.05), y * radial(x, y, 0.1, 0.05))),
    (
        "OPENCV",
        (-0.1, 0.02, 0.003, -0.002),
        lambda x, y: (
            x * radial(x, y, -0.1, 0.02) + 2 * 0.003 * x * y - 0.002 * (3 * x * x + y * y),
            y * radial(x, y, -0.1, 0.02) - 2 * 0.002 * x * y + 0.003 * (x * x + 3 * y * y),
        ),
    ),
    ("SIMPLE_FISHEYE", (), lambda x, y: fisheye(x, y, 0, 0)),
    ("SIMPLE_RADIAL_FISHEYE", (0.03,), lambda x, y: fisheye(x, y, 0.03, 0)),
    ("RADIAL_FISHEYE", (0.03, -0.01), lambda x, y: fisheye(x, y, 0.03, -0.01)),
    ("OPENCV_FISHEYE", (0.03, -0.01, 0, 0), lambda x, y: fisheye(x, y, 0.03, -0.01)),
]


def fisheye(x, y, k1, k2):
    r = np.hypot(x, y)
    theta = np.arctan(r)
    ratio = theta * (1 + k1 * theta**2 + k2 * theta**4) / np.maximum(r, 1e-12)
    return x * ratio, y * ratio


@pytest.mark.parametrize("model, extra, distort", LENSES, ids=[lens[0] for lens in LENSES])
def test_undistorted_pixels_show_their_direction(model, extra, distort):
    """A photograph of a smooth pattern over directions, taken through the lens, must become the
    pattern seen through the rectified pinhole; formulas as COLMAP's models state them."""
    width, height, focal, cx, cy = 96, 64, 80.0, 47.0, 33.5
    two = model in ("OPENCV", "OPENCV_FISHEYE")
    params = (focal, focal, cx, cy, *extra) if two else (focal, cx, cy, *extra)
    lens = lens_of(model, params, width, height)
    fx, fy, px, py = lens.rectified

    # dense table of directions and where the lens puts them, to look the photograph's up
    columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y = (columns - cx) / focal, (rows - cy) / focal
    u, v = x.copy(), y.copy()
    for _ in range(60):  # fixed point: undistorted = distorted - (shift at undistorted)
        du, dv = distort(u, v)
        u, v = u + x - du, v + y - dv
    photo = pattern(u, v)
    wanted = pattern((columns - px) / fx, (rows - py) / fy)
    error = np.abs(undistort(photo, lens).astype(float) - wanted)
    # half a level of rounding twice, and bilinear resampling of a pattern with period 1 radian
    assert error.max() <= 2.5
    assert error.mean() < 0.6


def pattern(x, y):
    waves = np.stack([np.sin(4 * x + y), np.cos(3 * y - x), np.sin(2 * (x + y))], -1)
    return np.round(127 + 120 * waves).astype(np.uint8)


@pytest.mark.parametrize("model, extra, _", LENSES, ids=[lens[0] for lens in LENSES])
def test_no_blank_pixel_and_not_smaller_than_needed(model, extra, _):
    two = model in ("OPENCV", "OPENCV_FISHEYE")
    params = (80.0, 80.0, 47.0, 33.5, *extra) if two else (80.0, 47.0, 33.5, *extra)
    lens = lens_of(model, params, 96, 64)
    fx, fy, px, py = lens.rectified
    x = (np.array([0.5, 95.5, 48, 48]) - px) / fx
    y = (np.array([32, 32, 0.5, 63.5]) - py) / fy
    corners_x = (np.array([0.5, 95.5, 0.5, 95.5]) - px) / fx
    corners_y = (np.array([0.5, 0.5, 63.5, 63.5]) - py) / fy
    distort = dict((lens[0], lens[2]) for lens in LENSES)[model]
    u, v = distort(np.r_[x, corners_x], np.r_[y, corners_y])
    u, v = 80 * u + 47.0, 80 * v + 33.5
    inside = (u > 0.49) & (u < 95.51) & (v > 0.49) & (v < 63.51)
    assert inside.all()
    # on each side something reaches the outermost pixels
    assert u.min() < 1 and u.max() > 95 and v.min() < 1 and v.max() > 63


def test_zero_distortion_is_a_pinhole():
    lens = lens_of("OPENCV", (80.0, 81.0, 47.0, 33.0, 0.0, 0.0, 0.0, 0.0), 96, 64)
    assert lens.family == "pinhole" and lens.rectified == (80.0, 81.0, 47.0, 33.0)


def test_distortion_that_folds_is_refused():
    with pytest.raises(UserError, match="distortion"):
        lens_of("SIMPLE_RADIAL", (80.0, 47.0, 33.5, -4.0), 96, 64)


def test_distorted_data_set(tmp_path):
    make(tmp_path, model="OPENCV", params=(20, 21, 12, 8, 0.05, 0, 0, 0))
    view = load(tmp_path).views[0]
    assert (view.camera.width, view.camera.height) == (24, 16)
    assert view.camera.fx == view.lens.rectified[0] != 20
    assert decode(view).shape == (16, 24, 3)
    half = load(tmp_path, scale=2).views[0]
    assert half.camera.fx == view.camera.fx / 2
    assert decode(half).shape == (8, 12, 3)


def test_fox_undistorts_to_what_colmap_made_of_it():
    """images_raw (OPENCV) against images (undistorted by COLMAP from the full-size photos): the
    same photographs, other intrinsics, so compare through both pinholes."""
    fox = shared_data("fox")
    raw, ready = load(fox / "transforms_raw.json"), load(fox, format="colmap")
    for index in (0, 25, 49):
        ours, theirs = raw.views[index], ready.views[index]
        a, b = ours.camera, theirs.camera
        warp = [[a.fx / b.fx, 0, a.cx - 0.5 - a.fx / b.fx * (b.cx - 0.5)],
                [0, a.fy / b.fy, a.cy - 0.5 - a.fy / b.fy * (b.cy - 0.5)]]  # fmt: skip
        seen = cv2.warpAffine(
            decode(ours), np.array(warp), (b.width, b.height),
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP, borderMode=cv2.BORDER_REPLICATE,
        )  # fmt: skip
        inner = np.s_[40:-40, 40:-40]
        one, two = seen[inner].astype(float).ravel(), decode(theirs)[inner].astype(float).ravel()
        # two calibrations of one phone: 0.996 measured, 0.989 when the lens is not undone
        assert np.corrcoef(one, two)[0, 1] > 0.993


# ---- the cache


def views_of(folder, count=8, **settings):
    scene = make(folder, views=count, **settings)
    return scene, load(folder, holdout=0).views


def assert_pixels(scene, views, found):
    for view, pixels in found.items():
        np.testing.assert_array_equal(pixels, scene.pixels[views[view].name])


def test_cache_returns_what_decode_does(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 3 * ONE, threads=2)
    random = np.random.default_rng(1)
    batches = [random.choice(8, random.integers(1, 4), replace=False).tolist() for _ in range(50)]
    for number, batch in enumerate(batches):
        upcoming = [view for later in batches[number + 1 : number + 4] for view in later]
        found = cache.fetch(batch, upcoming)
        assert sorted(found) == sorted(batch)
        assert_pixels(scene, views, found)
    cache.close()


def test_cache_decodes_once_when_all_fits(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 8 * ONE)
    for _ in range(3):
        for view in range(8):
            assert_pixels(scene, views, cache.fetch([view], [(view + 1) % 8]))
    assert cache.decoded == 8
    cache.close()


def test_cache_drops_the_least_recently_used(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 3 * ONE)
    for view in (0, 1, 2, 0, 3):  # 3 replaces 1
        cache.fetch([view])
    assert cache.decoded == 4
    cache.fetch([0, 2, 3])
    assert cache.decoded == 4
    cache.fetch([1])
    assert cache.decoded == 5
    cache.close()


def test_upcoming_views_are_decoded_while_the_caller_computes(tmp_path, monkeypatch):
    scene, views = views_of(tmp_path)
    done, main = threading.Event(), threading.get_ident()

    def spy(view):
        assert threading.get_ident() != main
        if view.index == 5:
            done.set()
        return decode(view)

    monkeypatch.setattr("splaxel_mpi.data.images.decode", spy)
    cache = ImageCache(views, None, 4 * ONE)
    cache.fetch([0], [4, 5])
    assert done.wait(10)  # before anybody asked for it
    assert_pixels(scene, views, cache.fetch([5]))
    cache.close()


def test_cache_of_mixed_sizes_never_fails_to_place_a_batch_that_fits(tmp_path):
    sizes = [(24, 16), (16, 24), (8, 8), (64, 8), (24, 24), (16, 4)]
    views, photos = [], []
    for number, size in enumerate(sizes):
        scene, found = views_of(tmp_path / str(number), 1, size=size, seed=number)
        views += found
        photos.append(scene.pixels[found[0].name])
    budget = 3 * 64 * 8 + 3 * 24 * 24  # the two largest
    cache = ImageCache(views, None, budget)
    random = np.random.default_rng(2)
    for _ in range(200):
        batch, used = [], 0
        for view in random.permutation(6).tolist():
            if used + photos[view].size <= budget:
                batch.append(view)
                used += photos[view].size
        found = cache.fetch(batch, random.permutation(6).tolist())
        for view in batch:
            np.testing.assert_array_equal(found[view], photos[view])
    cache.close()


def test_cache_too_small_names_the_setting(tmp_path):
    _, views = views_of(tmp_path)
    with pytest.raises(UserError, match="data.cache"):
        ImageCache(views, None, ONE - 1)
    cache = ImageCache(views, None, 2 * ONE)
    with pytest.raises(UserError, match="data.cache"):
        cache.fetch([0, 1, 2])
    assert list(cache.fetch([0, 1])) == [0, 1]
    cache.close()


def test_damaged_image_is_told_on_fetch_and_spares_the_others(tmp_path):
    scene, views = views_of(tmp_path)
    damage(views[2].image_path)
    cache = ImageCache(views, None, 4 * ONE)
    cache.fetch([0], [1, 2])
    assert_pixels(scene, views, cache.fetch([1], [2]))
    for _ in range(2):
        with pytest.raises(UserError, match="0002.png"):
            cache.fetch([2, 3])
    assert_pixels(scene, views, cache.fetch([3, 4]))
    cache.close()


def damage(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_budget_follows_cgroup_and_slurm(tmp_path):
    def budget(**environ):
        return default_budget(shared=False, environ=environ, root=tmp_path)

    whole = budget()
    assert whole > 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n4:memory:/slurm/job_7\n")
    job = tmp_path / "sys/fs/cgroup/job"
    (job / "step").mkdir(parents=True)
    (job / "step" / "memory.max").write_text("max\n")
    assert budget() == whole
    (job / "memory.max").write_text(str(400 << 20))
    assert budget() == 100 << 20
    old = tmp_path / "sys/fs/cgroup/memory/slurm/job_7"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(str(200 << 20))
    assert budget() == 50 << 20
    assert budget(SLURM_MEM_PER_NODE="100") == 25 << 20
    assert budget(SLURM_MEM_PER_CPU="20", SLURM_CPUS_ON_NODE="2") == 10 << 20
    assert budget(SLURM_MEM_PER_NODE="0") == 50 << 20  # SLURM: all memory of the node


# ---- the cache of several ranks


@pytest.fixture
def world():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    yield comm
    comm.Free()


def shared_views(world, folder):
    """The same files for all ranks, written by rank 0."""
    folder = world.bcast(folder)
    if world.rank == 0:
        make(folder)
    world.Barrier()
    return build(), load(folder, holdout=0).views


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_ranks_of_a_node_share_one_decode(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    cache = ImageCache(views, world, 8 * ONE)
    for _ in range(3):
        for view in range(0, 8, 2):
            found = cache.fetch([view, view + 1], [(view + 2) % 8, (view + 3) % 8])
            assert_pixels(scene, views, found)
    assert world.allreduce(cache.decoded) == 8
    cache.close()


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_ranks_agree_under_a_small_budget(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    cache = ImageCache(views, world, 3 * ONE)
    random = np.random.default_rng(3)  # the same batches on all ranks
    batches = [random.choice(8, random.integers(1, 4), replace=False).tolist() for _ in range(60)]
    for number, batch in enumerate(batches):
        ahead = random.permutation(8).tolist()  # often not what comes
        found = cache.fetch(batch, ahead)
        if world.rank == number % world.size:
            time.sleep(0.002)  # a slow reader must not see the next batch's pixels
        assert_pixels(scene, views, found)
    cache.close()


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_a_damaged_image_is_told_to_all_ranks(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    if world.rank == 0:
        damage(views[5].image_path)
    world.Barrier()
    cache = ImageCache(views, world, 8 * ONE)
    cache.fetch([0], [5])
    with pytest.raises(UserError, match="0005.png"):
        cache.fetch([4, 5])
    assert_pixels(scene, views, cache.fetch([4, 6]))
    cache.close()
