"""Transforms JSON: nerfstudio, instant-ngp, NeRF synthetic, and both kinds of MatrixCity."""

import json
import math
import posixpath
from pathlib import Path

import numpy as np

from splaxel_mpi.data.base import Reader, Record, Source
from splaxel_mpi.data.cloud import read_ply
from splaxel_mpi.data.files import read_text
from splaxel_mpi.data.pixels import inspect_all
from splaxel_mpi.errors import UserError

SUFFIXES = (".png", ".jpg", ".jpeg", ".PNG", ".JPG", ".JPEG", ".webp", ".tif", ".tiff", ".bmp")
CLOUDS = ("sparse_pc.ply", "points3D.ply", "input.ply")
ROT_MAT_SCALE = 100  # MatrixCity's rot_mat holds a rotation divided by 100
ORTHOGONAL = 1e-3  # allowed deviation of a rotation, for poses written with few digits
OPENGL = np.array([1.0, -1.0, -1.0])  # camera axes x right, y up, z back -> x right, y down, z on
BROWN = ("OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "FULL_OPENCV")


class Transforms(Reader):
    """``transforms.json``, or ``transforms_train.json`` with ``transforms_test.json``, or the one
    folder in ``pose`` with such files (MatrixCity); the path may also be the JSON file itself (a
    ``_train`` file brings its ``_test`` file along).

    The world frame and its unit are those of the JSON: nerfstudio's ``applied_transform`` is not
    undone (its point file is in the same frame), MatrixCity's ``transform_matrix`` stays in units
    of 100 m and its ``rot_mat`` in metres. Intrinsics may be global or per frame. Points come from
    ``ply_file_path``, else from sparse_pc.ply, points3D.ply or input.ply beside the JSON. Image
    paths are relative to the JSON; with ``images`` set, to that folder, or the bare file names are.
    """

    name = "transforms"
    rank = 20

    def detect(self, path):
        return bool(_json_files(path) or _pose_blocks(path))

    def read(self, path, images):
        files = _json_files(path) or _json_files(_only_block(path))
        records, test, points = [], set(), None
        for file in files:
            document = _Document(file, images)
            found = document.records()
            records += found
            if len(files) == 2 and file == files[1]:
                test = {record.name for record in found}
            points = points or document.points_file()
        if points is None:
            raise UserError(
                f"{files[0]}: no points; the initial Gaussians come from a sparse cloud: add "
                f"ply_file_path to the JSON or put one of {', '.join(CLOUDS)} beside it"
            )
        return Source(records, read_ply(points), points, test if len(files) == 2 else None)


def _json_files(path):
    """[file] or [train file, test file] at path, [] when there is none."""
    if path.is_dir():
        for name in ("transforms.json", "transforms_train.json"):
            if (path / name).is_file():
                return _json_files(path / name)
        return []
    if path.suffix != ".json":
        return []
    test = path.with_name(path.name.replace("_train.json", "_test.json"))
    return [path, test] if test != path and test.is_file() else [path]


def _pose_blocks(path):
    """Folders of MatrixCity's pose folder that hold transforms files."""
    if not (path / "pose").is_dir():
        return []
    return [folder for folder in sorted((path / "pose").iterdir()) if _json_files(folder)]


def _only_block(path):
    blocks = _pose_blocks(path)
    if not blocks:
        raise UserError(f"{path}: no transforms.json or transforms_train.json found")
    if len(blocks) > 1:
        names = ", ".join(str(block) for block in blocks[:5])
        raise UserError(f"{path}: has {len(blocks)} pose folders; give one of them: {names} ...")
    return blocks[0]


class _Document:
    """One JSON file and the records in it."""

    def __init__(self, file, images):
        self.file = file
        self.images = images
        try:
            self.header = json.loads(read_text(file))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}: malformed JSON: {error}") from None
        if not isinstance(self.header, dict):
            raise UserError(f"{file}: malformed: expected an object with the key 'frames'")
        self.frames = self.header.get("frames")
        if not isinstance(self.frames, list):
            raise UserError(f"{file}: the key 'frames' is missing or not a list")

    def points_file(self):
        """Path of the PLY file or None."""
        name = self.header.get("ply_file_path")
        if name is not None:
            if not isinstance(name, str):
                raise UserError(f"{self.file}: ply_file_path is not a string")
            return self.file.parent / name
        for name in CLOUDS:
            if (self.file.parent / name).is_file():
                return self.file.parent / name
        return None

    def records(self):
        """Records of all frames, in file order."""
        frames = [_Frame(self, number, frame) for number, frame in enumerate(self.frames)]
        unsized = [frame for frame in frames if not frame.has_size()]
        headers = inspect_all([(frame.image_path, frame.where) for frame in unsized])
        for frame, header in zip(unsized, headers):
            frame.image_header = header
        return [frame.record() for frame in frames]


