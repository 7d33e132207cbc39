"""CUDA kernels of projection and of the reach of splats (contract in base.py).

Counts stay on the device: outputs are allocated for as many rows as earlier views had, with room
to spare, and a call that finds more is repeated with that room. So each call synchronises once,
to learn how many rows it has.
"""

import functools
from dataclasses import dataclass

import numpy as np

from ..partition.tree import Tree
from ..scene.gaussians import GROUPS
from .base import SPLAT, Splats
from .cuda_launch import fill, run, zeros
from .cuda_module import kernel
from .host_library import call
from .checks import check_array, check_degree, check_gradient

TEST_THREADS, TEST_ROWS = 256, 2048  # of keep_rows in compact.cuh
PROJECT_THREADS = 128
REACH_THREADS = 64
# Blocks that take tiles until none is left: as many as a multiprocessor holds at once, by their
# registers and shared memory.
PROJECT_BLOCKS, REACH_BLOCKS = 9, 6
MOST_VIEWS = 4096  # cameras whose views are kept, 112 bytes for each near plane
WORDS = 4  # tickets and totals before the tiles' words: two of each
LEAST_ROOM = 1 << 16  # rows for which no allocation is worth repeating a call
TREE_DEPTH = 31  # of math/reach.cuh
VIEW_BYTES, REACH_VIEW_BYTES = 112, 160  # View<float>, ReachView


def check_aligned(name, array):
    """Raise ValueError unless a CuPy array starts at 16 bytes, as vector accesses need."""
    if array.data.ptr % 16:
        raise ValueError(f"{name} must start at a multiple of 16 bytes")


def launch(function, blocks, threads, *arguments):
    """Start a kernel on the current stream; nothing for no blocks."""
    if blocks:
        run(function, (int(blocks),), threads, arguments)


@functools.lru_cache(maxsize=None)
def _multiprocessors(device):
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def _persistent(blocks):
    import cupy

    return blocks * _multiprocessors(cupy.cuda.runtime.getDevice())


def by_value(name, size, *arguments):
    """A structure that kernels take by value, from host function ``name``."""
    value = np.zeros(1, np.dtype((np.void, size)))
    have = call(name, *arguments, size, value.view(np.uint8))
    if have != size:
        raise RuntimeError(f"{name} gives {have} bytes, not {size}: build the package again")
    return value


def camera_view(camera, near):
    """View<float> of math/projection.cuh, to be passed by value."""
    return by_value("spx_view_f32", VIEW_BYTES, camera.packed(), camera.width, camera.height,
                    float(near))


def reach_view(camera):
    """ReachView of math/reach.cuh, to be passed by value."""
    return by_value("spx_reach_view", REACH_VIEW_BYTES, camera.packed(), camera.width,
                    camera.height)


def _read(total):
    """A count of the device, once its kernels are done."""
    return int(total.get()[0])


@dataclass
class Words:
    """Zeroed words of two compactions, each where its kernel takes it: (1,) uint64 of tickets and
    totals, those of the tiles."""

    tickets: tuple
    totals: tuple
    tests: object  # (tiles of TEST_ROWS,)
    tiles: object  # (tiles,)


def _cut_words(words, tests):
    """Words from (WORDS + tests + tiles,) uint64."""
    tickets, totals = (words[0:1], words[1:2]), (words[2:3], words[3:4])
    return Words(tickets, totals, words[WORDS : WORDS + tests], words[WORDS + tests :])


def check_tree(tree):
    """Raise ValueError unless every node is reached at most once within TREE_DEPTH levels."""
    nodes, visits = len(tree.axis), 0
    level = np.array([0 if nodes else -1], np.int64)
    for _ in range(TREE_DEPTH + 1):
        inner = level[level >= 0]
        if (inner >= nodes).any() or (level < -1 - nodes).any():
            break
        if not len(inner):
            return
        visits += len(inner)
        if visits > nodes or ((tree.axis[inner] < 0) | (tree.axis[inner] > 2)).any():
            break
        level = np.concatenate([tree.left[inner], tree.right[inner]]).astype(np.int64)
    raise ValueError("tree is deeper than 31 levels or its children are out of range")


