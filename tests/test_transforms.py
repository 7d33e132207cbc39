"""Transforms JSON in all its dialects."""

import json
import math

import numpy as np
import pytest

from make_dataset import build, frames_of, header_of, make, shared_data, write_images, write_ply
from splaxel_mpi.data.dataset import load
from splaxel_mpi.errors import UserError


def write(folder, document, scene=None, name="transforms.json"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(document))
    if scene is not None:
        write_ply(folder / "sparse_pc.ply", scene.points, scene.colors)


def assert_same_cameras(data, scene, tolerance=1e-9):
    assert len(data.views) == len(scene.names)
    for view, row in zip(data.views, np.argsort(scene.names)):
        camera = view.camera
        np.testing.assert_allclose(camera.rotation, scene.rotations[row], atol=tolerance)
        np.testing.assert_allclose(camera.translation, scene.translations[row], atol=tolerance)


def test_nerfstudio(tmp_path):
    scene = make(tmp_path, "transforms")
    data = load(tmp_path)
    assert data.kind == "transforms"
    assert_same_cameras(data, scene)
    camera = data.views[0].camera
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == scene.params
    np.testing.assert_array_equal(data.points.positions, scene.points)
    np.testing.assert_array_equal(data.points.colors, scene.colors)
    assert load(tmp_path / "transforms.json").content_id == data.content_id


def test_equal_to_colmap(tmp_path):
    make(tmp_path / "one", "binary")
    make(tmp_path / "two", "transforms")
    for one, two in zip(load(tmp_path / "one").views, load(tmp_path / "two").views):
        np.testing.assert_allclose(one.camera.packed(), two.camera.packed(), atol=1e-9)


def test_colmap_wins_in_a_folder_with_both(tmp_path):
    make(tmp_path, "binary")
    make(tmp_path, "transforms")
    assert load(tmp_path).kind == "colmap"
    assert load(tmp_path, format="transforms").kind == "transforms"


def test_fox_is_the_same_from_colmap_and_json():
    fox = shared_data("fox")
    one, two = load(fox, format="colmap"), load(fox, format="transforms")
    assert len(one.views) == len(two.views) == 50
    for first, second in zip(one.views, two.views):
        assert first.image_path.samefile(second.image_path)
        # SOURCE.md: the same cameras; 1e-9 is rounding of printed float64
        np.testing.assert_allclose(first.camera.packed(), second.camera.packed(), atol=1e-9)
    np.testing.assert_array_equal(
        one.points.positions.astype(np.float32), two.points.positions.astype(np.float32)
    )
    np.testing.assert_array_equal(one.points.colors, two.points.colors)


def test_intrinsics_per_frame(tmp_path):
    scene = build(views=2)
    write_images(tmp_path / "images", scene)
    frames = frames_of(scene)
    own = dict(w=24, h=16, fl_x=30.0, fl_y=31.0, cx=11.0, cy=7.0)
    frames[1].update(own)
    write(tmp_path, {**header_of(scene), "frames": frames}, scene)
    first, second = (view.camera for view in load(tmp_path).views)
    assert (first.fx, first.fy, first.cx, first.cy) == scene.params
    assert (second.fx, second.fy, second.cx, second.cy) == (30, 31, 11, 7)


def test_instant_ngp_with_angles_and_no_suffix(tmp_path):
    """No size (taken from the image), field of view instead of focal length, no file suffix."""
    scene = build(size=(24, 16))
    write_images(tmp_path / "images", scene)
    frames = frames_of(scene)
    for frame in frames:
        frame["file_path"] = "./" + frame["file_path"].replace(".png", "")
    write(tmp_path, {"camera_angle_x": 1.0, "aabb_scale": 16, "frames": frames}, scene)
    data = load(tmp_path)
    assert_same_cameras(data, scene)
    camera = data.views[0].camera
    focal = 12 / math.tan(0.5)
    assert (camera.width, camera.height) == (24, 16)
    np.testing.assert_allclose([camera.fx, camera.fy], focal, rtol=1e-15)
    assert (camera.cx, camera.cy) == (12, 8)


