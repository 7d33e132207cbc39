"""Whatever is wrong with a data set, the user gets one line that names file and record."""

import json
import shutil
import struct

import numpy as np
import pytest
from PIL import Image

from make_dataset import build, frames_of, header_of, make, write_binary, write_ply, write_text
from splaxel_mpi.data.dataset import load
from splaxel_mpi.data.pixels import decode
from splaxel_mpi.errors import UserError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
FORMS = ["binary", "text", "transforms"]
MODEL = {
    "binary": ["sparse/0/cameras.bin", "sparse/0/images.bin", "sparse/0/points3D.bin"],
    "text": ["sparse/0/cameras.txt", "sparse/0/images.txt", "sparse/0/points3D.txt"],
    "transforms": ["transforms.json", "sparse_pc.ply"],
}


def refused(path, *words, **settings):
    """Loads, expects a UserError of one line that has all the words, returns it."""
    with pytest.raises(UserError) as caught:
        load(path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def edit(path, old, new):
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


# ---- files


def test_no_data_set(tmp_path):
    refused(tmp_path / "nothing", "nothing", "not found")
    refused(tmp_path, str(tmp_path), "no data set found")
    (tmp_path / "notes.md").write_text("hello")
    refused(tmp_path / "notes.md", "no data set found")
    make(tmp_path / "set", "binary")
    refused(tmp_path / "set", "'nerf'", "colmap", "transforms", format="nerf")
    refused(tmp_path / "set", "transforms.json", format="transforms")
    refused(tmp_path / "set", "elsewhere", images="elsewhere")


@pytest.mark.parametrize("form, name", [(f, n) for f in FORMS for n in MODEL[f]])
def test_git_lfs_pointer(tmp_path, form, name):
    make(tmp_path, form)
    (tmp_path / name).write_bytes(POINTER)
    refused(tmp_path, name, "Git-LFS pointer", "git lfs pull")


@pytest.mark.parametrize("form", FORMS)
def test_image_problems(tmp_path, form):
    scene = make(tmp_path, form)
    image = tmp_path / "images" / "0003.png"
    image.write_bytes(POINTER)
    refused(tmp_path, "0003.png", "Git-LFS pointer")
    Image.fromarray(scene.pixels["0003.png"][:, :-1]).save(image)
    refused(tmp_path, "0003.png", "has 23x16 pixels", "24x16")
    image.write_bytes(b"no image")
    refused(tmp_path, "0003.png", "cannot be read as an image")
    image.unlink()
    refused(tmp_path, "0003.png", "file not found")
    (tmp_path / "images" / "0005.png").unlink()
    refused(tmp_path, "0003.png", "2 of 8 images")
    image.mkdir()
    refused(tmp_path, "0003.png")


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_truncated_image_is_told_when_decoded(tmp_path, suffix):
    make(tmp_path, "binary", views=2, names=[f"a.{suffix}", f"b.{suffix}"], size=(240, 160))
    image = tmp_path / "images" / f"a.{suffix}"
    image.write_bytes(image.read_bytes()[:-500])
    views = load(tmp_path).views
    with pytest.raises(UserError, match=rf"a\.{suffix}: cannot be read as an image"):
        decode(views[0])
    decode(views[1])


def test_image_replaced_after_loading(tmp_path):
    make(tmp_path, "binary")
    view = load(tmp_path).views[0]
    Image.new("RGB", (30, 30)).save(view.image_path)
    with pytest.raises(UserError, match="30x30"):
        decode(view)


def test_32_bit_image(tmp_path):
    make(tmp_path, "binary", views=2, names=["a.tif", "b.tif"])
    Image.fromarray(np.zeros((16, 24), np.float32)).save(tmp_path / "images" / "a.tif")
    with pytest.raises(UserError, match="a.tif: pixels of 32 bits"):
        decode(load(tmp_path).views[0])


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
def test_missing_model_file(tmp_path, name):
    make(tmp_path, "binary")
    (tmp_path / "sparse/0" / f"{name}.bin").unlink()
    refused(tmp_path, f"{name}.bin or {name}.txt is missing")


@pytest.mark.parametrize("form, name", [(f, n) for f in FORMS for n in MODEL[f]])
def test_truncation_anywhere(tmp_path, form, name):
    """Cut at random places: a UserError always; text cut between two lines is still a model."""
    make(tmp_path, form, views=4, points=12)
    whole = (tmp_path / name).read_bytes()
    random = np.random.default_rng(len(name))
    cuts = {0, 1, len(whole) - 1, *random.integers(0, len(whole), 40).tolist()}
    for cut in sorted(cuts):
        (tmp_path / name).write_bytes(whole[:cut])
        try:
            load(tmp_path)
        except UserError as error:
            assert "\n" not in str(error)
        else:
            assert form == "text", f"{name} cut at {cut} of {len(whole)} was accepted"


@pytest.mark.parametrize("form, name", [(f, n) for f in FORMS for n in MODEL[f]])
def test_random_bytes_anywhere(tmp_path, form, name):
    """Overwritten bytes either still make a data set or give a UserError."""
    make(tmp_path, form, views=4, points=12)
    whole = (tmp_path / name).read_bytes()
    random = np.random.default_rng(len(name) + 1)
    for _ in range(60):
        place, length = random.integers(0, len(whole)), random.integers(1, 9)
        noise = random.integers(0, 256, length).astype(np.uint8).tobytes()
        changed = whole[:place] + noise + whole[place + length :]
        (tmp_path / name).write_bytes(changed[: len(whole)])
        try:
            load(tmp_path)
        except UserError as error:
            assert "\n" not in str(error)


# ---- COLMAP records


@pytest.mark.parametrize("name", ["cameras", "images", "points3D"])
@pytest.mark.parametrize("count", [9, 10**9, 2**64 - 1])
def test_absurd_counts(tmp_path, name, count):
    make(tmp_path, "binary", points=8)
    file = tmp_path / "sparse/0" / f"{name}.bin"
    content = file.read_bytes()
    file.write_bytes(struct.pack("<Q", count) + content[8:])
    refused(tmp_path, f"{name}.bin")


def test_absurd_track_and_observations(tmp_path):
    make(tmp_path, "binary", points=8)
    points = tmp_path / "sparse/0/points3D.bin"
    content = bytearray(points.read_bytes())
    content[8 + 43 : 8 + 51] = struct.pack("<Q", 2**61)
    points.write_bytes(content)
    refused(tmp_path, "points3D.bin: point record 0", "track")
    make(tmp_path, "binary", points=8)
    images = tmp_path / "sparse/0/images.bin"
    edit(images, b"0001.png\0" + struct.pack("<Q", 3), b"0001.png\0" + struct.pack("<Q", 10**15))
    refused(tmp_path, "images.bin: image record 1 (0001.png)", "claims 1000000000000000 entries")


def test_trailing_bytes(tmp_path):
    make(tmp_path, "binary")
    with open(tmp_path / "sparse/0/images.bin", "ab") as file:
        file.write(b"more")
    refused(tmp_path, "images.bin", "4 unexpected bytes")


@pytest.mark.parametrize("form", ["binary", "text"])
def test_empty_parts(tmp_path, form):
    scene = make(tmp_path, form)
    write = write_binary if form == "binary" else write_text
    scene.points, scene.colors = scene.points[:0], scene.colors[:0]
    write(tmp_path, scene)
    refused(tmp_path, "points3D", "has no points", "export the sparse cloud")
    scene.names = []
    write(tmp_path, scene)
    refused(tmp_path, "has no images")


def test_unknown_camera_id_and_models(tmp_path):
    make(tmp_path, "binary")
    cameras = tmp_path / "sparse/0/cameras.bin"
    edit(cameras, struct.pack("<ii", 7, 1), struct.pack("<ii", 8, 1))
    refused(tmp_path, "images.bin: image 1000 (0000.png)", "camera id 7", "cameras.bin lacks")
    edit(cameras, struct.pack("<ii", 8, 1), struct.pack("<ii", 7, 99))
    refused(tmp_path, "cameras.bin: camera record 0", "unknown model id 99")
    shutil.rmtree(tmp_path / "sparse")
    make(tmp_path, "text")
    edit(tmp_path / "sparse/0/cameras.txt", b"PINHOLE", b"PINHOLES")
    refused(tmp_path, "cameras.txt: line 3", "PINHOLES")


def test_duplicate_names(tmp_path):
    scene = make(tmp_path, "binary")
    scene.names[4] = scene.names[2]
    write_binary(tmp_path, scene)
    refused(tmp_path, "images.bin", "'0002.png' appears twice")


def test_line_breaks_in_names_stay_in_one_line(tmp_path):
    scene = make(tmp_path, "binary")
    scene.names[4] = "a\nb.png"
    write_binary(tmp_path, scene)
    refused(tmp_path, r"a\nb.png", "file not found")


@pytest.mark.parametrize("params", [(0, 20, 12, 8), (20, -1, 12, 8), (np.nan, 20, 12, 8)])
def test_bad_focal_length(tmp_path, params):
    make(tmp_path, "binary", params=params)
    refused(tmp_path, "cameras.bin: camera 7")


@pytest.mark.parametrize("size", [(0, 16), (2**40, 16)])
def test_bad_size(tmp_path, size):
    scene = make(tmp_path, "binary")
    scene.size = size
    write_binary(tmp_path, scene)
    refused(tmp_path, "cameras.bin: camera 7", "image size")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite(tmp_path, form, value):
    scene = make(tmp_path, form)
    rewrite = {"binary": write_binary, "text": write_text}.get(form)
    point = scene.points[5, 1]
    scene.points[5, 1] = value
    write_ply(tmp_path / "sparse_pc.ply", scene.points, scene.colors)
    if rewrite:
        rewrite(tmp_path, scene)
    refused(tmp_path, "point record 5", "not finite")
    scene.points[5, 1] = point
    scene.translations[3, 0] = value
    if rewrite:
        rewrite(tmp_path, scene)
        refused(tmp_path, "image 991 (0003.png)", "not finite")
        scene.quaternions[3] = 0
        rewrite(tmp_path, scene)
        refused(tmp_path, "image 991 (0003.png)", "rotation")
    else:
        write_ply(tmp_path / "sparse_pc.ply", scene.points, scene.colors)
        document = json.loads((tmp_path / "transforms.json").read_text())
        document["frames"][3]["transform_matrix"][0][3] = value
        (tmp_path / "transforms.json").write_text(json.dumps(document))
        refused(tmp_path, "frame 3 (images/0003.png)", "not finite")


def test_text_lines_are_named(tmp_path):
    make(tmp_path, "text")
    model = tmp_path / "sparse/0"
    for name, old, new in [
        ("cameras.txt", b"24 16", b"24 x"),
        ("images.txt", b"1000 1.0", b"1000 one"),
        ("images.txt", b"1.5 2.5 -1", b"1.5 2.5"),
        ("points3D.txt", b"5 ", b"5 5 5 5 300 "),
    ]:
        before = (model / name).read_bytes()
        edit(model / name, old, new)
        refused(tmp_path, f"{name}: line ")
        (model / name).write_bytes(before)


# ---- settings


def test_settings_out_of_range(tmp_path):
    make(tmp_path, "binary")
    for scale in (0, 0.5, -1, float("nan"), "2"):
        refused(tmp_path, "scale", scale=scale)
    refused(tmp_path, "nothing is left of 24x16", scale=17)
    refused(tmp_path, "holdout", holdout=-1)
    refused(tmp_path, "all 8 views are for testing", holdout=1)
    for origin in ("far", [1, 2], [1, 2, float("nan")], None):
        refused(tmp_path, "origin", origin=origin)


# ---- transforms JSON


def rewrite_json(folder, change):
    scene = build()
    document = {**header_of(scene), "ply_file_path": "sparse_pc.ply", "frames": frames_of(scene)}
    change(document)
    (folder / "transforms.json").write_text(json.dumps(document))


def drop(key, frame=None):
    return lambda document: (document if frame is None else document["frames"][frame]).pop(key)


def put(key, value, frame=None):
    def change(document):
        (document if frame is None else document["frames"][frame])[key] = value

    return change


MIRROR = np.diag([1, 1, -1, 1]).tolist()
SHEAR = (np.eye(4) + np.eye(4, k=1) * 0.1).tolist()


@pytest.mark.parametrize(
    "change, words",
    [
        (drop("frames"), ["'frames'"]),
        (put("frames", {}), ["'frames'"]),
        (put("frames", []), ["no images"]),
        (put("frames", [3]), ["frame 0"]),
        (drop("file_path", 2), ["frame 2", "'file_path'"]),
        (put("file_path", 7, 2), ["frame 2", "'file_path'"]),
        (put("file_path", "images/\0.png", 2), ["frame 2"]),
        (put("file_path", "images/0001.png", 2), ["frame 2", "appears twice"]),
        (drop("transform_matrix", 2), ["frame 2", "'transform_matrix'"]),
        (put("transform_matrix", [[1, 2], [3]], 2), ["frame 2", "4x4"]),
        (put("transform_matrix", "eye", 2), ["frame 2", "4x4"]),
        (put("transform_matrix", SHEAR, 2), ["frame 2", "not a rotation"]),
        (put("transform_matrix", MIRROR, 2), ["frame 2", "not a rotation"]),
        (drop("fl_x"), []),
        (put("fl_x", 0), ["frame 0", "focal length"]),
        (put("fl_x", "20"), ["frame 0", "fl_x is not a number"]),
        (put("fl_x", float("inf")), ["frame 0", "fl_x is not finite"]),
        (put("w", 24.5), ["frame 0", "w = 24.5"]),
        (put("w", -24), ["frame 0", "image size"]),
        (put("w", 10**400), ["frame 0", "w is not finite"]),
        (put("w", 48), ["0000.png", "has 24x16 pixels", "48x16"]),
        (put("camera_model", "EQUIRECTANGULAR"), ["frame 0", "EQUIRECTANGULAR is not supported"]),
        (put("camera_model", ["PINHOLE"]), ["frame 0", "not supported"]),
        (put("k4", 0.1), ["frame 0", "k4"]),
        (put("ply_file_path", "gone.ply"), ["gone.ply", "not found"]),
        (put("ply_file_path", 3), ["ply_file_path"]),
    ],
)
def test_malformed_transforms(tmp_path, change, words):
    make(tmp_path, "transforms")
    rewrite_json(tmp_path, change)
    if words:
        refused(tmp_path, "", *words)
    else:  # one focal length is enough
        assert load(tmp_path).views[0].camera.fx == load(tmp_path).views[0].camera.fy


def test_no_focal_length(tmp_path):
    make(tmp_path, "transforms")
    rewrite_json(tmp_path, lambda document: [document.pop(key) for key in ("fl_x", "fl_y")])
    refused(tmp_path, "frame 0", "neither fl_x nor camera_angle_x")
    document = json.loads((tmp_path / "transforms.json").read_text())
    (tmp_path / "transforms.json").write_text(json.dumps({**document, "camera_angle_x": 4}))
    refused(tmp_path, "frame 0", "camera_angle_x = 4.0 is not between")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1, 2]", "nonsense", "[" * 100_000, '{"frames": ' + "9" * 9999],
    ids=["empty", "open", "list", "nonsense", "deep", "long number"],
)
def test_malformed_json(tmp_path, text):
    make(tmp_path, "transforms")
    (tmp_path / "transforms.json").write_text(text)
    refused(tmp_path, "transforms.json", "malformed")


