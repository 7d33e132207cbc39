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
        records = [
            _record(row, number, cameras, cameras_file, images_file, photos)
            for number, row in enumerate(images_form.read_images(images_file))
        ]
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


def _record(row, number, cameras, cameras_file, images_file, photos):
    image_id, quaternion, translation, camera_id, name = row
    where = f"{images_file}: image {image_id} ({name})"
    if not name:
        raise UserError(f"{images_file}: image {image_id}: has no name")
    if camera_id not in cameras:
        raise UserError(f"{where}: refers to camera id {camera_id}, which {cameras_file} lacks")
    model, width, height, params = cameras[camera_id]
    return Record(
        name=name,
        image_path=photos / name,
        width=width,
        height=height,
        model=model,
        params=tuple(params),
        rotation=_rotation(quaternion, where),
        translation=np.array(translation, np.float64),
        where=where,
        camera=f"{cameras_file}: camera {camera_id}",
    )


def _rotation(quaternion, where):
    """Rotation matrix of a quaternion (w, x, y, z) of any length but zero."""
    length = math.hypot(*quaternion)
    if not math.isfinite(length) or length == 0:
        raise UserError(f"{where}: its rotation {list(quaternion)} is no quaternion")
    w, x, y, z = np.asarray(quaternion) / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