def test_matrixcity_export_with_rot_mat(tmp_path):
    """Kind (a): rotation divided by 100, positions in metres, images named by frame_index."""
    scene = build(views=3)
    write_images(tmp_path, scene)
    frames = []
    for index, frame in enumerate(frames_of(scene)):
        matrix = np.array(frame["transform_matrix"])
        matrix[:3, :3] /= 100
        matrix[3] = 0
        frames.append({"frame_index": index, "rot_mat": matrix.tolist()})
    write(tmp_path, {"camera_angle_x": 0.8, "frames": frames}, scene)
    data = load(tmp_path)
    assert_same_cameras(data, scene)
    np.testing.assert_allclose(data.views[0].camera.fx, 12 / math.tan(0.4), rtol=1e-15)

    frames[1]["rot_mat"] = frames_of(scene)[1]["transform_matrix"]  # forgot the division
    write(tmp_path, {"camera_angle_x": 0.8, "frames": frames})
    with pytest.raises(UserError, match=r"frame 1 .*rot_mat is not a rotation divided by 100"):
        load(tmp_path)


def test_matrixcity_pose_folder_keeps_its_split(tmp_path):
    """Kind (b): pose/<block>/transforms_{train,test}.json, images elsewhere in the data set."""
    scene = build(views=6)
    block = tmp_path / "pose" / "block_all"
    for part, rows in (("train", slice(0, 4)), ("test", slice(4, 6))):
        frames = frames_of(scene, f"../../{part}/block_1/")[rows]
        header = {**header_of(scene), "k3": 0.0, "k4": 0.0}
        write(block, {**header, "frames": frames}, name=f"transforms_{part}.json")
        write_images(tmp_path / part / "block_1", scene)
    write_ply(block / "input.ply", scene.points, scene.colors, "float")
    for path in (tmp_path, block, block / "transforms_train.json"):
        data = load(path)
        assert [data.views[index].name for index in data.test] == [
            "test/block_1/0004.png",
            "test/block_1/0005.png",
        ]
        assert [data.views[index].name for index in data.train] == [
            f"train/block_1/000{number}.png" for number in range(4)
        ]
    np.testing.assert_array_equal(data.points.positions, scene.points.astype(np.float32))
    other = tmp_path / "pose" / "block_1"
    write(other, {**header, "frames": frames}, name="transforms_train.json")
    with pytest.raises(UserError, match="2 pose folders; give one"):
        load(tmp_path)


def test_other_image_folder(tmp_path):
    scene = make(tmp_path, "transforms")
    (tmp_path / "images").rename(tmp_path / "photos")
    data = load(tmp_path, images="photos")
    assert data.views[0].image_path == tmp_path / "photos" / scene.names[0]


def test_poses_with_few_digits_become_rotations(tmp_path):
    scene = build(views=5)
    write_images(tmp_path / "images", scene)
    frames = frames_of(scene)
    for frame in frames:
        frame["transform_matrix"] = np.round(frame["transform_matrix"], 4).tolist()
    write(tmp_path, {**header_of(scene), "frames": frames}, scene)
    data = load(tmp_path)
    assert_same_cameras(data, scene, tolerance=3e-4)  # 4 digits, positions 4 away
    for view in data.views:
        product = view.camera.rotation @ view.camera.rotation.T
        np.testing.assert_allclose(product, np.eye(3), atol=1e-14)


@pytest.mark.parametrize("colors", ["uchar", "float", "none"])
def test_ascii_points_and_colours(tmp_path, colors):
    make(tmp_path, "transforms")
    channels = ["red", "green", "blue"] if colors != "none" else []
    lines = ["ply", "format ascii 1.0", "element vertex 2"]
    lines += [f"property float {axis}" for axis in "zyx"]  # any order
    lines += [f"property {colors} {channel}" for channel in channels]
    tail = {"uchar": " 0 128 255", "float": " 0 0.5 1", "none": ""}[colors]
    lines += ["end_header", "3 2 1" + tail, "6 5 4" + tail, ""]
    (tmp_path / "sparse_pc.ply").write_text("\n".join(lines))
    points = load(tmp_path).points
    np.testing.assert_array_equal(points.positions, [[1, 2, 3], [4, 5, 6]])
    wanted = [128, 128, 128] if colors == "none" else [0, 128, 255]
    np.testing.assert_array_equal(points.colors, [wanted, wanted])
