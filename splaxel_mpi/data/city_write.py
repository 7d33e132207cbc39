"""Writes the synthetic city's models: COLMAP binary, MatrixCity-style transforms, metadata.

Formats: COLMAP's binary model (little endian, poses world to camera, x right, y down, z forward);
transforms JSON as in MatrixCity's ``pose`` folders (poses camera to world, x right, y up,
z backward, positions in units of 100 m).
"""

import io
import json
import os
import struct

import numpy as np
from PIL import Image
from plyfile import PlyData, PlyElement
from scipy.spatial.transform import Rotation

UNIT = 100.0  # metres in a length of 1 of the transforms, as MatrixCity has it
HOLD_OUT = 8  # every eighth view by name is a test view
QUALITY = 95  # of the photographs
PINHOLE = 1  # COLMAP's number of the camera model


def write_bytes(path, data):
    """Write a file completely or not at all: temporary name, flush, fsync, rename."""
    part = f"{path}.part"
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def write_photograph(path, picture):
    """Store a rendered picture, (height, width, 3) float32 in [0, 1], as a JPEG."""
    data = io.BytesIO()
    pixels = np.floor(255.0 * picture + 0.5).astype(np.uint8)
    Image.fromarray(pixels).save(data, "JPEG", quality=QUALITY, subsampling=0)
    write_bytes(path, data.getvalue())


def _quaternion(rotation):
    """Unit quaternion w, x, y, z with w >= 0, COLMAP's order."""
    x, y, z, w = Rotation.from_matrix(rotation).as_quat(canonical=True)
    return w, x, y, z


def write_colmap(folder, shots, cloud):
    """Write cameras.bin, images.bin and points3D.bin; image id = index + 1, point id = row + 1."""
    lenses = {shot.lens: shot.camera for shot in shots}
    cameras = [struct.pack("<Q", len(lenses))]
    for lens, c in sorted(lenses.items()):
        size = (c.width, c.height)
        cameras.append(struct.pack("<iiQQ4d", lens, PINHOLE, *size, c.fx, c.fy, c.cx, c.cy))
    write_bytes(os.path.join(folder, "cameras.bin"), b"".join(cameras))

    owner = np.repeat(np.arange(len(cloud.xyz)), cloud.length)
    order = np.argsort(cloud.view, kind="stable")
    seen = np.bincount(cloud.view, minlength=len(shots))
    first = np.cumsum(seen) - seen
    place = np.empty(len(order), np.int64)  # of an observation in its image
    place[order] = np.arange(len(order)) - np.repeat(first, seen)
    marks = np.empty(len(order), [("x", "<f8"), ("y", "<f8"), ("point", "<i8")])
    marks["x"], marks["y"] = cloud.xy[order].T
    marks["point"] = owner[order] + 1
    images = [struct.pack("<Q", len(shots))]
    for k, shot in enumerate(shots):
        pose = (*_quaternion(shot.camera.rotation), *shot.camera.translation)
        images.append(struct.pack("<I7dI", k + 1, *pose, shot.lens))
        images.append(shot.name.encode() + b"\0" + struct.pack("<Q", seen[k]))
        images.append(marks[first[k] : first[k] + seen[k]].tobytes())
    write_bytes(os.path.join(folder, "images.bin"), b"".join(images))

    track = np.stack([cloud.view + 1, place], axis=1).astype("<u4")
    end = np.cumsum(cloud.length)
    points = [struct.pack("<Q", len(cloud.xyz))]
    for k in range(len(cloud.xyz)):
        head = (k + 1, *cloud.xyz[k], *cloud.rgb[k].tolist(), cloud.error[k], cloud.length[k])
        points.append(struct.pack("<Q3d3BdQ", *head))
        points.append(track[end[k] - cloud.length[k] : end[k]].tobytes())
    write_bytes(os.path.join(folder, "points3D.bin"), b"".join(points))


def _intrinsics(camera):
    """The fields of a transforms file that describe a lens."""
    fields = {"camera_angle_x": 2 * np.arctan(0.5 * camera.width / camera.fx)}
    fields.update(fl_x=camera.fx, fl_y=camera.fy, cx=camera.cx, cy=camera.cy)
    fields.update(w=camera.width, h=camera.height)
    fields.update({name: 0.0 for name in ("k1", "k2", "k3", "k4", "p1", "p2")})
    return fields


def _pose(camera):
    """Camera-to-world matrix (4, 4), OpenGL axes, position in units of 100 m."""
    matrix = np.eye(4)
    matrix[:3, :3] = camera.rotation.T * [1.0, -1.0, -1.0]
    matrix[:3, 3] = camera.center / UNIT
    return matrix.tolist()


def write_transforms(folder, shots, cloud):
    """Write transforms_train.json, transforms_test.json and their point cloud points3D.ply.

    With one lens its intrinsics are global; with two, every frame has its own.
    """
    mixed = len({shot.lens for shot in shots}) > 1
    for name, keep in (("train", lambda k: k % HOLD_OUT), ("test", lambda k: not k % HOLD_OUT)):
        frames = []
        for k, shot in enumerate(shots):
            if keep(k):
                own = _intrinsics(shot.camera) if mixed else {}
                path = f"../images/{shot.name}"
                frames.append({"file_path": path, "transform_matrix": _pose(shot.camera), **own})
        whole = {} if mixed else _intrinsics(shots[0].camera)
        text = json.dumps({**whole, "ply_file_path": "points3D.ply", "frames": frames}, indent=1)
        write_bytes(os.path.join(folder, f"transforms_{name}.json"), text.encode())
    fields = [(n, "<f4") for n in ("x", "y", "z")] + [(n, "u1") for n in ("red", "green", "blue")]
    rows = np.empty(len(cloud.xyz), fields)
    for k, name in enumerate(("x", "y", "z")):
        rows[name] = cloud.xyz[:, k] / UNIT
    for k, name in enumerate(("red", "green", "blue")):
        rows[name] = cloud.rgb[:, k]
    data = io.BytesIO()
    PlyData([PlyElement.describe(rows, "vertex")], byte_order="<").write(data)
    write_bytes(os.path.join(folder, "points3D.ply"), data.getvalue())


def write_summary(folder, summary):
    """Write city.json."""
    write_bytes(os.path.join(folder, "city.json"), json.dumps(summary, indent=1).encode())
