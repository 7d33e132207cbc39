"""Loading a data set: find its reader, check everything, cut training from test views."""

import hashlib
import importlib
import logging
import math
import pkgutil
from pathlib import Path

import numpy as np

import splaxel_mpi.data
from splaxel_mpi.data.base import Dataset, Points, Reader, View
from splaxel_mpi.data.files import one_line
from splaxel_mpi.data.pixels import check_size, inspect_all, reduced_size
from splaxel_mpi.data.undistort import lens_of
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.camera import Camera

LONGEST_SIDE = 1_000_000  # pixels; beyond it a size is a corrupt number, not a photograph
LARGEST = 1e12  # coordinates and pixels; float64 resolves 0.1 mm there, and nobody maps further
# float32 keeps 24 bits: 100 extents away from zero, positions are still good to 6e-6 extents
FAR = 100
CHUNK = 4096  # views whose numbers are gathered at a time

log = logging.getLogger(__name__)


def load(
    path, format="auto", scale=1, holdout=8, images=None, origin="auto", photographs=True
):
    """Reads and checks a data set; no pixels are decoded, only headers.

    path: folder of the data set, or a transforms JSON file. format: a reader's name ("colmap",
    "transforms") or "auto"; a folder that holds both a COLMAP model and a transforms JSON is
    read as COLMAP under "auto". scale (>= 1, may be a fraction): images are reduced to
    floor(width / scale) x floor(height / scale), and fx, fy, cx, cy are divided by scale. holdout:
    every holdout-th view by sorted name, from the first, is for testing (0: none); a data set
    that brings train and test files keeps its own split. images: folder of the photographs,
    absolute or relative to path, in place of the format's rule. origin: "auto" subtracts a
    rounded mean of the camera centres where that lies beyond 100 times the cameras' extent (UTM
    coordinates), else nothing; "none" never; or three numbers. photographs: whether their files are
    looked at; without, they need not be there.

    Returns a Dataset. Raises UserError, one line that names file and record, for anything
    that is missing, damaged, contradictory or not finite.
    """
    try:
        return _load(Path(path), format, scale, holdout, images, origin, photographs)
    except UserError as error:
        raise UserError(one_line(str(error))) from None


def _load(path, format, scale, holdout, images, origin, photographs):
    _check_settings(scale, holdout)
    if not path.exists():
        raise UserError(f"{path}: data set not found")
    reader = find_reader(path, format)
    base = path if path.is_dir() else path.parent
    photos = None if images is None else base / images
    if photographs and photos is not None and not photos.is_dir():
        raise UserError(f"{photos}: image folder not found")
    source = reader.read(path, photos)
    records = _sorted_records(source.records, path)
    _check_records(records)
    lenses = [_lens(record) for record in records]
    _check_points(source.points, source.points_file)
    if photographs:
        _check_images(records)
    shift = _origin(origin, records, source.points)
    views = [
        _view(index, record, lens, scale, shift)
        for index, (record, lens) in enumerate(zip(records, lenses))
    ]
    points = Points(source.points.positions - shift, source.points.colors)
    train, test = _split(records, source.test, holdout, path)
    identity = _content_id(views, points, shift)
    return Dataset(views, points, train, test, shift, reader.name, identity)


def readers():
    """One Reader of every format in this package, in the order "auto" asks them."""
    for module in pkgutil.iter_modules(splaxel_mpi.data.__path__):
        importlib.import_module(f"{splaxel_mpi.data.__name__}.{module.name}")
    return sorted((kind() for kind in Reader.__subclasses__()), key=lambda reader: reader.rank)


def find_reader(path, format):
    """Reader for a data set at path (pathlib.Path). format: its name, or "auto" for whichever
    recognises it. Raises UserError where there is none."""
    known = readers()
    if format == "auto":
        for reader in known:
            if reader.detect(path):
                return reader
        raise UserError(
            f"{path}: no data set found; expected a COLMAP model (sparse/0/cameras.bin) or a "
            "transforms JSON (transforms.json, transforms_train.json)"
        )
    for reader in known:
        if reader.name == format:
            return reader
    names = ", ".join(["auto", *(reader.name for reader in known)])
    raise UserError(f"data format {format!r} is unknown; choose one of {names}")


def _check_settings(scale, holdout):
    if not (isinstance(scale, (int, float)) and math.isfinite(scale) and scale >= 1):
        raise UserError(f"data scale {scale!r} must be a number of at least 1")
    if not (isinstance(holdout, int) and holdout >= 0):
        raise UserError(f"data holdout {holdout!r} must be a whole number, 0 for no test views")


def _sorted_records(records, path):
    if not records:
        raise UserError(f"{path}: the data set has no images")
    records = sorted(records, key=lambda record: record.name)
    for one, other in zip(records, records[1:]):
        if one.name == other.name:
            raise UserError(f"{other.where}: image name {other.name!r} appears twice")
    return records


