"""A seeded city of Gaussians of any count, and cameras in it: the scene of the benchmarks.

A square grid of blocks with box buildings between streets; Gaussians are thin discs on ground,
facades and roofs, in random order. Street views see deep occlusion, aerial views most of what is
below them, as large urban captures do. Frame: metres, z up, ground at z = 0, the city's middle
at the origin. (The city of data/city.py is photographed, not made of Gaussians.)

Every row depends on seed, side, count and its own index alone, so ranks make their shares
without talking and a city of 40 M rows needs the memory of its result.
"""

import math
from multiprocessing.pool import ThreadPool

import numpy as np

from ..scene.camera import Camera
from ..scene.gaussians import Gaussians

STREET = 14.0  # metres between facades across a street
BLOCK = 60.0  # metres of a block, facade to facade
PITCH = STREET + BLOCK
LEAST_SIDE = 2 * PITCH  # one street inside the city
GAP = 2.0  # metres between the buildings of a block
GROUND_SHARE = 0.5  # Gaussians an area of ground has, against facades and roofs: it is smoother
SH_C0 = 0.28209479177387814
ROWS = 1 << 16  # rows that share a random generator
KINDS = ("street", "aerial", "mixed")
LAYOUT, DISCS = range(2)  # what a random generator is for


def gaussians(count, side, seed=0, bands=3, start=0, stop=None, threads=1):
    """Rows start to stop (None: the end) of a city of ``count`` Gaussians, float32.

    side: of the city in metres, at least 148; bands: SH bands with values, 0 to 3; those above
    are zero (and with 0 the memory of shN is not touched). Ids are row indices. Any cut into
    shares and any number of threads give the same rows. Raises ValueError for arguments out of
    range.
    """
    stop = count if stop is None else stop
    if not 0 <= start <= stop <= count or not 0 <= bands <= 3:
        raise ValueError(f"rows {start} to {stop} of {count} with {bands} bands")
    _check_side(side)
    faces = _Faces(side, seed)
    spacing = math.sqrt(faces.area / max(count, 1))  # metres between neighbours
    out = Gaussians.empty(stop - start)

    def fill(block):
        low, high = max(start, block * ROWS), min(stop, (block + 1) * ROWS)
        rows = slice(low - block * ROWS, high - block * ROWS)
        _discs(faces, spacing, seed, block, bands, rows, out, slice(low - start, high - start))

    with ThreadPool(threads) as pool:  # numpy draws without the interpreter's lock
        pool.map(fill, range(start // ROWS, -(-stop // ROWS)), 1)
    out.ids[:] = np.arange(start, stop)
    return out


def cameras(kind, views, side, seed=1, width=1920, height=1080):
    """A list of Cameras; the first ones do not depend on how many there are.

    kind: "street" (1.7 m above the middle of a street, 90 degrees wide), "aerial" (150 m up,
    60 degrees wide, looking down by 51 degrees) or "mixed" (both in turn, street first). Raises
    ValueError for another kind or side.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    _check_side(side)
    random = np.random.default_rng(seed)
    out = []
    for index in range(views):
        street = kind == "street" or (kind == "mixed" and index % 2 == 0)
        eye, forward = (_street_pose if street else _aerial_pose)(random, side)
        focal = 0.5 * width / math.tan(0.5 * math.radians(90.0 if street else 60.0))
        rotation = _axes(forward)
        out.append(Camera(width, height, focal, focal, width / 2, height / 2, rotation,
                          -rotation @ eye))
    return out


def _check_side(side):
    if not side >= LEAST_SIDE:
        raise ValueError(f"side must be at least {LEAST_SIDE:g} m, got {side:g}")


def _generator(seed, *purpose):
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=purpose))


class _Faces:
    """The rectangles that Gaussians lie on: the ground, then five of each building."""

    def __init__(self, side, seed):
        random = _generator(seed, LAYOUT)
        boxes = _buildings(side, random)
        low, size = boxes[:, :3], boxes[:, 3:]
        ground = np.array([[-side / 2, -side / 2, 0], [side, 0, 0], [0, side, 0]])
        parts, normals = [ground[:, None]], [[2]]
        for normal, far in ((2, 1), (1, 0), (1, 1), (0, 0), (0, 1)):  # roof, then facades
            u, v = (axis for axis in range(3) if axis != normal)
            part = np.zeros((3, *low.shape))
            part[0] = low
            part[0, :, normal] += far * size[:, normal]
            part[1, :, u], part[2, :, v] = size[:, u], size[:, v]
            parts.append(part)
            normals.append(np.full(len(boxes), normal))
        self.origin, self.u, self.v = np.concatenate(parts, axis=1)  # (faces, 3) each
        self.normal = np.concatenate(normals)  # (faces,) axis
        area = np.linalg.norm(self.u, axis=1) * np.linalg.norm(self.v, axis=1)
        self.area = area.sum()
        weight = np.append(GROUND_SHARE * area[0], area[1:])
        self.upto = np.cumsum(weight) / weight.sum()  # (faces,) cumulated probability
        self.tint = random.uniform(0.2, 0.9, (len(area), 3))


def _buildings(side, random):
    """Boxes (n, 6): low corner and size, one or four in a block."""
    blocks = int(side // PITCH)
    out = []
    for i in range(blocks):
        for j in range(blocks):
            parts = int(random.integers(1, 3))
            width = BLOCK / parts
            heights = np.clip(random.lognormal(2.9, 0.6, (parts, parts)), 5.0, 120.0)
            for (a, b), height in np.ndenumerate(heights):
                corner = [k * PITCH + STREET / 2 - side / 2 for k in (i, j)]
                out.append([corner[0] + a * width, corner[1] + b * width, 0.0, width - GAP,
                            width - GAP, height])
    return np.array(out)


# (w, x, y, z) that turns z, the thin axis of a disc, into the axis of a normal
_QUATS = np.array([[math.sqrt(0.5), 0, math.sqrt(0.5), 0], [math.sqrt(0.5), math.sqrt(0.5), 0, 0],
                   [1, 0, 0, 0]], np.float32)


def _discs(faces, spacing, seed, block, bands, rows, out, to):
    """Draw the ROWS Gaussians of a block and put some of them into rows ``to`` of out."""
    random = _generator(seed, DISCS, block)
    which = np.searchsorted(faces.upto, random.random(ROWS), side="right")
    which = np.minimum(which, len(faces.upto) - 1)  # the last probability may round below 1
    along = random.random((2, ROWS, 1))
    means = faces.origin[which] + along[0] * faces.u[which] + along[1] * faces.v[which]
    means += 0.03 * random.standard_normal((ROWS, 3))
    out.means[to] = means[rows]
    spread = 0.45 * random.standard_normal((ROWS, 2), np.float32)
    out.scales[to, :2] = math.log(0.7 * spacing) + spread[rows]
    out.scales[to, 2] = math.log(0.08 * spacing)
    out.quats[to] = _QUATS[faces.normal[which[rows]]]
    out.opacities[to] = (1.5 + 2.0 * random.standard_normal((ROWS, 1), np.float32))[rows]
    colour = faces.tint[which] + 0.05 * random.standard_normal((ROWS, 3))
    waves = np.sin(means @ [2.1, 1.7, 0.0]) * np.sin(2.0 * means[:, 2])
    colour -= 0.25 * (waves > 0.3)[:, None]  # windows
    out.sh0[to] = ((np.clip(colour, 0.02, 0.98) - 0.5) / SH_C0)[rows]
    # coefficient after coefficient: fewer bands are the first of more
    for k in range((bands + 1) ** 2 - 1):
        columns = slice(3 * k, 3 * k + 3)
        out.shN[to, columns] = 0.03 * random.standard_normal((ROWS, 3), np.float32)[rows]


def _street_pose(random, side):
    line = int(random.integers(1, int(side // PITCH))) * PITCH - side / 2
    along = random.uniform(-0.45, 0.45) * side
    heading = random.choice([-1.0, 1.0])
    if random.random() < 0.5:
        return np.array([line, along, 1.7]), np.array([0.3, heading, 0.05])
    return np.array([along, line, 1.7]), np.array([heading, 0.3, 0.05])


def _aerial_pose(random, side):
    eye = np.append(random.uniform(-0.4, 0.4, 2) * side, 150.0)
    turn = random.uniform(0, 2 * math.pi)
    return eye, np.array([120 * math.cos(turn), 120 * math.sin(turn), -150.0])


def _axes(forward):
    """Rotation world to camera that looks along forward, z of the world up in the image."""
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])
