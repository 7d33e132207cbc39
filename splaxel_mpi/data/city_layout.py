"""Where the synthetic city's streets, buildings, trees and cars stand.

Frame: metres, x east, y north, z up, ground at z = 0, the city's middle at the origin. Blocks of
one size lie on a square grid of streets; a ring of row houses closes the streets at the border, so
that a view from a street always ends at something built. What stands in a block depends on the
seed and on the block's index alone, so a larger extent adds blocks and changes none.
"""

import math
from dataclasses import dataclass

import numpy as np

from ..backends.host_library import call

PITCH = 40.0  # metres from one street to the next: short blocks, so a small extent has several
LANES = 4.5  # half a carriageway: two lanes and two rows of parked cars
WALK = 2.5  # width of a sidewalk
PARCEL = PITCH / 2 - LANES - WALK  # half the side of what may be built on
RING = 10.0  # depth of the ring of row houses
CELL = 5.0  # side of a grid cell, metres: a few pieces each
REACH = 2.0  # metres around a surface that shade it from the sky

# Numbers shared with cuda_src/host/city_scene.h.
BOX, ELLIPSOID, GABLE_X, GABLE_Y = range(4)
FACADE, SLAB, PARK, FOLIAGE, BARK, CAR, CABIN, METAL, PARAPET, TILES = range(10)
ROW_HOUSE = 5  # the facade style of the ring; blocks use styles 0 to 4


@dataclass(frozen=True)
class Scene:
    """The city as convex pieces and the grid that finds them; what the ray caster takes.

    bounds: (n, 6) float64, low and high corner; kinds: (n, 4) int32 shape, material, style, seed;
    half: half the side of the square of blocks; tallest: highest point, metres.
    """

    bounds: np.ndarray
    kinds: np.ndarray
    half: float
    tallest: float
    seed: int
    grid: tuple

    def arguments(self):
        """Leading arguments of every kernel of the ray caster."""
        frame, start, item, near_start, near_item, cell_top = self.grid
        return (
            frame, len(self.bounds), self.bounds, self.kinds, start, item, near_start, near_item,
            cell_top,
        )  # fmt: skip

    def render(self, camera, samples=4, threads=0):
        """Photograph of a camera: (height, width, 3) float32 in [0, 1], display values.

        samples: rays a pixel, a square number; threads: 0 takes all.
        """
        out = np.empty((camera.height, camera.width, 3), np.float32)
        call(
            "city_render", *self.arguments(), camera.packed(), camera.width, camera.height,
            math.isqrt(samples), self.seed & 0x7FFFFFFF, threads, out,
        )  # fmt: skip
        return out

    def trace(self, origins, directions, threads=0):
        """First hits of rays (n, 3) + t (n, 3), float64.

        Returns t (n,) float64, inf where the ray meets the sky; piece (n,) int64, a row of
        ``bounds`` or -1 for sky and -2 for ground; normals (n, 3) float64.
        """
        directions = np.ascontiguousarray(directions, np.float64).reshape(-1, 3)
        origins = np.ascontiguousarray(np.broadcast_to(origins, directions.shape), np.float64)
        count = len(directions)
        t, piece = np.empty(count), np.empty(count, np.int64)
        normals = np.empty((count, 3))
        rays = (count, origins, directions, threads, t, piece, normals)
        call("city_trace", *self.arguments(), *rays)
        return t, piece, normals


