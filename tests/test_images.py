"""Pixels of views: decoding and undistortion."""

import logging

import cv2
import numpy as np
import pytest
from PIL import Image

from make_dataset import build, make, shared_data, write_binary
from splaxel_mpi.data.dataset import load
from splaxel_mpi.data.images import decode
from splaxel_mpi.data.undistort import lens_of, undistort
from splaxel_mpi.errors import UserError

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


# model, parameters after focal lengths and principal point, distorted position of a direction
LENSES = [
    ("SIMPLE_RADIAL", (-0.2,), lambda x, y: (x * radial(x, y, -0.2, 0), y * radial(x, y, -0.2, 0))),
    ("RADIAL", (0.1, 0.1), lambda x, y: (x * radial(x, y, 0.1, 0.1), y * radial(x, y, 0.1, 0.1))),
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
