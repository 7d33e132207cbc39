"""Where a photographer stands in the synthetic city: a flight over it and walks along its streets.

Names follow the trajectories (all aerial views, then all street views), so a test view, every
eighth by name, lies between training views. Headings repeat every seventh view: that has no
factor in common with eight, so test views take part in every heading.
"""

from dataclasses import dataclass

import numpy as np

from ..scene.camera import Camera
from .city_layout import PITCH

AERIAL_FIELD = 60.0  # degrees across the longer side of the image
STREET_FIELD = 75.0
STREET_STEP = 3.0  # metres between street views, where there are enough of them
PERIOD = 7  # views until headings repeat
SWEEP = 38.0  # degrees to each side of a street: neighbours share half a picture or more


@dataclass(frozen=True)
class Shot:
    """A photograph to take: file name, lens (1 aerial, 2 street) and camera in metres."""

    name: str
    lens: int
    camera: Camera


def _rotation(forward, up):
    """World-to-camera rotation (3, 3) that looks along forward with `up` upwards in the image."""
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


def _intrinsics(width, height, field):
    """fx, fy, cx, cy of square pixels; no lens is mounted exactly over the sensor's middle."""
    focal = 0.5 * max(width, height) / np.tan(0.5 * np.deg2rad(field))
    return focal, focal, 0.506 * width, 0.492 * height


def _serpentine(count, lines):
    """Progress of views along `lines` parallel lines: line (count,) int, position along it
    (count,) in (0, 1), and the sense of travel (+1 or -1); every second line runs back."""
    progress = (np.arange(count) + 0.5) / count * lines
    line = np.minimum(progress.astype(np.int64), lines - 1)
    sense = 1 - 2 * (line % 2)
    along = progress - line
    return line, np.where(sense > 0, along, 1.0 - along), sense


def _flight(scene, count, draws):
    """Eyes (count, 3) and gaze directions (count, 3): lines over the city, looking at its ground
    from steep (nadir) to oblique, inwards near the border."""
    lines = max(1, int(round(np.sqrt(count))))
    line, along, _ = _serpentine(count, lines)
    height = max(1.4 * scene.tallest, 36.0)
    reach = 0.8 * scene.half  # the border is seen from inside, so several views share it
    eye = np.empty((count, 3))
    eye[:, 0] = reach * (2 * along - 1)
    eye[:, 1] = reach * (2 * (line + 0.5) / lines - 1)
    eye[:, 2] = height * (1 + 0.08 * (draws[:, 2] - 0.5))
    eye[:, :2] += 3.0 * (draws[:, :2] - 0.5)
    step = np.arange(count)
    turn = 2 * np.pi * (3 * step % PERIOD) / PERIOD + 0.5 * (draws[:, 3] - 0.5)
    tilt = np.array([0.12, 0.55, 0.95])[step % 3] * height
    target = np.zeros((count, 3))
    target[:, 0] = eye[:, 0] + tilt * np.cos(turn)
    target[:, 1] = eye[:, 1] + tilt * np.sin(turn)
    target[:, :2] = np.clip(target[:, :2], -0.75 * scene.half, 0.75 * scene.half)
    return eye, target - eye


def _walk(scene, count, draws):
    """Eyes and gaze directions along street centre lines, inner streets first, sweeping from
    ahead to across the street on both sides."""
    length = 2 * scene.half
    blocks = int(round(length / PITCH))
    middles = [-scene.half + k * PITCH for k in range(blocks + 1)]
    middles.sort(key=lambda middle: (abs(middle), middle))
    streets = [(axis, middle) for middle in middles for axis in (0, 1)]
    lines = int(np.clip(round(count * STREET_STEP / length), min(2, count), len(streets)))
    line, along, sense = _serpentine(count, max(1, lines))
    step = np.arange(count)
    sweep = np.deg2rad(SWEEP) * np.sin(2 * np.pi * step / PERIOD) + 0.1 * (draws[:, 3] - 0.5)
    eye, gaze = np.empty((count, 3)), np.empty((count, 3))
    for k in range(count):
        axis, middle = streets[line[k]]
        eye[k, axis] = scene.half * (2 * along[k] - 1)
        eye[k, 1 - axis] = middle + 0.8 * (draws[k, 0] - 0.5)
        gaze[k, axis] = sense[k] * np.cos(sweep[k])
        gaze[k, 1 - axis] = np.sin(sweep[k])
    eye[:, 2] = 2.3 + 0.5 * np.sin(2 * np.pi * step / 5) + 0.3 * (draws[:, 1] - 0.5)
    gaze[:, 2] = 0.10 + 0.08 * (draws[:, 2] - 0.5)
    return eye, gaze


def make_shots(scene, views, aerial, width, height):
    """All photographs of a city, in name order: a list of Shot.

    scene: city_layout.Scene; views: how many; aerial: share of them that fly, 0 to 1.
    """
    flying = int(round(views * aerial))
    draws = np.random.Generator(np.random.Philox(key=[scene.seed, 1])).random((views, 4))
    shots = []
    for kind, lens, field, count, path, own in (
        ("aerial", 1, AERIAL_FIELD, flying, _flight, draws[:flying]),
        ("street", 2, STREET_FIELD, views - flying, _walk, draws[flying:]),
    ):
        if not count:
            continue
        eye, gaze = path(scene, count, own)
        digits = max(4, len(str(count - 1)))  # names sort as the trajectory runs
        fx, fy, cx, cy = _intrinsics(width, height, field)
        for k in range(count):
            steep = np.hypot(*gaze[k, :2]) < 1e-3 * abs(gaze[k, 2])
            turn = _rotation(gaze[k], np.array([0.0, 1.0, 0.0] if steep else [0.0, 0.0, 1.0]))
            camera = Camera(width, height, fx, fy, cx, cy, turn, -turn @ eye[k])
            shots.append(Shot(f"{kind}_{k:0{digits}d}.jpg", lens, camera))
    return shots