class _Block:
    """Pieces of one block, with the block's own random stream."""

    def __init__(self, seed, i, j):
        key = np.array([seed, ((i & 0xFFFFFFFF) << 32) | (j & 0xFFFFFFFF)], np.uint64)
        self.random = np.random.Generator(np.random.Philox(key=key))
        self.bounds, self.kinds = [], []

    def uniform(self, low=0.0, high=1.0):
        return low + (high - low) * self.random.random()

    def choose(self, count):
        return int(self.random.random() * count)

    def name(self):
        """A seed for the look of a piece; 31 bits, so that it fits an int32."""
        return int(self.random.random() * 2**31)

    def add(self, shape, material, low, high, style=0, seed=None):
        self.bounds.append((*low, *high))
        self.kinds.append((shape, material, style, self.name() if seed is None else seed))

    def arrays(self):
        """Bounds (n, 6) float64 and kinds (n, 4) int32 of the block's pieces."""
        return np.array(self.bounds, np.float64), np.array(self.kinds, np.int32)

    def tree(self, x, y, scale=1.0):
        height, radius = self.uniform(4.2, 6.5) * scale, self.uniform(1.2, 1.8) * scale
        seed = self.name()
        self.add(BOX, BARK, (x - 0.15, y - 0.15, 0.1), (x + 0.15, y + 0.15, height - radius))
        for k in range(3):
            r = radius * (1.0 - 0.22 * k)
            cx = x + 0.5 * radius * self.uniform(-1, 1) * (k > 0)
            cy = y + 0.5 * radius * self.uniform(-1, 1) * (k > 0)
            cz = height - radius + 0.55 * radius * k
            low = (cx - r, cy - r, cz - 0.9 * r)
            self.add(ELLIPSOID, FOLIAGE, low, (cx + r, cy + r, cz + 0.9 * r), seed=seed)

    def parapet(self, x0, y0, x1, y1, z, style, seed):
        """A low wall along the edge of a flat roof."""
        rim, high = 0.35, 0.7
        for low, up in (
            ((x0, y0), (x1, y0 + rim)), ((x0, y1 - rim), (x1, y1)),
            ((x0, y0 + rim), (x0 + rim, y1 - rim)), ((x1 - rim, y0 + rim), (x1, y1 - rim)),
        ):  # fmt: skip
            self.add(BOX, PARAPET, (*low, z), (*up, z + high), style, seed)

    def roof(self, x0, y0, x1, y1, z, style, seed):
        """Parapet, and machines on the roof."""
        self.parapet(x0, y0, x1, y1, z, style, seed)
        if min(x1 - x0, y1 - y0) < 5.0:
            return
        for k in range(1 + self.choose(4)):
            house = k == 0 and self.uniform() < 0.6
            a, b = (self.uniform(2.2, 3.2), self.uniform(2.6, 3.6)) if house else (
                self.uniform(0.9, 2.0), self.uniform(0.9, 2.0))  # fmt: skip
            x = self.uniform(x0 + 0.8, x1 - 0.8 - a)
            y = self.uniform(y0 + 0.8, y1 - 0.8 - b)
            up = self.uniform(2.2, 2.8) if house else self.uniform(0.7, 1.5)
            material = PARAPET if house else METAL
            self.add(BOX, material, (x, y, z), (x + a, y + b, z + up), style)

    def building(self, x0, y0, x1, y1, height):
        """A box with its roof; tall ones may step back on the way up."""
        style, seed = self.choose(5), self.name()
        back = self.uniform(1.5, 3.0)
        steps = height > 13.0 and min(x1 - x0, y1 - y0) > 10.0 and self.uniform() < 0.6
        first = height * self.uniform(0.45, 0.75) if steps else height
        self.add(BOX, FACADE, (x0, y0, 0.0), (x1, y1, first), style, seed)
        if not steps:
            self.roof(x0, y0, x1, y1, first, style, seed)
            return
        self.parapet(x0, y0, x1, y1, first, style, seed)
        x0, y0, x1, y1 = x0 + back, y0 + back, x1 - back, y1 - back
        self.add(BOX, FACADE, (x0, y0, first), (x1, y1, height), style, seed)
        self.roof(x0, y0, x1, y1, height, style, seed)


def _height(block):
    """Metres: most buildings have three to six storeys, a few are towers."""
    normal = sum(block.uniform() for _ in range(6)) - 3.0  # variance 1/2
    return float(np.clip(14.5 * np.exp(0.6 * normal), 6.5, 42.0))


