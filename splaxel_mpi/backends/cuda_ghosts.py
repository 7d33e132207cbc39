"""Splats of a chunk of views and their ghosts on the GPU (contract in base.py).

A few kernels take all views of a chunk: nothing is sized by what the host would have to wait for,
but once, where the ghosts are counted.
"""

from dataclasses import dataclass

import numpy as np

from .base import SPLAT, Routed, Splats
from .checks import check_array, check_degree
from .cuda_copies import Reading
from .cuda_launch import run, zeros
from .cuda_module import kernel
from .cuda_project import LEAST_ROOM, PROJECT_THREADS, REACH_THREADS, launch
from .cuda_sort import sort_pairs

SOURCE = "ghosts.cu"
THREADS = 256
RECORD = SPLAT + 2  # floats of a ghost on its way
PARTS = RECORD // 2  # threads that move it
CHECK_BLOCKS = 256  # of check_finite, which loops
GHOSTS = 1024  # rows behind the splats of a small scene


@dataclass
class Projected:
    """Projections under way: ``room`` rows a view, of which as many are in use as ``visible``
    says once the device has got there."""

    arguments: tuple  # of project_views
    room: int
    splats: Splats  # (views x room,)
    visible: object  # (views,) uint64 on the device

    def view(self, v, count=None):
        """Splats of view v, count of them (None: all the room)."""
        start = v * self.room
        return self.splats.slice(start, start + (self.room if count is None else count))


@dataclass
class Places:
    """Where the splats of the parts lie, and the routes of ghosts to them."""

    projected: Projected
    visible: list  # splats of each view
    keys: object = None  # (ghosts,) uint32 on the device, see ghosts.cu
    starts: np.ndarray = None  # (views, local cells) int64, first row of each part
    sizes: np.ndarray = None  # (views, local cells) int64, own splats and ghosts
    arrivals: object = None  # runs of ghosts that arrive, on the device
    arrived: int = 0
    copies: object = None  # runs of own splats, where parts lie elsewhere than projections
    copied: int = 0
    gradients: object = None  # (rows, width) of all parts