def test_no_points_beside_transforms(tmp_path):
    make(tmp_path, "transforms")
    (tmp_path / "sparse_pc.ply").unlink()
    rewrite_json(tmp_path, drop("ply_file_path"))
    refused(tmp_path, "transforms.json", "no points", "ply_file_path", "sparse_pc.ply")
    write_ply(tmp_path / "points3D.ply", np.empty((0, 3)), np.empty((0, 3)))
    refused(tmp_path, "points3D.ply", "has no points")


XYZ = [f"property float {axis}" for axis in "xyz"]
RGB = [f"property float {channel}" for channel in ("red", "green", "blue")]


def ply(*lines):
    return "\n".join(["ply", "format ascii 1.0", *lines, ""]).encode()


@pytest.mark.parametrize(
    "content, words",
    [
        (b"plain text", ["not a PLY"]),
        (b"ply\nformat ascii 1.0\nelement vertex 3\n", ["no end"]),
        (ply("element vertex 999999999999", "property float x", "end_header", "1"), ["promises"]),
        (ply("element vertex 9" + "9" * 400, "property float x", "end_header", "1"), ["promises"]),
        (ply("element face 1", "property float x", "end_header", "1"), ["vertex"]),
        (ply("element vertex 1", "property float x", "end_header", "1"), ["x, y, z"]),
        (ply("element vertex 2", *XYZ, "end_header", "1 2 3"), []),
        (ply("element vertex 1", *XYZ, "end_header", "1 b 3"), []),
        (
            ply("element vertex 1", *XYZ, *RGB, "end_header", "1 2 3 0 0 200"),
            ["point record 0", "[0, 1]"],
        ),
    ],
)
def test_malformed_ply(tmp_path, content, words):
    make(tmp_path, "transforms")
    (tmp_path / "sparse_pc.ply").write_bytes(content)
    refused(tmp_path, "sparse_pc.ply", *words)
