"""COLMAP models: what a user's reconstruction becomes."""

import shutil
import struct
import time

import numpy as np
import pytest

from splaxel_mpi.data.colmap_binary import read_points
from splaxel_mpi.data.dataset import load
from splaxel_mpi.errors import UserError
from make_dataset import build, make, shared_data, write_binary, write_images, write_text


def assert_equals_scene(data, scene):
    order = np.argsort(scene.names)
    assert [view.name for view in data.views] == sorted(scene.names)
    for view, row in zip(data.views, order):
        # quaternions of length 1 to rounding: 1e-15 in the matrix
        np.testing.assert_allclose(view.camera.rotation, scene.rotations[row], atol=1e-14)
        np.testing.assert_array_equal(view.camera.translation, scene.translations[row])
    np.testing.assert_array_equal(data.points.positions, scene.points)
    np.testing.assert_array_equal(data.points.colors, scene.colors)


@pytest.mark.parametrize("form", ["binary", "text"])
def test_model_is_read(tmp_path, form):
    scene = make(tmp_path, form)
    data = load(tmp_path)
    assert data.kind == "colmap"
    assert_equals_scene(data, scene)
    camera = data.views[0].camera
    assert (camera.width, camera.height) == scene.size
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == scene.params
    assert data.points.positions.dtype == np.float64 and data.points.colors.dtype == np.uint8
    assert all(view.lens is None for view in data.views)
    assert [view.index for view in data.views] == list(range(8))


def test_binary_and_text_agree(tmp_path):
    make(tmp_path / "binary", "binary")
    make(tmp_path / "text", "text")
    assert load(tmp_path / "binary").content_id == load(tmp_path / "text").content_id


@pytest.mark.parametrize("form", ["binary", "text"])
def test_names_with_spaces_and_subfolders(tmp_path, form):
    names = ["west side/IMG 2.png", "west side/IMG 1.png", "east/a.png", "east/b  c.png"]
    scene = make(tmp_path, form, views=4, names=names)
    data = load(tmp_path)
    assert_equals_scene(data, scene)
    assert data.views[0].image_path == tmp_path / "images" / "east" / "a.png"


def test_folder_layouts(tmp_path):
    make(tmp_path / "a", "binary")
    want = load(tmp_path / "a").content_id
    sparse = tmp_path / "a" / "sparse"
    assert load(sparse / "0").content_id == want  # the model folder itself
    (sparse / "0" / "rigs.bin").write_bytes(b"anything")
    (sparse / "0" / "frames.bin").write_bytes(b"anything")
    for file in list((sparse / "0").iterdir()):
        shutil.move(file, sparse / file.name)
    (sparse / "0").rmdir()
    assert load(tmp_path / "a").content_id == want  # sparse without 0
    (tmp_path / "a" / "images").rename(tmp_path / "photos")
    assert load(tmp_path / "a", images=tmp_path / "photos").content_id == want
    assert load(tmp_path / "a", images="../photos").content_id == want


def test_binary_wins_over_text(tmp_path):
    scene = make(tmp_path, "binary")
    before = scene.points.copy()
    scene.points += 1
    write_text(tmp_path, scene)
    np.testing.assert_array_equal(load(tmp_path).points.positions, before)


def test_simple_pinhole_has_one_focal_length(tmp_path):
    make(tmp_path, "binary", model="SIMPLE_PINHOLE", params=(20, 12, 8))
    camera = load(tmp_path).views[0].camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (20, 20, 12, 8)


def test_every_eighth_view_is_held_out(tmp_path):
    make(tmp_path, "binary", views=17)
    data = load(tmp_path)
    assert data.test == [0, 8, 16]
    assert data.train == [view for view in range(17) if view % 8]
    assert load(tmp_path, holdout=0).test == []
    assert load(tmp_path, holdout=5).test == [0, 5, 10, 15]


