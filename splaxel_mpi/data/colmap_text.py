"""COLMAP's text model files; "#" starts a comment line."""

from array import array

import numpy as np

from splaxel_mpi.data.base import Points
from splaxel_mpi.data.colmap_models import PARAMETERS
from splaxel_mpi.data.files import open_file, read_text
from splaxel_mpi.errors import UserError


def _is_content(line):
    stripped = line.lstrip()
    return bool(stripped) and not stripped.startswith("#")


def _fail(path, number, problem):
    raise UserError(f"{path}: line {number}: {problem}")


def read_cameras(path):
    """{camera id: (model name, width, height, parameters)} of cameras.txt."""
    cameras = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not _is_content(line):
            continue
        words = line.split()
        if len(words) < 4:
            _fail(path, number, "expected CAMERA_ID MODEL WIDTH HEIGHT PARAMS; truncated?")
        model = words[1]
        if model not in PARAMETERS:
            _fail(path, number, f"unknown camera model {model}")
        if len(words) != 4 + PARAMETERS[model]:
            _fail(path, number, f"{model} takes {PARAMETERS[model]} parameters; truncated?")
        try:
            camera_id, width, height = int(words[0]), int(words[2]), int(words[3])
            params = tuple(float(word) for word in words[4:])
        except ValueError as error:
            _fail(path, number, str(error))
        if camera_id in cameras:
            _fail(path, number, f"camera id {camera_id} appears twice")
        cameras[camera_id] = (model, width, height, params)
    return cameras


def read_images(path):
    """List of (image id, quaternion w x y z, translation, camera id, name) of images.txt.

    Each image takes two lines; the second, its 2D points, may be empty and is not kept. A name
    may contain spaces.
    """
    images = []
    lines = enumerate(read_text(path).split("\n"), 1)
    for number, line in lines:
        if not _is_content(line):
            continue
        words = line.split(None, 9)
        if len(words) < 10:
            _fail(path, number, "expected IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME; truncated?")
        try:
            image_id, camera_id = int(words[0]), int(words[8])
            pose = [float(word) for word in words[1:8]]
        except ValueError as error:
            _fail(path, number, str(error))
        images.append((image_id, pose[:4], pose[4:], camera_id, words[9].rstrip()))
        number, line = next(lines, (number + 1, ""))
        if len(line.split()) % 3:
            _fail(path, number, f"expected the 2D points (X Y POINT3D_ID)[] of {images[-1][4]}")
    return images


def read_points(path):
    """Points of points3D.txt in file order; read line by line, tracks are not kept."""
    positions, colors = array("d"), array("B")
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.lstrip().startswith(b"#"):
                continue
            words = line.split(None, 8)
            if len(words) < 8:
                _fail(path, number, "expected POINT3D_ID X Y Z R G B ERROR TRACK[]; truncated?")
            try:
                positions.extend([float(words[1]), float(words[2]), float(words[3])])
                colors.extend([int(words[4]), int(words[5]), int(words[6])])
            except (ValueError, OverflowError) as error:
                _fail(path, number, str(error))
    return Points(
        np.array(positions, np.float64).reshape(-1, 3), np.array(colors, np.uint8).reshape(-1, 3)
    )
