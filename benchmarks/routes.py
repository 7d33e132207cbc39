"""Times what a rank computes on the host for a chunk of views beside kernels and messages.

That is: bitmaps, demand, tables of pieces, slots, routes of the halo and masks. Each rank has one
cell, which reaches a part of the tiles of every view, those on one side of a line, with some holes.
In some tiles the first cells hide those behind them, which are masked there; of the tiles a few
have changed since. Kernels and messages are replaced by what they would give. Prints milliseconds
of CPU time of the middle rank for a view, the least of some repeats.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.base import Partial, TileLists  # noqa: E402
from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.compose import make_compositor, streams  # noqa: E402
from splaxel_mpi.compose.base import CellPart, ViewWork  # noqa: E402
from splaxel_mpi.mpi.pipeline import alone  # noqa: E402
from splaxel_mpi.partition.layout import Layout  # noqa: E402
from splaxel_mpi.partition.tree import Tree  # noqa: E402
from splaxel_mpi.scene.camera import Camera  # noqa: E402
from splaxel_mpi.visibility.saturation import Saturation  # noqa: E402

WIDTH, HEIGHT = 1920, 1080
HOLES, OPAQUE, CHANGED = 0.05, 0.3, 0.02  # shares of the tiles
THRESHOLD, STEPS = 1e-4, 300


class Quiet(HostBackend):
    """Kernels that do nothing. depths: per view (tile_count,), cells behind so many are dark."""

    def __init__(self, depths):
        super().__init__(np.float32)
        self.depths, self.known = depths, {}

    def compose(self, pool, slots, background):
        return np.empty((len(slots), 3, 256), np.float32), None

    def compose_backward(self, pool, slots, background, gradient, wanted, count):
        return np.empty((count, 4, 256), np.float32)

    def residuals(self, pool, slots, tiles, camera):
        """The same whenever there are as many; views follow one another where tiles descend."""
        if slots.shape not in self.known:
            view = np.cumsum(np.diff(tiles, prepend=-1) < 0)
            dark = np.arange(slots.shape[1] + 1) >= self.depths[view, tiles][:, None]
            self.known[slots.shape] = np.where(dark, 1e-6, 0.5).astype(np.float32)
        return self.known[slots.shape]


class Sent(Exception):
    """What a rank would send."""


class Arrived:
    """An exchange that is done."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        return self.value


class Recorded:
    """Collectives of the middle rank, to which other ranks send what was recorded once."""

    def __init__(self, rank, ranks):
        self.rank, self.ranks, self.others = rank, ranks, {}

    def start_allgather(self, kind, data):
        if kind == "masks":  # the length of what follows
            lengths = list(map(len, self.others.get(kind, [])))
            return Arrived(np.array([*lengths[: self.rank], data[0], *lengths[self.rank :]]))
        return Arrived(np.stack(self._all(kind, data)))

    def start_allgatherv(self, kind, data, counts):
        return Arrived(np.concatenate(self._all(kind, data)))

    def _all(self, kind, data):
        if self.rank != self.ranks // 2:
            raise Sent(data)
        others = self.others[kind]
        return [*others[: self.rank], data, *others[self.rank :]]

    def start_alltoallv(self, kind, data, counts, received):
        return Arrived((np.zeros(int(received.sum()), data.dtype), received))


def collected(self):
    """In place of Streams.collect: a pool that nobody looks into."""
    yield
    return np.broadcast_to(np.float32(0), (1, 4, 256))


def side_of_line(camera, random, reach):
    """(tile_count,) bool: such a share of the tiles, on one side of a line, with holes."""
    tiles_x, tiles_y = camera.tiles
    y, x = np.indices((tiles_y, tiles_x))
    angle = random.uniform(0, 2 * np.pi)
    across = np.cos(angle) * x + np.sin(angle) * y
    side = across > np.quantile(across, 1 - reach)
    return (side & (random.random(side.shape) >= HOLES)).ravel()


def depths_of(cells, cameras):
    """Per view (tile_count,), how many cells hide those behind them, and the same a bit later."""
    random = np.random.default_rng(99)
    shape = len(cameras), cameras[0].tile_count
    opaque = np.stack([side_of_line(camera, random, 0.5) for camera in cameras])
    opaque &= random.random(shape) < 2 * OPAQUE
    depths = np.where(opaque, random.integers(1, cells + 1, shape), cells + 1)
    changed = np.where(random.random(shape) < CHANGED, random.integers(1, cells + 2, shape), depths)
    return depths, changed


