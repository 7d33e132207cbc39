"""Contract of a data set: what readers deliver and what training sees."""

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from splaxel_mpi.scene.camera import Camera


@dataclass(frozen=True)
class Lens:
    """The camera that took an image file, and the pinhole that replaces it.

    Pixel positions put the centre of the top-left pixel at (0.5, 0.5). Undistorting keeps the
    image size; ``rectified`` is the pinhole (fx, fy, cx, cy) of the undistorted image.
    """

    width: int  # of the file, pixels
    height: int
    family: str  # "pinhole" (nothing to undo), "brown" or "fisheye"
    matrix: tuple  # fx, fy, cx, cy of the file, pixels
    distortion: tuple  # OpenCV's order: brown k1 k2 p1 p2 k3 k4 k5 k6; fisheye k1 k2 k3 k4
    rectified: tuple  # fx, fy, cx, cy after undistortion, pixels


@dataclass(frozen=True)
class View:
    """One posed photograph.

    ``camera`` is what is trained: a pinhole at the training size. ``lens`` is None when the file
    already has that camera, else it tells how to get there: undistort, then reduce.
    """

    index: int  # position in Dataset.views
    name: str
    image_path: Path
    camera: Camera
    lens: Optional[Lens] = None


@dataclass(frozen=True)
class Points:
    """The sparse cloud: positions (n, 3) float64, world minus Dataset.origin, file order;
    colors (n, 3) uint8."""

    positions: np.ndarray
    colors: np.ndarray

    def __len__(self):
        return len(self.positions)


@dataclass(frozen=True)
class Dataset:
    """Views and points of a scene, checked.

    Cameras and points are in the input's frame minus ``origin`` ((3,) float64, zeros unless
    coordinates are large); whoever writes positions adds it back. ``train`` and ``test`` are
    indices into ``views``. ``kind`` is the reader's name. ``content_id`` identifies names,
    cameras and points, not pixels.
    """

    views: list  # of View, sorted by name
    points: Points
    train: list
    test: list
    origin: np.ndarray
    kind: str
    content_id: str


@dataclass
class Record:
    """One image as a file describes it, before any check.

    ``model`` and ``params`` use COLMAP's camera model names and parameter order. ``rotation`` and
    ``translation`` take world to camera (x right, y down, z forward), float64. ``where`` names
    file and record for messages, ``camera`` the record that holds the intrinsics. ``header`` is
    the image's header when the reader had to look.
    """

    name: str
    image_path: Path
    width: int
    height: int
    model: str
    params: tuple
    rotation: np.ndarray
    translation: np.ndarray
    where: str
    camera: str
    header: Optional[object] = None


@dataclass
class Source:
    """What a reader returns: Records in file order, the points, the file that holds the
    points, and the names of test views where the data set brings its own split."""

    records: list
    points: Points
    points_file: Path
    test: Optional[set] = None


class Reader:
    """A data set format. A new one is a new module in this package with a subclass; it is found
    by its ``name``. Under "auto", readers are asked in the order of ``rank`` (low first)."""

    name = ""
    rank = 100

    def detect(self, path):
        """Whether path (pathlib.Path, a folder or a file) looks like this format; cheap."""
        raise NotImplementedError

    def read(self, path, images):
        """The Source at path. images: folder of the photographs (Path) or None for the format's
        own rule. Raises UserError for whatever is missing or malformed."""
        raise NotImplementedError
