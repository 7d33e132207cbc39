"""Lenses: which pinhole replaces a distorted camera, and the resampling to it (OpenCV).

OpenCV puts the centre of the top-left pixel at (0, 0), this project at (0.5, 0.5); principal
points are shifted by half a pixel on the way in and back.
"""

from functools import lru_cache

import cv2
import numpy as np

from splaxel_mpi.data.base import Lens
from splaxel_mpi.errors import UserError

# One thread a call: ranks and their decoding threads already fill the cores of a node.
cv2.setNumThreads(1)

# A fisheye sees more than a plane can show: beyond 70 degrees off the axis (tan = 2.75) a
# pinhole image is all stretched rim and the middle loses its resolution.
WIDEST = float(np.tan(np.radians(70)))
BORDER_SAMPLES = 257  # along each side of the image; distortion is smooth
LONGEST_SIDE = 32766  # cv2.remap addresses pixels with 16 bits
CRITERIA = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 200, 1e-12)
TOLERANCE = 0.05  # pixels by which a border sample may miss the image, far below what is seen

# COLMAP model -> family, number of focal lengths, OpenCV position of each further parameter
MODELS = {
    "SIMPLE_PINHOLE": ("pinhole", 1, ()),
    "PINHOLE": ("pinhole", 2, ()),
    "SIMPLE_RADIAL": ("brown", 1, (0,)),
    "RADIAL": ("brown", 1, (0, 1)),
    "OPENCV": ("brown", 2, (0, 1, 2, 3)),
    "FULL_OPENCV": ("brown", 2, (0, 1, 2, 3, 4, 5, 6, 7)),
    "SIMPLE_FISHEYE": ("fisheye", 1, ()),
    "FISHEYE": ("fisheye", 2, ()),
    "SIMPLE_RADIAL_FISHEYE": ("fisheye", 1, (0,)),
    "RADIAL_FISHEYE": ("fisheye", 1, (0, 1)),
    "OPENCV_FISHEYE": ("fisheye", 2, (0, 1, 2, 3)),
}
COEFFICIENTS = {"pinhole": 0, "brown": 8, "fisheye": 4}


@lru_cache(maxsize=4096)
def lens_of(model, params, width, height):
    """The Lens of a COLMAP camera model and its parameters (a tuple, pixels).

    The pinhole of the undistorted image shows no blank pixel: it is the widest rectangle, at the
    same size in pixels, inside the undistorted outline of the photograph. Without distortion it
    is the camera itself. Raises UserError for a model that cannot be undone and for a focal
    length that is not positive.
    """
    if model not in MODELS:
        raise UserError(
            f"camera model {model} is not supported; undistort the images first "
            "(colmap image_undistorter) or use one of " + ", ".join(MODELS)
        )
    family, focals, places = MODELS[model]
    fx, fy = params[0], params[focals - 1]
    matrix = (fx, fy, params[focals], params[focals + 1])
    if not (fx > 0 and fy > 0):
        raise UserError(f"focal length ({fx}, {fy}) must be positive")
    distortion = [0.0] * COEFFICIENTS[family]
    for place, value in zip(places, params[focals + 2 :]):
        distortion[place] = value
    if family == "brown" and not any(distortion):
        family, distortion = "pinhole", []
    if family != "pinhole" and max(width, height) > LONGEST_SIDE:
        raise UserError(
            f"{width}x{height} pixels are more than OpenCV can undistort ({LONGEST_SIDE} a side); "
            "undistort or reduce the images first"
        )
    lens = Lens(width, height, family, matrix, tuple(distortion), matrix)
    if family == "pinhole":
        return lens
    return Lens(width, height, family, matrix, tuple(distortion), _rectified(lens))


def undistort(image, lens):
    """Resamples a photograph (height, width, 3) uint8 to the rectified pinhole of its lens,
    bilinear, same size. A pinhole comes back as it is."""
    if lens.family == "pinhole":
        return image
    # border pixels may ask for a sample a rounding error outside
    return cv2.remap(image, *_maps(lens), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@lru_cache(maxsize=2)  # 6 bytes a pixel; views of one camera follow each other
def _maps(lens):
    size = (lens.width, lens.height)
    make = cv2.fisheye if lens.family == "fisheye" else cv2
    return make.initUndistortRectifyMap(
        _matrix(lens.matrix),
        np.array(lens.distortion),
        np.eye(3),
        _matrix(lens.rectified),
        size,
        cv2.CV_16SC2,
    )


def _matrix(intrinsics):
    fx, fy, cx, cy = intrinsics
    return np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1]], np.float64)


