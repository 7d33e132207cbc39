"""COLMAP models, binary or text."""

import math

import numpy as np

from splaxel_mpi.data import colmap_binary, colmap_text
from splaxel_mpi.data.base import Reader, Record, Source
from splaxel_mpi.errors import UserError

FILES = ("cameras", "images", "points3D")
FORMS = ((".bin", colmap_binary), (".txt", colmap_text))  # binary wins where both exist


class Colmap(Reader):
    """``path/sparse/0``, ``path/sparse`` or ``path`` holds cameras, images and points3D, as .bin
    or .txt. rigs and frames files are not needed. Photographs lie in ``path/images``, else in
    ``path``; for a path that is itself the model folder, also in ``images`` beside ``sparse``."""

    name = "colmap"
    rank = 10  # before transforms: exported transforms are often made from the COLMAP model

    def detect(self, path):
        return _model_folder(path) is not None

    def read(self, path, images):
        folder = _model_folder(path)
        if folder is None:
            raise UserError(
                f"{path}: no COLMAP model; expected cameras.bin or cameras.txt in sparse/0, "
                "sparse or the folder itself"
            )
        cameras_file, form = _locate(folder, "cameras")
        images_file, images_form = _locate(folder, "images")
        points_file, points_form = _locate(folder, "points3D")
        cameras = form.read_cameras(cameras_file)
        photos = images or _image_folder(path, folder)
        rows = images_form.read_images(images_file)
        for row in rows:
            _check(row, cameras, cameras_file, images_file)
        records = _records(rows, cameras, cameras_file, images_file, photos)
        return Source(records, points_form.read_points(points_file), points_file)


def _model_folder(path):
    for folder in (path / "sparse" / "0", path / "sparse", path):
        for name in FILES:
            if any((folder / (name + suffix)).is_file() for suffix, _ in FORMS):
                return folder
    return None


def _locate(folder, name):
    for suffix, form in FORMS:
        if (folder / (name + suffix)).is_file():
            return folder / (name + suffix), form
    hint = "the initial Gaussians come from it; " if name == "points3D" else ""
    raise UserError(
        f"{folder}: {name}.bin or {name}.txt is missing; {hint}export the whole COLMAP model"
    )


def _image_folder(path, folder):
    candidates = [path / "images"]
    if folder == path:
        candidates += [parent / "images" for parent in list(path.resolve().parents)[:2]]
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    return path


def _check(row, cameras, cameras_file, images_file):
    """Refuses a row of an images file that has no name, camera or rotation."""
    image_id, quaternion, _, camera_id, name = row
    if not name:
        raise UserError(f"{images_file}: image {image_id}: has no name")
    if camera_id not in cameras:
        raise UserError(f"{_where(row, images_file)}: refers to camera id {camera_id}, which "
                        f"{cameras_file} lacks")
    length = math.hypot(*quaternion)
    if not math.isfinite(length) or length == 0:
        raise UserError(f"{_where(row, images_file)}: its rotation {list(quaternion)} is no "
                        "quaternion")


def _where(row, images_file):
    return f"{images_file}: image {row[0]} ({row[4]})"


def _records(rows, cameras, cameras_file, images_file, photos):
    """A Record of each row of an images file. Poses share two tables: a survey has hundreds of
    thousands."""
    rotations = _rotations([row[1] for row in rows])
    translations = np.array([row[2] for row in rows], np.float64).reshape(-1, 3)
    known = {number: (model, width, height, tuple(params), f"{cameras_file}: camera {number}")
             for number, (model, width, height, params) in cameras.items()}
    out = []
    for row, rotation, translation in zip(rows, rotations, translations):
        model, width, height, params, camera = known[row[3]]
        out.append(Record(row[4], photos / row[4], width, height, model, params, rotation,
                          translation, _where(row, images_file), camera))
    return out


def _rotations(quaternions):
    """Rotation matrices (n, 3, 3) of quaternions (w, x, y, z) of any length but zero."""
    lengths = np.array([math.hypot(*quaternion) for quaternion in quaternions])
    w, x, y, z = (np.array(quaternions, np.float64).reshape(-1, 4) / lengths[:, None]).T
    out = np.empty((len(lengths), 3, 3))
    out[:, 0] = np.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], 1)
    out[:, 1] = np.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], 1)
    out[:, 2] = np.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], 1)
    return out