def _check_records(records):
    """Refuses numbers that make no sense; views that share a camera share its check."""
    near = (np.abs([record.translation for record in records]) <= LARGEST).all(1).tolist()
    good = set()
    for record, placed in zip(records, near):
        if record.params not in good:
            _check_camera(record)
            good.add(record.params)
        if not placed:
            raise UserError(f"{record.where}: a number is not finite or beyond {LARGEST:g}")
        _check_size(record)


def _check_camera(record):
    if not (np.abs(record.params) <= LARGEST).all():
        raise UserError(f"{record.camera}: a number is not finite or beyond {LARGEST:g}")


def _check_size(record):
    if not (1 <= record.width <= LONGEST_SIDE and 1 <= record.height <= LONGEST_SIDE):
        raise UserError(
            f"{record.camera}: image size {record.width}x{record.height} makes no sense"
        )


def _lens(record):
    try:
        return lens_of(record.model, record.params, record.width, record.height)
    except UserError as error:
        raise UserError(f"{record.camera}: {error}") from None


def _check_points(points, file):
    if not len(points):
        raise UserError(
            f"{file}: has no points; the initial Gaussians come from them, so export the sparse "
            "cloud with the cameras"
        )
    valid = (np.abs(points.positions) <= LARGEST).all(axis=1)
    if not valid.all():
        bad = int(np.argmin(valid))
        raise UserError(
            f"{file}: point record {bad}: its position is not finite or beyond {LARGEST:g}"
        )


def _check_images(records):
    unseen = [record for record in records if record.header is None]
    headers = inspect_all([(record.image_path, record.where) for record in unseen])
    for record, header in zip(unseen, headers):
        record.header = header
    for record in records:
        check_size(record.header, record.width, record.height, record.image_path, record.camera)
    turned = [record for record in records if record.header.orientation != 1]
    if turned:
        log.warning(
            "%s: EXIF orientation %d is ignored, stored pixels are used (%d of %d images)",
            turned[0].image_path, turned[0].header.orientation, len(turned), len(records),
        )  # fmt: skip


def _origin(origin, records, points):
    if not isinstance(origin, str) or origin not in ("auto", "none"):
        return _given_origin(origin)
    centers = np.array([-record.rotation.T @ record.translation for record in records])
    mean = centers.mean(axis=0)
    extent = np.linalg.norm(centers - mean, axis=1).max()
    if extent == 0:  # a single camera: take the distance to what it looks at
        extent = np.median(np.linalg.norm(points.positions - mean, axis=1))
    if origin == "none" or extent == 0 or np.linalg.norm(mean) <= FAR * extent:
        return np.zeros(3)
    # as many digits as tell the origin from its neighbours one extent away
    return np.round(mean, -math.floor(math.log10(extent)))


def _given_origin(origin):
    try:
        shift = np.array(origin, np.float64)
    except (TypeError, ValueError):
        shift = np.array(np.nan)
    if shift.shape != (3,) or not np.isfinite(shift).all():
        raise UserError(f"data origin {origin!r} must be auto, none or three numbers")
    return shift


def _view(index, record, lens, scale, shift):
    width, height = reduced_size(lens.width, lens.height, scale)
    if not (width and height):
        raise UserError(
            f"{record.where}: nothing is left of {lens.width}x{lens.height} at data scale {scale}"
        )
    fx, fy, cx, cy = (float(value) / scale for value in lens.rectified)
    translation = record.translation + record.rotation @ shift
    camera = Camera(width, height, fx, fy, cx, cy, record.rotation, translation)
    as_stored = lens.family == "pinhole" and (width, height) == (lens.width, lens.height)
    return View(index, record.name, record.image_path, camera, None if as_stored else lens)


def _split(records, given, holdout, path):
    if given is not None:
        test = [index for index, record in enumerate(records) if record.name in given]
    else:
        test = list(range(0, len(records), holdout)) if holdout else []
    held = set(test)
    train = [index for index in range(len(records)) if index not in held]
    if not train:
        raise UserError(
            f"{path}: all {len(records)} views are for testing; raise data holdout or set it to 0"
        )
    return train, test


def _content_id(views, points, shift):
    digest = hashlib.sha256()
    for first in range(0, len(views), CHUNK):
        part = views[first : first + CHUNK]
        numbers = _numbers([view.camera for view in part])
        for view, row in zip(part, numbers):
            digest.update(view.name.encode("utf-8", "surrogateescape") + b"\0" + row.tobytes())
    digest.update(np.ascontiguousarray(points.positions, "<f8"))
    digest.update(np.ascontiguousarray(points.colors))
    digest.update(shift.astype("<f8").tobytes())
    return digest.hexdigest()


def _numbers(cameras):
    """Width, height and Camera.packed of each: (n, 18) little-endian float64."""
    out = np.empty((len(cameras), 18), "<f8")
    out[:, 2:11] = np.array([camera.rotation for camera in cameras]).reshape(-1, 9)
    out[:, 11:14] = [camera.translation for camera in cameras]
    out[:, [0, 1, 14, 15, 16, 17]] = [
        (c.width, c.height, c.fx, c.fy, c.cx, c.cy) for c in cameras
    ]
    return out