class CudaProject:
    """Mixin of the CUDA backend: project, project_backward, reach.

    The class that mixes it in has real (float32) and xp (cupy).
    """

    _most_visible = _most_reached = 0  # rows of recent calls
    _tree = None, None  # the last tree and its arrays on the device

    @functools.cached_property
    def _views(self):
        """By identity of a camera: it, and by name or near plane what kernels take of it."""
        return {}

    @functools.cached_property
    def _arenas(self):
        """Of _words, by tile."""
        return {}

    def _parameters(self, gaussians):
        for name, width in GROUPS.items():
            check_array(name, getattr(gaussians, name), (len(gaussians), width), self.real)
        if len(gaussians) >= 1 << 31:
            raise ValueError("a rank holds fewer than 2^31 Gaussians")
        return [getattr(gaussians, name) for name in GROUPS]

    def _words(self, count, tile, views=1):
        """Zeroed words of two compactions over count rows, by tiles of TEST_ROWS and of ``tile``,
        for each of several views: two tickets, two totals, then the words of the tiles of each.
        Several views get the same memory at every call: a stream works on one after the other."""
        tests, tiles = -(-count // TEST_ROWS), -(-count // tile)
        size = WORDS + tests + tiles
        if views == 1:
            return [_cut_words(zeros(size, np.uint64), tests)]
        key, arena, parts = self._arenas.get(tile, (None,) * 3)
        if key != (size, tests, views):
            arena = self.xp.empty((views, size), np.uint64)
            parts = [_cut_words(arena[v], tests) for v in range(views)]
            self._arenas[tile] = (size, tests, views), arena, parts
        fill(arena, 0)
        return parts

    def camera_view(self, camera, near):
        """View<float> of a camera, the same object for as long as the camera is among the last;
        recordings (cuda_launch) tell arguments apart by their identity."""
        return self._view(camera, near, lambda: camera_view(camera, near))

    def _view(self, camera, key, make):
        """What kernels take of a camera, made once for as long as it is among the last."""
        if id(camera) not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.pop(next(iter(self._views)))  # the oldest
            # the camera is kept too, so that no other has its identity
            self._views[id(camera)] = camera, {}
        views = self._views[id(camera)][1]
        if key not in views:
            views[key] = make()
        return views[key]

    def project(self, gaussians, camera, degree, near, room=None):
        """See Backend.project. Rows with a value that is not finite are not visible.

        The arrays are the front of larger ones, by a quarter or so. Synchronises once, unless
        room (cuda_tally.Room) says how many rows to make; the number of those in use is then
        out.count on the device, and may be larger than the room. Raises ValueError for arrays
        of another type or shape, degree or near out of range.
        """
        check_degree(degree)
        if not near >= 0:
            raise ValueError(f"near plane must be 0 or more, got {near}")
        parameters = self._parameters(gaussians)
        count = len(gaussians)
        check_array("ids", gaussians.ids, (count,), np.int64)
        view = self.camera_view(camera, near)
        if room and count:
            out = self._empty_splats(room.splats)
            out.count = self._project(parameters, gaussians.ids, view, degree, out)
            return out
        rows = min(count, max(LEAST_ROOM, self._most_visible * 5 // 4))
        while True:
            out = self._empty_splats(rows)
            if not count:
                return out
            visible = _read(self._project(parameters, gaussians.ids, view, degree, out))
            if visible <= rows:
                break
            rows = visible
        self._most_visible = max(visible, self._most_visible * 9 // 10)
        return out.slice(0, visible)

    def _empty_splats(self, rows):
        xp = self.xp
        data = xp.empty((rows, SPLAT), self.real)
        return Splats(xp.empty(rows, np.int32), data, xp.empty(rows, np.int64))

    def _project(self, parameters, ids, view, degree, out, total=None, words=None):
        """Fill out as far as it goes. words: of _words, None: new ones. Returns the number of
        visible rows, on the device: total (1,) uint64, zero before, where it is given."""
        count = len(ids)
        words = words or self._words(count, PROJECT_THREADS)[0]
        candidates = self.xp.empty(count, np.int32)
        launch(kernel("project.cu", "cull"), len(words.tests), TEST_THREADS, count, parameters[0],
               parameters[1], view, words.tickets[0], words.tests, words.totals[0], candidates)
        total = words.totals[1] if total is None else total
        launch(kernel("project.cu", f"project_{degree}"),
               min(len(words.tiles), _persistent(PROJECT_BLOCKS)), PROJECT_THREADS, *parameters,
               ids, view, candidates, words.totals[0], words.tickets[1], words.tiles, total,
               len(out), out.rows, out.data, out.ids)
        return total

    def project_backward(self, gaussians, camera, degree, splats, gradient, out, tally=None):
        """See Backend.project_backward. A row must not occur twice in splats.

        Rows outside the Gaussians are passed over. tally: cuda_tally.Tally; nothing is added
        once it is stopped. Raises ValueError for arrays of another type or shape.
        """
        check_degree(degree)
        count, room = len(gaussians), len(splats)
        parameters = self._parameters(gaussians)
        columns = self._check_splats(splats, gradient)
        for name, width in GROUPS.items():
            check_array(f"out.{name}", getattr(out, name), (count, width), self.real)
        self._check_statistics(out, count)
        launch(kernel("project_back.cu", f"project_backward_{degree}"),
               -(-room // PROJECT_THREADS), PROJECT_THREADS, count, *parameters,
               self.camera_view(camera, 0), room, splats.count, splats.rows, splats.data, gradient,
               np.int32(columns), *(getattr(out, name) for name in GROUPS), out.seen, out.norm,
               out.count, tally and tally.stop_word)

    def _check_splats(self, splats, gradient):
        """Returns the columns of the gradient."""
        rows = len(splats)
        check_array("splats.rows", splats.rows, (rows,), np.int32)
        check_array("splats.data", splats.data, (rows, SPLAT), self.real)
        check_aligned("splats.data", splats.data)
        return check_gradient(gradient, rows, self.real)

    def _check_statistics(self, out, count):
        if out.seen is not None:
            check_array("out.seen", out.seen, (count,), np.uint8)
        if out.norm is not None:
            check_array("out.norm", out.norm, (count,), self.real)
        if out.count is not None:
            check_array("out.count", out.count, (count,), np.int32)

    def _tree_arrays(self, tree):
        """axis, split, left, right and boxes of a tree on the device; the last one is kept."""
        if self._tree[0] is not tree:
            check_tree(tree)
            arrays = ((tree.axis, np.int32), (tree.split, np.float64), (tree.left, np.int32),
                      (tree.right, np.int32), (tree.boxes(), np.float64))
            self._tree = tree, [self.xp.asarray(np.ascontiguousarray(a, t)) for a, t in arrays]
        return self._tree[1]

    def reach(self, splats, own, camera, tree: Tree):
        """See Backend.reach. Synchronises once.

        Only pixel centres count: a box between them reaches nothing. Raises ValueError for
        arrays of another type or shape and for a tree deeper than 31 levels.
        """
        count = len(splats)
        check_array("splats.data", splats.data, (count, SPLAT), self.real)
        check_aligned("splats.data", splats.data)
        check_array("own", own, (count,), np.int32)
        arrays = self._tree_arrays(tree)
        room = max(LEAST_ROOM, self._most_reached * 5 // 4)
        while True:
            out = self.xp.empty(room, np.int32), self.xp.empty(room, np.int32)
            found = _read(self._reach(splats.data, own, camera, arrays, out)) if count else 0
            if found <= room:
                break
            room = found
        self._most_reached = max(found, self._most_reached * 9 // 10)
        return out[0][:found], out[1][:found]

    def _reach(self, data, own, camera, arrays, out, visible=None, total=None, words=None):
        """Fill out (index, cell) as far as it goes. visible: (1,) uint64 on the device, rows in
        use, None: all; words: of _words, None: new ones. Returns the number of pairs, on the
        device: total (1,) uint64, zero before, where it is given."""
        count = len(own)
        *nodes, boxes = arrays
        view = self._view(camera, "reach", lambda: reach_view(camera))
        words = words or self._words(count, REACH_THREADS)[0]
        candidates = self.xp.empty(count, np.int32)
        launch(kernel("reach.cu", "reach_candidates"), len(words.tests), TEST_THREADS, count,
               visible, data, own, view, boxes, np.int32(len(boxes)), words.tickets[0],
               words.tests, words.totals[0], candidates)
        total = words.totals[1] if total is None else total
        launch(kernel("reach.cu", "reach_cells"),
               min(len(words.tiles), _persistent(REACH_BLOCKS)), REACH_THREADS, data, own, view,
               *nodes, np.int32(len(nodes[0])), candidates, words.totals[0], words.tickets[1],
               words.tiles, total, len(out[0]), *out)
        return total