def _built_block(block, cx, cy):
    half = PITCH / 2 - LANES
    block.add(BOX, SLAB, (cx - half, cy - half, 0.0), (cx + half, cy + half, 0.14))
    kind = block.choose(4)
    cut = [0.0, block.uniform(-4, 4)]
    xs = [-PARCEL, cut[1], PARCEL] if kind in (1, 3) else [-PARCEL, PARCEL]
    ys = [-PARCEL, block.uniform(-4, 4), PARCEL] if kind in (2, 3) else [-PARCEL, PARCEL]
    alley = 2.0 if block.uniform() < 0.4 else 0.0
    for a in range(len(xs) - 1):
        for b in range(len(ys) - 1):
            x0, x1 = cx + xs[a] + alley * (a > 0), cx + xs[a + 1] - alley * (a + 1 < len(xs) - 1)
            y0, y1 = cy + ys[b] + alley * (b > 0), cy + ys[b + 1] - alley * (b + 1 < len(ys) - 1)
            block.building(x0, y0, x1, y1, _height(block))
    for side in range(4):  # street trees
        for at in (-9.0, 0.0, 9.0):
            if block.uniform() < 0.3:
                _street_tree(block, cx, cy, side, at + block.uniform(-1.5, 1.5))


def _street_tree(block, cx, cy, side, at):
    away = (PARCEL + WALK - 0.9) * (1 if side % 2 else -1)
    x, y = (away, at) if side < 2 else (at, away)
    block.tree(cx + x, cy + y, 0.75)


def _park_block(block, cx, cy):
    half = PITCH / 2 - LANES
    block.add(BOX, PARK, (cx - half, cy - half, 0.0), (cx + half, cy + half, 0.14))
    for k in range(14):
        a, b = block.uniform(-12, 12), block.uniform(-12, 12)
        clear = abs(a - b) > 3.6 and abs(a + b) > 3.6 and a * a + b * b > 36.0
        if clear:
            block.tree(cx + a, cy + b, block.uniform(0.9, 1.3))
    low = (cx - 1.5, cy - 1.5, 0.14)
    block.add(BOX, PARAPET, low, (cx + 1.5, cy + 1.5, 1.0), 4)  # a plinth and its monument
    block.add(BOX, PARAPET, (cx - 0.6, cy - 0.6, 1.0), (cx + 0.6, cy + 0.6, 4.2), 3)


def _cars(block, cx, cy):
    """Parked cars along the four kerbs of a block, clear of the crossings."""
    for side in range(4):
        for at in (-7.5, -2.5, 2.5, 7.5):
            if block.uniform() > 0.35:
                continue
            away = (PITCH / 2 - 3.4) * (1 if side % 2 else -1)
            at, size, seed = at + block.uniform(-0.4, 0.4), block.uniform(1.9, 2.2), block.name()
            for material, part, wide, low, up in (
                (CAR, size, 0.88, 0.12, 0.88), (CABIN, 0.55 * size, 0.74, 0.88, 1.46),
            ):  # fmt: skip
                x, y, a, b = (away, at, wide, part) if side < 2 else (at, away, part, wide)
                x, y = cx + x, cy + y
                block.add(BOX, material, (x - a, y - b, low), (x + a, y + b, up), seed=seed)


def _ring(block, centre, inner, along_x, sign):
    """Row houses of one ring cell: 40 m along the border street, RING deep, gabled."""
    at = -PITCH / 2
    for part in (PITCH * 0.26, PITCH * 0.22, PITCH * 0.28, PITCH * 0.24):
        height, ridge = block.uniform(6.0, 9.2), block.uniform(2.2, 3.2)
        back = WALK + block.uniform(0.0, 0.8)
        span = (centre + at, centre + at + part)
        deep = sorted((sign * (inner + back), sign * (inner + WALK + RING)))
        x, y = (span, deep) if along_x else (deep, span)
        seed = block.name()
        block.add(BOX, FACADE, (x[0], y[0], 0), (x[1], y[1], height), ROW_HOUSE, seed)
        low, high = (x[0], y[0], height), (x[1], y[1], height + ridge)
        block.add(GABLE_X if along_x else GABLE_Y, TILES, low, high, 0, seed)
        at += part
    span = (centre - PITCH / 2, centre + PITCH / 2)
    deep = sorted((sign * inner, sign * (inner + WALK + RING)))
    x, y = (span, deep) if along_x else (deep, span)
    block.add(BOX, SLAB, (x[0], y[0], 0.0), (x[1], y[1], 0.14))