class Routing:
    """What start_route returns: counts on their way to the host."""

    def __init__(self, backend, projected, layout, masked, wanted):
        self.backend, self.projected, self.layout = backend, projected, layout
        self.live = backend._live_bits(masked) if wanted else None
        self.wanted, self.views = wanted, len(masked)
        self._start()

    def _start(self):
        self.room = max(LEAST_ROOM, self.backend._most_reached * 5 // 4)
        report, self.keys, self.index = self.backend._route(
            self.projected, self.layout, self.live, self.wanted, self.room
        )
        self.reading = Reading([report])

    def take(self):
        """Routed."""
        backend, layout = self.backend, self.layout
        visible, reached, ends, starts = self._read()
        while max(visible) > self.projected.room or max(reached) > self.room:
            if max(visible) > self.projected.room:
                self.projected = backend._project_views(max(visible), *self.projected.arguments)
            self._start()
            visible, reached, ends, starts = self._read()
        splats = [self.projected.view(v, count) for v, count in enumerate(visible)]
        routed = Routed(splats, ends, state=Places(self.projected, visible))
        if self.wanted:
            ghosts = int(starts[-1])
            routed.counts = np.diff(starts).reshape(layout.cells, self.views)
            routed.state.keys, routed.index = self.keys[:ghosts], self.index[:ghosts]
        return routed

    def _read(self):
        """(splats and ghosts before masks of each view, ends of its local cells, where keys
        begin)."""
        views, columns = self.views, len(self.layout.local) + 2
        words, = self.reading.take()
        words = words.view(np.int64)
        ends = words[: views * columns].reshape(views, columns)
        reached, starts = np.split(words[ends.size :], [views])
        visible, reached = ends[:, -1].tolist(), reached.tolist()
        backend = self.backend
        backend._most_visible = max(*visible, backend._most_visible * 9 // 10)
        backend._most_reached = max(*reached, backend._most_reached * 9 // 10)
        return visible, reached, ends[:, :-1].tolist(), starts


class CudaGhosts:
    """Mixin of the CUDA backend, beside CudaProject: project_views to add_gradients."""

    def project_views(self, gaussians, cameras, degree, near):
        """See Backend.project_views. Raises ValueError as project does."""
        check_degree(degree)
        if not near >= 0:
            raise ValueError(f"near plane must be 0 or more, got {near}")
        count = len(gaussians)
        # where all are visible, ghosts still find a place behind them
        rows = min(count + count // 8 + GHOSTS, max(LEAST_ROOM, self._most_visible * 5 // 4))
        return self._project_views(rows, gaussians, cameras, degree, near)

    def _project_views(self, room, gaussians, cameras, degree, near):
        parameters = self._parameters(gaussians)
        check_array("ids", gaussians.ids, (len(gaussians),), np.int64)
        visible = zeros(len(cameras), np.uint64)
        splats = self._empty_splats(len(cameras) * room)
        out = Projected((gaussians, cameras, degree, near), room, splats, visible)
        words = self._words(len(gaussians), PROJECT_THREADS, len(cameras))
        for v, camera in enumerate(cameras):
            self._project(parameters, gaussians.ids, self.camera_view(camera, near), degree,
                          out.view(v), visible[v : v + 1], words[v])
        return out

    def start_route(self, projected, layout, masked, wanted=True):
        """See Backend.start_route. Its take() waits once more where a view has far more splats
        or ghosts than recent ones."""
        return Routing(self, projected, layout, masked, wanted)

    def _route(self, projected, layout, live, wanted, room):
        """(report, keys, index) on the device. The report has of each view the ends of its local
        cells and its splats, then the ghosts of each view before masks, then where each key
        begins among the sorted ones."""
        cameras = projected.arguments[1]
        views, local, kinds = len(cameras), len(layout.local), layout.cells * len(cameras)
        report = zeros(views * (local + 3) + (kinds + 1 if wanted else 0), np.uint64)
        ends, reached = report[: views * (local + 2)], report[views * (local + 2) :]
        own = self.xp.empty((views if wanted else 0, projected.room), np.int32)
        splats, blocks = projected.splats, max(1, -(-projected.room // THREADS))
        run(kernel(SOURCE, "own_cells"), (blocks, views), THREADS, (
            splats.rows, projected.room, projected.visible, self._offsets(layout),
            np.int32(local), np.int32(layout.local.start), own if wanted else None, ends))
        if not wanted:
            return report, None, None
        keys, index, cell = (
            self.xp.empty((views, room), kind) for kind in (np.uint32, np.int32, np.int32)
        )
        words = self._words(projected.room, REACH_THREADS, views)
        tree = self._tree_arrays(layout.tree)
        for v, camera in enumerate(cameras):
            data, found = projected.view(v).data, reached[v : v + 1]
            self._reach(data, own[v], camera, tree, (index[v], cell[v]),
                        projected.visible[v : v + 1], found, words[v])
            bits = 0 if live[v] is None else live[v].shape[1]
            launch(kernel(SOURCE, "ghost_keys"), -(-room // THREADS), THREADS, data, index[v],
                   cell[v], room, found, live[v], np.int32(bits), *map(np.int32, camera.tiles),
                   np.int32(layout.cells), np.int32(v), np.int32(views), keys[v])
        keys, index = sort_pairs(keys.ravel(), index.ravel(), bits=kinds.bit_length())
        launch(kernel(SOURCE, "ghost_starts"), -(-(kinds + 1) // THREADS), THREADS, keys,
               len(keys), np.int32(kinds), reached[views:])
        return report, keys, index

    _row_offsets = None, None

    def _offsets(self, layout):
        """layout.offsets on the device; the last ones are kept."""
        if self._row_offsets[0] is not layout:
            self._row_offsets = layout, self.xp.asarray(layout.offsets, np.int64)
        return self._row_offsets[1]

    def _live_bits(self, masked):
        """Per view (cells, words) uint32 on the device, a bit for each tile that is live; None
        where all are."""
        bits = []
        for dark in masked:
            if dark is None or not dark.any():
                bits.append(None)
                continue
            packed = np.packbits(~dark, axis=1, bitorder="little")
            packed = np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))
            bits.append(packed.view(np.uint32))
        found = iter(self.to_device_together([part for part in bits if part is not None]))
        return [None if part is None else next(found) for part in bits]

    def pack_ghosts(self, routed):
        """See Backend.pack_ghosts."""
        places, count = routed.state, len(routed.index)
        records = self.xp.empty((count, RECORD), self.real)
        splats = places.projected.splats
        launch(kernel(SOURCE, "ghost_records"), -(-count * PARTS // THREADS), THREADS, splats.data,
               splats.ids, places.projected.room, places.keys, routed.index, count,
               np.int32(len(routed.splats)), records)
        return records

    def place_ghosts(self, routed, records, arrived):
        """See Backend.place_ghosts. One local cell keeps its splats where they are, and its
        ghosts come behind them, unless a view lacks the room."""
        places = routed.state
        room, views = places.projected.room, len(routed.splats)
        ends = np.array(routed.ends, np.int64).reshape(views, -1)
        own, cells = np.diff(ends), ends.shape[1] - 1
        first = room * np.arange(views)[:, None] + ends[:, :-1]  # rows of projections
        ghosts = np.zeros_like(own) if records is None else arrived.sum(0).T
        places.sizes = own + ghosts
        splats = places.projected.splats
        if records is None or (cells == 1 and places.sizes.max(initial=0) <= room):
            places.starts = first
        else:
            total = int(places.sizes.sum())
            ends_of_parts = np.cumsum(places.sizes).reshape(views, cells)
            places.starts = ends_of_parts - places.sizes
            before = (np.cumsum(own) - own.ravel()).reshape(own.shape)
            places.copies = np.stack([places.starts, first, before], axis=2).reshape(-1, 3)
            places.copied, splats = int(own.sum()), self._empty_splats(total)
        if records is not None:
            places.arrivals = _arrivals(places.starts + own, arrived)
            places.arrived = len(records)
            self._place(places, splats, records)
        return [
            [_part(splats, a, n) for a, n in zip(*part)]
            for part in zip(places.starts.tolist(), places.sizes.tolist())
        ]

    def _place(self, places, splats, records):
        """Bring own splats and ghosts to the rows of their parts."""
        moves = [places.arrivals] + ([] if places.copies is None else [places.copies])
        places.arrivals, *copies = self.to_device_together(moves)
        if copies:
            source, places.copies = places.projected.splats, copies[0]
            launch(kernel(SOURCE, "copy_splats"), -(-places.copied * PARTS // THREADS), THREADS,
                   source.rows, source.data, source.ids, places.copies,
                   np.int32(len(places.copies)), places.copied, splats.rows, splats.data,
                   splats.ids)
        launch(kernel(SOURCE, "place_ghosts"), -(-len(records) * PARTS // THREADS), THREADS,
               records, places.arrivals, np.int32(len(places.arrivals)), len(records),
               splats.rows, splats.data, splats.ids)

    def gradient_rows(self, routed, width):
        """See Backend.gradient_rows."""
        places = routed.state
        rows = int((places.starts + places.sizes).max(initial=0))
        places.gradients = zeros((rows, width), self.real)
        return [
            [places.gradients[a : a + n] for a, n in zip(*part)]
            for part in zip(places.starts.tolist(), places.sizes.tolist())
        ]

    def pack_gradients(self, routed, gradients, width):
        """See Backend.pack_gradients; gradients are those of gradient_rows."""
        places = routed.state
        back = self.xp.empty((places.arrived, width), self.real)
        self._take_rows(places.gradients, places.arrivals, places.arrived, back)
        return back

    def add_gradients(self, routed, gradients, returned, width):
        """See Backend.add_gradients; gradients are those of gradient_rows."""
        places, room = routed.state, routed.state.projected.room
        sums = places.gradients
        if places.copies is not None:
            sums = self.xp.empty((len(routed.splats) * room, width), self.real)
            self._take_rows(places.gradients, places.copies, places.copied, sums)
        if returned is not None:
            ends = np.cumsum(routed.counts.sum(1)).tolist()
            for first, last in zip([0, *ends[:-1]], ends):
                launch(kernel(SOURCE, "add_ghosts"), -(-(last - first) * width // THREADS),
                       THREADS, returned, places.keys, routed.index, first, last,
                       np.int32(len(routed.splats)), room, np.int32(width), sums)
        return [sums[v * room : v * room + count] for v, count in enumerate(places.visible)]

    def _take_rows(self, gradients, runs, count, out):
        width = out.shape[1]
        if count:
            launch(kernel(SOURCE, "take_rows"), -(-count * width // THREADS), THREADS, gradients,
                   runs, np.int32(len(runs)), count, np.int32(width), out)

    def finite_sum(self, array):
        """See Backend.finite_sum."""
        out = zeros(1, self.real)
        blocks = min(CHECK_BLOCKS, -(-array.size // THREADS))
        launch(kernel(SOURCE, "check_finite"), blocks, THREADS, array, array.size, out)
        return out[0]


def _part(splats, start, count):
    """Rows of splats that know where they are."""
    part = splats.slice(start, start + count)
    part.place = splats, start
    return part


def _arrivals(behind, arrived):
    """Runs of what arrives, (k, 3) int64: first row in its part, first record, records before.

    behind: (views, local cells) rows behind the own splats of each part; arrived: (ranks, local
    cells, views).
    """
    of_ranks_before = np.cumsum(arrived, axis=0) - arrived
    first = (np.cumsum(arrived) - arrived.ravel()).reshape(arrived.shape)
    return np.stack([behind.T + of_ranks_before, first, first], axis=3).reshape(-1, 3)
