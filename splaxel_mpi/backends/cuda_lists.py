"""Tile lists of the CUDA backend: a sort by depth, one pass over the splats, a sort by tile."""

from dataclasses import dataclass

import numpy as np

from .base import SPLAT, Splats, TileLists
from .cuda_copies import Reading, upload
from .cuda_emit import (
    COUNTERS, CROSSED, DISORDER, HELD, INSTANCES, ROWS, Parts, depth_order, emit_instances,
    mark_starts, pack_view, pixel_intervals, tile_depths,
)
from .cuda_launch import fill
from .cuda_sort import sort_pairs

# Instances a splat may have before the first view says better, and rows of tiles: small splats
# touch 1 to 3 tiles in 1 to 2 rows.
FIRST_GUESS, FIRST_ROWS = 4, 3
LEAST = 1 << 16  # capacity, so that small views find room for a few large splats
# A call may need a quarter more than the largest before it; else its pass is repeated.
HEADROOM = 1.25


@dataclass
class Capacity:
    """What a call may need without a second pass."""

    rows: int = LEAST  # rows of tiles over all splats
    instances: int = LEAST

    def guess(self, count):
        """Room for count splats of the usual size."""
        self.rows = max(self.rows, FIRST_ROWS * count)
        self.instances = max(self.instances, FIRST_GUESS * count)

    def grow(self, rows, instances):
        """From now on room for more than this many. Instances are counted only as far as there
        is room for rows."""
        if rows > self.rows:
            self.rows = int(rows * HEADROOM)
        if instances > self.instances:
            self.instances = int(instances * HEADROOM)


@dataclass
class Stack:
    """Jobs of start_tile_lists that are done together: their splats lie in one array, and their
    images have one size."""

    splats: Splats  # rows of all of them
    camera: object  # one of theirs
    jobs: list  # their places among all jobs
    parts: Parts = None
    views: object = None  # of the cells, see cuda_emit.tile_depths; None: all of space
    mask: object = None  # (parts, tile_count) uint8 on the device, None: all tiles are live
    covered: object = None  # likewise, None: bounds count everywhere
    depths: object = None  # of cuda_emit.tile_depths
    order: object = None  # of cuda_emit.depth_order
    emitted: object = None  # Emitted; None where there is no splat
    lists: TileLists = None  # of all parts
    bounds: list = None  # held tiles before each part, and all of them
    numbers: object = None  # held tiles of all parts, the first ones of (tiles,) int32
    partial: object = None  # of all parts, from rasterize_all on

    def share(self, k, numbers):
        """TileLists of its job k; numbers: held tiles of all parts on the host. Items are rows of
        the stack's splats."""
        a, b = self.bounds[k : k + 2]
        whole, count = self.lists, self.camera.tile_count
        intervals = None if whole.intervals is None else whole.intervals[a:b]
        return TileLists(
            whole.tiles[a:b], whole.offsets[a : b + 1], whole.items, intervals,
            held=numbers[a:b] - np.int32(k * count), stack=(self, k),
        )