class _Frame:
    """One frame; looks keys up in itself first, then in the document."""

    def __init__(self, document, number, frame):
        self.document = document
        self.where = f"{document.file}: frame {number}"
        if not isinstance(frame, dict):
            raise UserError(f"{self.where}: is not an object")
        self.frame = frame
        self.image_header = None
        name = self._image_name()
        self.where += f" ({name})"
        self.image_path = self._resolve(name)
        self.name = posixpath.normpath(name).lstrip("/")
        while self.name.startswith("../"):
            self.name = self.name[3:]

    def record(self):
        """The Record of this frame."""
        rotation, translation = self._pose()
        if self.has_size():
            width, height = self._size("w"), self._size("h")
        else:
            width, height = self.image_header.width, self.image_header.height
        model, params = self._intrinsics(width, height)
        return Record(
            name=self.name,
            image_path=self.image_path,
            width=width,
            height=height,
            model=model,
            params=params,
            rotation=rotation,
            translation=translation,
            where=self.where,
            camera=self.where,
            header=self.image_header,
        )

    def has_size(self):
        return self._number("w") is not None and self._number("h") is not None

    def _image_name(self):
        name = self.frame.get("file_path")
        index = self.frame.get("frame_index")
        if name is None and isinstance(index, int) and "rot_mat" in self.frame:
            return f"{index:04d}.png"
        if not isinstance(name, str) or not name:
            raise UserError(f"{self.where}: the key 'file_path' is missing or not a string")
        return name.replace("\\", "/")  # written on Windows

    def _resolve(self, name):
        base = self.document.file.parent
        if self.document.images is not None:
            base = self.document.images
            if not _is_file(base / name):
                name = posixpath.basename(name)
        path = base / name
        if path.suffix in SUFFIXES:
            return path
        for suffix in ("", *SUFFIXES):
            candidate = Path(str(path) + suffix)
            if _is_file(candidate):
                return candidate
        return path

    def _number(self, key, default=None):
        value = self.frame.get(key, self.document.header.get(key))
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{self.where}: {key} is not a number")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            raise UserError(f"{self.where}: {key} is not finite")
        return value

    def _size(self, key):
        value = self._number(key)
        if value != int(value):
            raise UserError(f"{self.where}: {key} = {value} is not a whole number of pixels")
        return int(value)

    def _pose(self):
        """World-to-camera rotation and translation, from camera to world in OpenGL's axes."""
        key = "transform_matrix" if "transform_matrix" in self.frame else "rot_mat"
        if key not in self.frame:
            raise UserError(f"{self.where}: the key 'transform_matrix' is missing")
        try:
            matrix = np.array(self.frame[key], np.float64)
        except (TypeError, ValueError, OverflowError):
            matrix = np.empty(0)
        if matrix.shape not in ((4, 4), (3, 4)):
            raise UserError(f"{self.where}: {key} is not a 4x4 matrix of numbers")
        if not np.isfinite(matrix).all():
            raise UserError(f"{self.where}: {key} is not finite")
        axes = matrix[:3, :3] * (ROT_MAT_SCALE if key == "rot_mat" else 1)
        axes = self._nearest_rotation(axes, key) * OPENGL
        return axes.T.copy(), -axes.T @ matrix[:3, 3]

    def _nearest_rotation(self, axes, key):
        left, stretch, right = np.linalg.svd(axes)
        deviation = np.abs(stretch - 1).max()
        if not (deviation < ORTHOGONAL and np.linalg.det(axes) > 0):
            unit = " divided by 100" if key == "rot_mat" else ""
            raise UserError(
                f"{self.where}: the 3x3 part of {key} is not a rotation{unit} "
                f"(axis lengths {', '.join(f'{value:.4g}' for value in stretch)})"
            )
        return left @ right

    def _intrinsics(self, width, height):
        """COLMAP model name and parameters."""
        model = self.frame.get("camera_model", self.document.header.get("camera_model"))
        fisheye = self.frame.get("is_fisheye", self.document.header.get("is_fisheye"))
        if model is None:
            model = "OPENCV_FISHEYE" if fisheye is True else "OPENCV"
        fx, fy = self._focal(width, height)
        params = (fx, fy, self._number("cx", width / 2), self._number("cy", height / 2))
        if model == "OPENCV_FISHEYE":
            return model, params + self._coefficients("k1 k2 k3 k4")
        if model not in BROWN:
            return str(model), params  # refused with the names of those that are supported
        brown = self._coefficients("k1 k2 p1 p2 k3 k4 k5 k6")
        if model != "FULL_OPENCV" and any(brown[5:]):
            raise UserError(
                f"{self.where}: k4 and beyond mean different things to different programs with "
                f"camera_model {model}; use FULL_OPENCV or OPENCV_FISHEYE"
            )
        return "FULL_OPENCV", params + brown

    def _coefficients(self, names):
        return tuple(self._number(name, 0.0) for name in names.split())

    def _focal(self, width, height):
        fx, fy = self._number("fl_x"), self._number("fl_y")
        if fx is None and fy is None:
            fx = self._from_angle("camera_angle_x", width)
            fy = self._from_angle("camera_angle_y", height)
        if fx is None and fy is None:
            raise UserError(f"{self.where}: neither fl_x nor camera_angle_x is given")
        return (fy if fx is None else fx), (fx if fy is None else fy)

    def _from_angle(self, key, size):
        """Focal length in pixels from a field of view in radians, None without it."""
        angle = self._number(key)
        if angle is None:
            return None
        if not 0 < angle < math.pi:
            raise UserError(f"{self.where}: {key} = {angle} is not between 0 and pi radians")
        return 0.5 * size / math.tan(0.5 * angle)


def _is_file(path):
    try:
        return path.is_file()
    except (OSError, ValueError):  # an impossible name, told when the image is opened
        return False