def tree_of(cells):
    """A chain of splits along x: seen from the origin the first cell is nearest."""
    nodes = np.arange(cells - 1, dtype=np.int32)
    right = np.where(nodes + 1 < cells - 1, nodes + 1, -cells).astype(np.int32)
    return Tree(np.zeros_like(nodes), nodes + 0.5, -1 - nodes, right)


class Rank:
    """One rank's cell in the views of a chunk."""

    def __init__(self, rank, ranks, cameras, strategy, reach):
        self.random, self.cameras = np.random.default_rng(rank), cameras
        depths, changed = depths_of(ranks, cameras)
        self.layout = Layout(tree_of(ranks), rank, ranks, np.array([0, 1]))
        self.exchange, self.backend = Recorded(rank, ranks), Quiet(changed)
        settings = SimpleNamespace(strategy=strategy, precision="float32")
        self.compositor = make_compositor(
            settings, self.backend, self.exchange, self.layout, [0.0, 0.0, 0.0]
        )
        self.saturation = Saturation(THRESHOLD, "residual")
        self.tiles = []
        for view, camera in enumerate(cameras):
            reached = side_of_line(camera, self.random, reach)
            tiles = np.flatnonzero(reached & (rank >= depths[view]))
            levels = np.full(len(tiles), 200, np.uint8)
            self.saturation.masks.add(view, rank, tiles, levels, camera.tile_count, True)
            held = np.flatnonzero(reached & (rank < depths[view]))
            self.tiles.append(held.astype(np.int32))
        self.kept = dict(self.saturation.masks.kept)

    def works(self):
        """The views with partial pixels."""
        out = []
        for camera, tiles in zip(self.cameras, self.tiles):
            lists = TileLists(tiles, None, None)
            pixels = np.broadcast_to(np.float32(0.5), (len(tiles), 4, 256))
            part = CellPart(self.layout.rank, 0, 1, None, lists, Partial(tiles, pixels), tiles)
            out.append(ViewWork(camera, None, [part]))
        return out

    def record(self, kind, function):
        """What this rank sends in a collective, if it takes part in one."""
        try:
            alone(function())
        except Sent as sent:
            return kind, sent.args[0]
        return kind, np.zeros(0, np.uint8)


def chunk(rank):
    """Seconds of the stages of one chunk."""
    works, indices, marks = rank.works(), range(len(rank.cameras)), [time.thread_time()]
    mark = lambda: marks.append(time.thread_time())  # noqa: E731
    rank.saturation.masks.kept = dict(rank.kept)
    alone(rank.saturation.share(works, indices, rank.exchange, rank.layout))
    for work in works:
        work.masks.live(rank.layout.rank)
    mark()
    composed = alone(rank.compositor.compose(works, [rank.compositor.training] * len(works)))
    mark()
    alone(rank.compositor.backward(works, composed, None))
    alone(rank.compositor.judge(works, composed))
    rank.saturation.judge(works, composed, rank.layout)
    mark()
    rank.saturation.commit()
    mark()
    rank.saturation.pending = rank.saturation.pending[:0]
    return np.diff(marks)


def main():
    parser = argparse.ArgumentParser(description="Time the host's part of exchanging pixels.")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--views", type=int, default=8, help="of a chunk")
    parser.add_argument("--reach", type=float, default=0.5, help="share of the tiles of a cell")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    streams.Streams.collect = collected
    streams.move = lambda *arguments, **more: ()
    camera = Camera(WIDTH, HEIGHT, 1e3, 1e3, 960.0, 540.0, np.eye(3), np.zeros(3))
    print("| strategy | ranks | masks told | tables | backward, judged | kept | all |")
    print("|" + " --- |" * 7)
    for strategy in ("overlap", "owner"):
        for ranks in map(int, options.ranks.split(",")):
            cameras = [camera] * options.views
            others = [Rank(r, ranks, cameras, strategy, options.reach) for r in range(ranks)]
            first = others.pop(ranks // 2)
            for other in others:
                works = other.works()
                rules = [other.compositor.training] * len(works)
                indices = range(len(works))
                for kind, data in (
                    other.record("masks", lambda: other.saturation.share(
                        works, indices, other.exchange, other.layout)),
                    other.record("bitmaps", lambda: other.compositor.compose(works, rules)),
                ):
                    first.exchange.others.setdefault(kind, []).append(data)
            times = np.array([chunk(first) for _ in range(STEPS)])
            row = [*times.min(0), times.sum(1).min()]
            figures = " | ".join(f"{1e3 * value / options.views:.3f}" for value in row)
            print(f"| {strategy} | {ranks} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