def test_scale_divides_size_and_intrinsics(tmp_path):
    make(tmp_path, "binary", size=(25, 17), params=(20, 21, 12.5, 8))
    for scale, size in [(2, (12, 8)), (1.5, (16, 11)), (1, (25, 17))]:
        camera = load(tmp_path, scale=scale).views[0].camera
        assert (camera.width, camera.height) == size
        wanted = np.array([20, 21, 12.5, 8]) / scale
        np.testing.assert_array_equal([camera.fx, camera.fy, camera.cx, camera.cy], wanted)


def test_content_id_follows_cameras_points_and_names(tmp_path):
    def identity(**settings):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        make(tmp_path / "set", "binary", **settings)
        return load(tmp_path / "set", holdout=0).content_id

    first = identity()
    assert identity() == first
    assert identity(points=39) != first
    assert identity(params=(20, 21, 12, 8)) != first
    one, two = (identity(views=2, names=["a.png", name]) for name in ("b.png", "c.png"))
    assert one != two


def test_large_coordinates_get_an_origin(tmp_path):
    scene = build()
    offset = np.array([512_345.0, 4_512_345.0, 210.0])
    write_images(tmp_path / "images", scene)
    plain_centers = [-r.T @ t for r, t in zip(scene.rotations, scene.translations)]
    scene.points += offset
    scene.translations -= scene.rotations @ offset
    write_binary(tmp_path, scene)
    data = load(tmp_path)
    assert np.linalg.norm(data.origin - offset) < 10  # close to the cameras, and round
    np.testing.assert_array_equal(data.origin, np.round(data.origin))
    for view, center in zip(data.views, plain_centers):
        # float64 at 4.5e6 has a spacing of 1e-9
        np.testing.assert_allclose(view.camera.center + data.origin, center + offset, atol=1e-8)
    np.testing.assert_allclose(data.points.positions + data.origin, scene.points, atol=1e-8)
    np.testing.assert_array_equal(load(tmp_path, origin="none").origin, np.zeros(3))
    np.testing.assert_array_equal(load(tmp_path, origin=[1, 2, 3]).origin, [1, 2, 3])


def test_small_coordinates_stay_exact(tmp_path):
    make(tmp_path, "binary")
    np.testing.assert_array_equal(load(tmp_path).origin, np.zeros(3))


def test_fox_and_caliterra():
    fox = load(shared_data("fox"))
    assert (len(fox.views), len(fox.points)) == (50, 11197)
    assert (fox.views[0].camera.width, fox.views[0].camera.height) == (449, 800)
    site = load(shared_data("caliterra"))
    assert (len(site.views), len(site.points), len(site.test)) == (75, 26409, 10)
    # SOURCE.md: cameras 29 to 55 m above the ground at z = 0, no point behind a camera
    heights = [view.camera.center[2] for view in site.views]
    assert 28 < min(heights) and max(heights) < 56


def test_unsupported_camera_model_is_named(tmp_path):
    make(tmp_path, "binary", model="FOV", params=(20, 20, 12, 8, 0.9))
    with pytest.raises(UserError, match=r"cameras.bin: camera 7: camera model FOV"):
        load(tmp_path)


def test_many_points_are_read_fast(tmp_path):
    """Bounds the time, so that a city's 10 M points stay a matter of seconds."""
    count = 200_000
    tracks = np.random.default_rng(0).integers(0, 12, count)
    record = struct.Struct("<Q3d3BdQ")
    with open(tmp_path / "points3D.bin", "wb") as file:
        file.write(struct.pack("<Q", count))
        for number, track in enumerate(tracks.tolist()):
            head = record.pack(number, number, 2, 3, 4, 5, number % 256, 0.5, track)
            file.write(head + bytes(8 * track))
    start = time.perf_counter()
    points = read_points(tmp_path / "points3D.bin")
    seconds = time.perf_counter() - start
    np.testing.assert_array_equal(points.positions[:, 0], np.arange(count))
    np.testing.assert_array_equal(points.colors[:, 2], np.arange(count) % 256)
    assert seconds < 5  # 0.1 s measured; the margin is for shared machines