def _rectified(lens):
    """(fx, fy, cx, cy) of the widest pinhole whose border pixels all lie on the photograph."""
    along_x = np.linspace(0, lens.width - 1, BORDER_SAMPLES)
    along_y = np.linspace(0, lens.height - 1, BORDER_SAMPLES)
    right, bottom = np.full_like(along_y, lens.width - 1), np.full_like(along_x, lens.height - 1)
    with np.errstate(all="ignore"):  # values without an inverse are caught below
        left = _directions(lens, 0 * along_y, along_y)[:, 0].max()
        right = _directions(lens, right, along_y)[:, 0].min()
        top = _directions(lens, along_x, 0 * along_x)[:, 1].max()
        bottom = _directions(lens, along_x, bottom)[:, 1].min()
    if not (np.isfinite([left, right, top, bottom]).all() and left < right and top < bottom):
        raise UserError("its lens distortion has no inverse inside the image; check the parameters")
    left, top = max(left, -WIDEST), max(top, -WIDEST)
    right, bottom = min(right, WIDEST), min(bottom, WIDEST)
    fx = max(lens.width - 1, 1) / (right - left)
    fy = max(lens.height - 1, 1) / (bottom - top)
    _check_border(lens, np.linspace(left, right, BORDER_SAMPLES), np.array([top, bottom]))
    _check_border(lens, np.array([left, right]), np.linspace(top, bottom, BORDER_SAMPLES))
    return float(fx), float(fy), float(0.5 - fx * left), float(0.5 - fy * top)


def _directions(lens, x, y):
    """Directions (n, 2), at depth 1, of OpenCV pixel positions x, y of the photograph."""
    pixels = np.stack([x, y], 1)[:, None]
    matrix, distortion = _matrix(lens.matrix), np.array(lens.distortion)
    if lens.family == "fisheye":
        return _fisheye_directions(pixels[:, 0], matrix, distortion)
    if hasattr(cv2, "undistortPointsIter"):  # OpenCV 4 gives the iteration a name of its own
        return cv2.undistortPointsIter(pixels, matrix, distortion, None, None, CRITERIA)[:, 0]
    return cv2.undistortPoints(pixels, matrix, distortion, None, None, None, CRITERIA)[:, 0]


def _fisheye_directions(pixels, matrix, distortion):
    """As above for r = theta (1 + k1 theta^2 + ... + k4 theta^8); angles beyond the widest are
    taken as the widest, because OpenCV's own inverse gives up at 90 degrees."""
    k1, k2, k3, k4 = distortion
    theta = np.linspace(0, np.arctan(WIDEST), 1 << 14)
    t2 = theta * theta
    radius = theta * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
    offset = (pixels - matrix[:2, 2]) / [matrix[0, 0], matrix[1, 1]]
    distance = np.hypot(offset[:, 0], offset[:, 1])
    reach = radius[radius <= distance.max()]
    if not (np.diff(reach) > 0).all():
        return np.full_like(offset, np.nan)
    tangent = np.tan(np.interp(distance, radius[: len(reach) + 1], theta[: len(reach) + 1]))
    return offset * (tangent / np.maximum(distance, 1e-300))[:, None]


def _check_border(lens, x, y):
    """Refuses distortion that folds: the rectangle's border must land on the photograph."""
    directions = np.stack(np.meshgrid(x, y), -1).reshape(-1, 1, 2)
    matrix, distortion = _matrix(lens.matrix), np.array(lens.distortion)
    if lens.family == "fisheye":
        pixels = cv2.fisheye.distortPoints(directions, matrix, distortion)
    else:
        solid = np.concatenate([directions, np.ones_like(directions[..., :1])], -1)
        pixels, _ = cv2.projectPoints(solid, np.zeros(3), np.zeros(3), matrix, distortion)
    excess = np.maximum(-pixels, pixels - [lens.width - 1, lens.height - 1]).max()
    if not excess <= TOLERANCE:
        raise UserError(
            "its lens distortion cannot be undone without blank pixels (it folds inside the "
            "image); check the parameters or undistort the images first"
        )