def _corner(block, sx, sy, inner):
    """A ring corner: trees on paving, which close the view along both border streets."""
    x, y = sorted((sx * inner, sx * (inner + WALK + RING))), sorted(
        (sy * inner, sy * (inner + WALK + RING)))  # fmt: skip
    block.add(BOX, SLAB, (x[0], y[0], 0.0), (x[1], y[1], 0.14))
    for k in range(9):
        a = inner + 1.8 + 3.8 * (k % 3) + block.uniform(-0.5, 0.5)
        b = inner + 1.8 + 3.8 * (k // 3) + block.uniform(-0.5, 0.5)
        block.tree(sx * a, sy * b, 1.15)


def _grid(bounds, kinds, pitch_line, half):
    """Cells with the pieces that touch them: frame, start, item, near_start, near_item, top."""
    low, high = bounds[:, :2].min(0) - 1.0, bounds[:, 3:5].max(0) + 1.0
    size = np.maximum(1, np.ceil((high - low) / CELL)).astype(np.int64)
    top = float(bounds[:, 5].max())
    frame = np.array([*low, CELL, top, *size, PITCH, pitch_line, half, REACH], np.float64)
    start, item = _cell_lists(bounds, np.arange(len(bounds)), low, size, 0.0)
    boxes = np.flatnonzero(kinds[:, 0] == BOX)
    near_start, near_item = _cell_lists(bounds, boxes, low, size, REACH)
    cell_top = np.full(size[0] * size[1], -1.0)
    np.maximum.at(cell_top, np.repeat(np.arange(len(cell_top)), np.diff(start)), bounds[item, 5])
    return frame, start, item, near_start, near_item, cell_top


def _cell_lists(bounds, rows, low, size, margin):
    first = np.floor((bounds[rows, :2] - margin - low) / CELL).astype(np.int64)
    last = np.floor((bounds[rows, 3:5] + margin - low) / CELL).astype(np.int64)
    first, last = np.clip(first, 0, size - 1), np.clip(last, 0, size - 1)
    wide = last - first + 1
    counts = wide[:, 0] * wide[:, 1]
    owner = np.repeat(np.arange(len(rows)), counts)
    local = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    column = first[owner, 0] + local % wide[owner, 0]
    row = first[owner, 1] + local // wide[owner, 0]
    cell = row * size[0] + column
    order = np.argsort(cell, kind="stable")
    start = np.zeros(size[0] * size[1] + 1, np.int64)
    np.cumsum(np.bincount(cell, minlength=size[0] * size[1]), out=start[1:])
    return start, np.ascontiguousarray(rows[owner[order]], np.int32)


def make_scene(extent, seed):
    """Lay out a city of about extent x extent metres: as many whole blocks as fit, at least one.

    Returns a Scene. The work is linear in the blocks.
    """
    count = max(1, int(extent // PITCH))
    half = count * PITCH / 2
    shift = 0.5 if count % 2 == 0 else 0.0  # an even city has a street through its middle
    blocks = []
    for i in range(-(count // 2), count - count // 2):
        for j in range(-(count // 2), count - count // 2):
            block = _Block(seed, i, j)
            cx, cy = (i + shift) * PITCH, (j + shift) * PITCH
            (_park_block if block.uniform() < 0.12 else _built_block)(block, cx, cy)
            _cars(block, cx, cy)
            blocks.append(block.arrays())
    far = 1 << 30  # ring cells take keys that no block has
    for side in range(4):
        for k in range(-(count // 2), count - count // 2):
            block = _Block(seed, far + side, k)
            sign = 1 if side % 2 else -1
            _ring(block, (k + shift) * PITCH, half + LANES, side < 2, sign)
            blocks.append(block.arrays())
        block = _Block(seed, far + 4 + side, 0)
        _corner(block, 1 if side % 2 else -1, 1 if side // 2 else -1, half + LANES)
        blocks.append(block.arrays())
    bounds = np.concatenate([bounds for bounds, _ in blocks])
    kinds = np.concatenate([kinds for _, kinds in blocks])
    grid = _grid(bounds, kinds, half, half)
    return Scene(bounds, kinds, half, float(bounds[:, 5].max()), int(seed), grid)
