"""Writes tiny data sets for tests, and finds the real ones that lie beside the checkout."""

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

MODEL_IDS = {"SIMPLE_PINHOLE": 0, "PINHOLE": 1, "SIMPLE_RADIAL": 2, "OPENCV": 4, "FOV": 7}


@dataclass
class Scene:
    """What was written: image names, one camera (model, params), world-to-camera poses as
    quaternions (w, x, y, z), rotations (n, 3, 3) and translations (n, 3), points (m, 3) float64,
    colors (m, 3) uint8, and the pixels {name: (height, width, 3) uint8}."""

    names: list
    size: tuple
    model: str
    params: tuple
    quaternions: np.ndarray
    rotations: np.ndarray
    translations: np.ndarray
    points: np.ndarray
    colors: np.ndarray
    pixels: dict


def make(folder, form="binary", **settings):
    """Builds a scene and writes images and model; form: "binary", "text" or "transforms"."""
    scene = build(**settings)
    write_images(Path(folder) / "images", scene)
    {"binary": write_binary, "text": write_text, "transforms": write_transforms}[form](
        Path(folder), scene
    )
    return scene


def build(views=8, size=(24, 16), points=40, seed=0, names=None, model="PINHOLE", params=None):
    """Cameras on a circle of radius 4 that look at points in the unit ball."""
    random = np.random.default_rng(seed)
    width, height = size
    if params is None:
        params = (20.0, 21.0, width / 2 + 0.25, height / 2 - 0.5)
    rotations, quaternions, translations = [], [], []
    for angle in 2 * np.pi * np.arange(views) / views:
        # turn by angle about y: the camera at 4 (sin, 0, -cos) looks along its z at the middle
        quaternion = np.array([np.cos(angle / 2), 0, np.sin(angle / 2), 0])
        cos, sin = np.cos(angle), np.sin(angle)
        rotations.append([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
        quaternions.append(quaternion)
        translations.append([0, 0.1, 4.0])
    positions = random.uniform(-0.6, 0.6, (points, 3))
    colors = random.integers(0, 256, (points, 3)).astype(np.uint8)
    names = names or [f"{number:04d}.png" for number in range(views)]
    pixels = {name: _photo(random, size) for name in names}
    return Scene(
        names, size, model, tuple(params), np.array(quaternions), np.array(rotations),
        np.array(translations), positions, colors, pixels,
    )  # fmt: skip


def _photo(random, size):
    """Smooth random colours, so that resampling changes them little."""
    coarse = random.integers(0, 256, (4, 4, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))


def write_images(folder, scene):
    for name in scene.names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene.pixels[name]).save(folder / name)


def write_binary(folder, scene, observations=3):
    """sparse/0/{cameras,images,points3D}.bin; ids have holes and descend, as COLMAP's may."""
    model = folder / "sparse" / "0"
    model.mkdir(parents=True, exist_ok=True)
    with open(model / "cameras.bin", "wb") as file:
        file.write(struct.pack("<QiiQQ", 1, 7, MODEL_IDS[scene.model], *scene.size))
        file.write(struct.pack(f"<{len(scene.params)}d", *scene.params))
    with open(model / "images.bin", "wb") as file:
        file.write(struct.pack("<Q", len(scene.names)))
        for number, name in enumerate(scene.names):
            pose = [*scene.quaternions[number], *scene.translations[number]]
            file.write(struct.pack("<I7dI", 1000 - 3 * number, *pose, 7))
            file.write(name.encode() + b"\0" + struct.pack("<Q", observations))
            file.write(struct.pack("<ddq", 1.5, 2.5, -1) * observations)
    with open(model / "points3D.bin", "wb") as file:
        file.write(struct.pack("<Q", len(scene.points)))
        for number, (point, color) in enumerate(zip(scene.points, scene.colors)):
            track = number % 4  # some points have no track
            file.write(struct.pack("<Q3d3BdQ", 5 + 2 * number, *point, *color, 0.5, track))
            file.write(struct.pack("<II", 1000, 0) * track)


def write_text(folder, scene):
    """sparse/0/{cameras,images,points3D}.txt with full precision."""
    model = folder / "sparse" / "0"
    model.mkdir(parents=True, exist_ok=True)

    def numbers(values):
        return " ".join(repr(float(value)) for value in values)

    width, height = scene.size
    (model / "cameras.txt").write_text(
        f"# Camera list\n\n7 {scene.model} {width} {height} {numbers(scene.params)}\n"
    )
    with open(model / "images.txt", "w") as file:
        file.write("# Image list with two lines of data per image:\n")
        for number, name in enumerate(scene.names):
            pose = numbers([*scene.quaternions[number], *scene.translations[number]])
            file.write(f"{1000 - 3 * number} {pose} 7 {name}\n")
            file.write("" if number % 2 else "1.5 2.5 -1 3.5 4.5 17")
            file.write("\n")
    with open(model / "points3D.txt", "w") as file:
        file.write("# 3D point list\n")
        for number, (point, color) in enumerate(zip(scene.points, scene.colors)):
            rgb = " ".join(str(int(channel)) for channel in color)
            track = " 1000 0" * (number % 4)
            file.write(f"{5 + 2 * number} {numbers(point)} {rgb} 0.5{track}\n")


def frames_of(scene, prefix="images/"):
    """Frames of a transforms JSON: camera to world in OpenGL axes (x right, y up, z back)."""
    frames = []
    for number, name in enumerate(scene.names):
        matrix = np.eye(4)
        matrix[:3, :3] = scene.rotations[number].T * [1, -1, -1]
        matrix[:3, 3] = -scene.rotations[number].T @ scene.translations[number]
        frames.append({"file_path": prefix + name, "transform_matrix": matrix.tolist()})
    return frames


def header_of(scene):
    """Global intrinsics of a transforms JSON for a PINHOLE or OPENCV scene."""
    keys = ("fl_x", "fl_y", "cx", "cy", "k1", "k2", "p1", "p2")
    values = dict(zip(keys, scene.params))
    return {"camera_model": scene.model, "w": scene.size[0], "h": scene.size[1], **values}


def write_transforms(folder, scene):
    """transforms.json and sparse_pc.ply."""
    write_ply(folder / "sparse_pc.ply", scene.points, scene.colors)
    document = {**header_of(scene), "ply_file_path": "sparse_pc.ply", "frames": frames_of(scene)}
    (folder / "transforms.json").write_text(json.dumps(document))


def write_ply(path, points, colors, kind="double"):
    """Binary PLY with positions of the given type and uchar colours."""
    types = {"double": "<f8", "float": "<f4"}
    layout = [("xyz", types[kind], 3), ("rgb", "u1", 3)]
    rows = np.empty(len(points), layout)
    rows["xyz"], rows["rgb"] = points, colors
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    lines += [f"property {kind} {axis}" for axis in "xyz"]
    lines += [f"property uchar {channel}" for channel in ("red", "green", "blue")]
    path.write_bytes("\n".join([*lines, "end_header", ""]).encode() + rows.tobytes())


def shared_data(name):
    """Folder of a real data set; skips the test when it is absent.

    They lie in ``shared/data`` next to the checkout; the environment variable SPLAXEL_SHARED
    names another ``shared`` folder (a git worktree is not next to it).
    """
    beside = Path(__file__).resolve().parents[2] / "shared"
    folder = Path(os.environ.get("SPLAXEL_SHARED", beside)) / "data" / name
    if not folder.is_dir():
        pytest.skip(f"real data set {name} is not here (SPLAXEL_SHARED)")
    return folder