class Report:
    """Counters and held tiles of several stacks, side by side so that one copy brings them.

    places: for each stack (numbers, counters) on the device, (tiles of all parts,) int32 and (8,)
    uint64.
    """

    def __init__(self, tile_counts):
        import cupy

        stacks = len(tile_counts)
        words = [-(-count // 2) for count in tile_counts]
        self.starts = np.cumsum([COUNTERS * stacks, *words])
        self.words = cupy.empty(int(self.starts[-1]), np.uint64)
        self.places = [
            (self.words[start:].view(np.int32)[:count], self.words[COUNTERS * k :][:COUNTERS])
            for k, (start, count) in enumerate(zip(self.starts.tolist(), tile_counts))
        ]

    def start_reading(self):
        """Begin the copy to the host, behind the kernels that fill it."""
        self.reading = Reading([self.words])

    def read(self):
        """(counters (stacks, 8) uint64, held tiles of each stack) on the host, once the copy is
        done."""
        words, = self.reading.take()
        counters = words[: COUNTERS * len(self.places)].reshape(-1, COUNTERS)
        tiles = [words[start:].view(np.int32) for start in self.starts[:-1].tolist()]
        return counters, [part[: int(count[HELD])] for part, count in zip(tiles, counters)]


@dataclass
class Listing:
    """What start_tile_lists returns."""

    backend: object
    stacks: list
    report: Report

    def take(self):
        """The TileLists of all jobs."""
        out = {}
        for stack, counters, numbers in zip(self.stacks, *self.report.read()):
            numbers = self.backend._finish(stack, counters, numbers)
            out.update({job: stack.share(k, numbers) for k, job in enumerate(stack.jobs)})
        return [out[job] for job in range(len(out))]


class CudaLists:
    """tile_lists of backends.base.Backend on cupy arrays.

    The class that mixes it in has real (float32).
    """

    _capacity = None  # Capacity, grows with the views

    def tile_lists(self, splats, camera, box=None, mask=None, covered=None, room=None):
        """See Backend.tile_lists, and start_tile_lists for when it waits. Where room
        (cuda_tally.Room) sizes the arrays it does not wait: the numbers in use stay in counters,
        and the room's tally stops the device where they do not fit. That is for all of space,
        without a box.
        """
        if room and len(splats):
            _check_job(splats, camera, mask, covered)
            return self._lists_in_room(splats, camera, mask, room)
        whole = Splats(splats.rows, splats.data, splats.ids)  # not as a part of others
        lists, = self.start_tile_lists([(whole, camera, box, mask, covered)]).take()
        lists.slots = _slots(lists.stack[0])
        return lists

    def start_tile_lists(self, jobs):
        """See Backend.start_tile_lists.

        Jobs are done together where their splats lie in one array (place_ghosts) and their images
        have one size. take() waits for the GPU once, where the counts size the arrays; once more
        where there are far more instances than in any call before it, or many splats of one depth
        whose ids are not in order.

        intervals: (held, 2, 256) float32, per pixel of the held tiles (row major, empty outside
        the image) the depths [in, out) inside the cell; None when no box is given or every
        listed depth is inside the cell for all pixels of its tile.
        """
        self._capacity = self._capacity or Capacity()
        for splats, camera, _, mask, covered in jobs:
            _check_job(splats, camera, mask, covered)
        stacks = _make_stacks(jobs)
        for stack in stacks:
            self._capacity.guess(stack.parts.used)
        report = Report([stack.parts.count * stack.camera.tile_count for stack in stacks])
        for stack, places in zip(stacks, report.places):
            self._begin(stack, *places)
        report.start_reading()
        return Listing(self, stacks, report)

    def _begin(self, stack, numbers, counters):
        """Send the instances of a stack on their way; numbers, counters: its places in the
        Report."""
        stack.numbers = numbers
        if not stack.parts.used:
            fill(counters, 0)
            return
        camera, mask = stack.camera, stack.mask
        if stack.views is not None:
            stack.depths = tile_depths(stack.views, camera, mask, stack.covered)
        stack.order = depth_order(stack.splats, stack.parts)
        stack.emitted = emit_instances(
            stack.splats, stack.order, camera, mask, stack.depths, self._capacity, stack.parts,
            numbers, counters,
        )

    def _finish(self, stack, counters, numbers):
        """Fill lists and bounds of a stack; counters: (8,) on the host; numbers: (held,) held
        tiles on the host. Returns the latter, which may have changed."""
        import cupy

        if stack.emitted and (counters[DISORDER] or self._is_full(stack, counters)):
            counters = self._emit_again(stack, counters)
            numbers = stack.numbers[: int(counters[HELD])].get()
        tiles, parts = stack.camera.tile_count, stack.parts.count
        stack.bounds = np.searchsorted(numbers, tiles * np.arange(parts + 1)).tolist()
        instances, emitted, stack.order = int(counters[INSTANCES]), stack.emitted, None
        if not instances:
            stack.lists = _empty_lists()
            return numbers[:0]
        bits = max(1, (parts * tiles - 1).bit_length())
        keys, items = sort_pairs(emitted.keys, emitted.items, instances, bits)
        held = len(numbers)
        offsets = cupy.empty(held + 1, np.int64)
        mark_starts(keys, emitted.slots, offsets, None)
        stack.lists = TileLists(emitted.tiles[:held], offsets, items, held=numbers)
        if counters[CROSSED]:
            stack.lists.intervals = pixel_intervals(
                stack.views, stack.camera, stack.numbers[:held], stack.covered
            )
        emitted.keys = emitted.items = None
        return numbers

    def _is_full(self, stack, counters):
        """Whether a stack had not enough room. The next ones will have."""
        rows, instances = int(counters[ROWS]), int(counters[INSTANCES])
        self._capacity.grow(rows, instances)
        return rows > stack.emitted.rows or instances > len(stack.emitted.items)

    def _emit_again(self, stack, counters):
        """Instances of a stack that did not fit, or not in order. Returns its counters on the
        host."""
        full = True
        while full or counters[DISORDER]:
            if counters[DISORDER]:
                stack.order = depth_order(stack.splats, stack.parts, by_id=True)
            stack.emitted = emit_instances(
                stack.splats, stack.order, stack.camera, stack.mask, stack.depths,
                self._capacity, stack.parts, stack.numbers,
            )
            counters = stack.emitted.counters.get()
            full = self._is_full(stack, counters)
        return counters

    def _lists_in_room(self, splats, camera, mask, room):
        """Lists in arrays of the room's sizes; instances beyond those in use sort last."""
        import cupy

        order = depth_order(splats)
        emitted = emit_instances(splats, order, camera, mask, None, room, filled=True)
        room.tally.check(splats, emitted.counters, room)
        bits = camera.tile_count.bit_length()
        keys, items = sort_pairs(emitted.keys, emitted.items, room.instances, bits)
        offsets = cupy.empty(camera.tile_count + 1, np.int64)
        mark_starts(keys, emitted.slots, offsets, emitted.counters)
        return TileLists(
            emitted.tiles, offsets, items, slots=emitted.slots, counters=emitted.counters
        )


def _make_stacks(jobs):
    """Stacks of the jobs, with what they need on the device."""
    found = {}
    for k, (splats, camera, *_) in enumerate(jobs):
        base, _ = splats.place or (splats, 0)
        key = id(base), camera.width, camera.height
        found.setdefault(key, Stack(base, camera, [])).jobs.append(k)
    stacks, arrays = list(found.values()), []
    for stack in stacks:
        mine = [jobs[k] for k in stack.jobs]
        starts = [0 if splats.place is None else splats.place[1] for splats, *_ in mine]
        runs = np.array([(a, len(splats)) for a, (splats, *_) in zip(starts, mine)], np.int64)
        rows = int(runs.sum(1).max())
        stack.splats = stack.splats.slice(0, rows)
        stack.parts = Parts(len(mine), None, int(runs[:, 1].sum()))
        if rows > stack.parts.used or len(mine) > 1:
            stack.parts.runs = runs
        if any(box is not None and not np.isinf(box).all() for _, _, box, *_ in mine):
            views = [pack_view(camera, box) for _, camera, box, *_ in mine]
            stack.views = np.stack(views).view(np.uint8).reshape(len(mine), -1)
        stack.mask, stack.covered = (_rows_of_tiles(mine, column) for column in (3, 4))
        arrays += [stack.parts.runs, stack.views, stack.mask, stack.covered]
    placed = iter(upload([array for array in arrays if isinstance(array, np.ndarray)]))
    arrays = iter([next(placed) if isinstance(array, np.ndarray) else array for array in arrays])
    for stack in stacks:
        stack.parts.runs, stack.views = next(arrays), next(arrays)
        stack.mask, stack.covered = next(arrays), next(arrays)
    return stacks


def _rows_of_tiles(jobs, column):
    """(jobs, tile_count) uint8 of a column of jobs with ones where there is None; None where no
    job has anything. What lies on the device stays there."""
    rows = [job[column] for job in jobs]
    if all(row is None for row in rows):
        return None
    if len(rows) == 1:
        return rows[0].reshape(1, -1)
    ones = np.ones(jobs[0][1].tile_count, np.uint8)
    return np.stack([ones if row is None else row for row in rows])


def _slots(stack):
    """Place of every tile among the held ones, -1 of others, (tile_count,) int32."""
    import cupy

    if stack.lists.tiles.size:
        return stack.emitted.slots
    return cupy.full(stack.camera.tile_count, -1, np.int32)


def _empty_lists():
    import cupy

    return TileLists(
        cupy.empty(0, np.int32), cupy.zeros(1, np.int64), cupy.empty(0, np.int32),
        held=np.empty(0, np.int32),
    )


def _check_job(splats, camera, mask, covered):
    """Refuses arguments of tile_lists that kernels would misread."""
    _check(splats.data, (len(splats), SPLAT), np.float32)
    _check(splats.ids, (len(splats),), np.int64)
    for tiles in (mask, covered):
        if tiles is not None:
            _check(tiles, (camera.tile_count,), np.uint8)


def _check(array, shape, dtype):
    """Refuses an array that a kernel would misread."""
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(
            f"kernel takes a contiguous {np.dtype(dtype)} array {shape}, "
            f"got {array.dtype} {array.shape}"
        )
