"""Tile lists of the CUDA backend: a sort by depth, one pass over the splats, a sort by tile."""

from dataclasses import dataclass

import numpy as np

from .base import SPLAT, TileLists
from .cuda_launch import fill, run, zeros
from .cuda_module import kernel
from .cuda_sort import sort_pairs, sorter

LISTS, CELL = "tiles.cu", "cell_depths.cu"  # sources
PIXELS = 256
BLOCK = 256  # threads of a block in tiles.cu, and splats or rows of tiles
ENTRY_WORDS = 14  # see Entry in tiles.cu
# counters of tiles.cu that the host reads, and how many words they take
ROWS, INSTANCES, HELD, DISORDER, CROSSED, COUNTERS = 2, 3, 4, 5, 6, 8
# Instances a splat may have before the first view says better, and rows of tiles: small splats
# touch 1 to 3 tiles in 1 to 2 rows.
FIRST_GUESS, FIRST_ROWS = 4, 3
LEAST = 1 << 16  # capacity, so that small views find room for a few large splats
# A view may need a quarter more than the largest before it; else its pass is repeated.
HEADROOM = 1.25
# Blocks that fill any GPU of today several times over; more would only repeat the setting up.
WIDE = 2048
VIEW = np.dtype([("camera", np.float64, 16), ("box", np.float64, 6)])  # View in tiles.cu


@dataclass
class Capacity:
    """What a view may need without a second pass."""

    rows: int = LEAST  # rows of tiles over all splats
    instances: int = LEAST

    def guess(self, count):
        """Room for count splats of the usual size."""
        self.rows = max(self.rows, FIRST_ROWS * count)
        self.instances = max(self.instances, FIRST_GUESS * count)

    def grow(self, rows, instances):
        """Room for more than this many; False where there was room. Instances were counted only
        as far as there was room for rows."""
        full = rows > self.rows or instances > self.instances
        if rows > self.rows:
            self.rows = int(rows * HEADROOM)
        if instances > self.instances:
            self.instances = int(instances * HEADROOM)
        return full


@dataclass
class Emitted:
    """Instances in order of depth, before they are sorted by tile."""

    keys: object  # (capacity,) uint16 or uint32, tiles
    items: object  # (capacity,) int32
    tiles: object  # (tile_count,) int32, held tiles first
    slots: object  # (tile_count,) int32, place of a tile among the held
    counters: object  # (8,) uint64


class CudaLists:
    """tile_lists of backends.base.Backend on cupy arrays.

    The class that mixes it in has real (float32).
    """

    _capacity = None  # Capacity, grows with the views
    _counters = None  # page-locked memory that the counts are read into

    def tile_lists(self, splats, camera, box=None, mask=None, covered=None, room=None):
        """See Backend.tile_lists. Waits for the GPU once, where the counts size the arrays; a
        second time when a view has far more instances than any before it, or many splats of
        one depth whose ids are not in order. Where room (cuda_tally.Room) sizes them it does not
        wait: the numbers in use stay in counters, and the room's tally stops the device instead
        of a second time. That is for all of space, without a box.

        intervals: (held, 2, 256) float32, per pixel of the held tiles (row major, empty outside
        the image) the depths [in, out) inside the cell; None when no box is given or every
        listed depth is inside the cell for all pixels of its tile.
        """
        import cupy

        count = len(splats)
        _check(splats.data, (count, SPLAT), np.float32)
        _check(splats.ids, (count,), np.int64)
        for tiles in (mask, covered):
            if tiles is not None:
                _check(tiles, (camera.tile_count,), np.uint8)
        if count == 0:
            return _empty_lists(camera)
        if room:
            return self._lists_in_room(splats, camera, mask, room)
        view = depths = None
        if box is not None and not np.isinf(box).all():
            view = _pack_view(camera, box)
            depths = _tile_depths(view, camera, mask, covered)
        emitted = self._emit(splats, camera, mask, depths)
        instances, held = int(emitted.counters[INSTANCES]), int(emitted.counters[HELD])
        if instances == 0:
            return _empty_lists(camera)
        bits = max(1, (camera.tile_count - 1).bit_length())
        keys, items = sort_pairs(emitted.keys, emitted.items, instances, bits)
        offsets = cupy.empty(held + 1, np.int64)
        _mark_starts(keys, emitted.slots, offsets, None)
        lists = TileLists(emitted.tiles[:held], offsets, items, slots=emitted.slots)
        if emitted.counters[CROSSED]:
            lists.intervals = pixel_intervals(view, camera, lists.tiles, covered)
        return lists

    def _lists_in_room(self, splats, camera, mask, room):
        """Lists in arrays of the room's sizes; instances beyond those in use sort last."""
        import cupy

        order = depth_order(splats)
        emitted = emit_instances(splats, order, camera, mask, None, room, filled=True)
        room.tally.check(splats, emitted.counters, room)
        bits = camera.tile_count.bit_length()
        keys, items = sort_pairs(emitted.keys, emitted.items, room.instances, bits)
        offsets = cupy.empty(camera.tile_count + 1, np.int64)
        _mark_starts(keys, emitted.slots, offsets, emitted.counters)
        return TileLists(
            emitted.tiles, offsets, items, slots=emitted.slots, counters=emitted.counters
        )

    def _emit(self, splats, camera, mask, depths):
        """Instances of all splats, with the counts on the host; grows the capacity if need be."""
        if self._capacity is None:
            self._capacity = Capacity()
        self._capacity.guess(len(splats))
        order = depth_order(splats)
        while True:
            emitted = emit_instances(splats, order, camera, mask, depths, self._capacity)
            counters = emitted.counters = self._read(emitted.counters)
            full = self._capacity.grow(int(counters[ROWS]), int(counters[INSTANCES]))
            if counters[DISORDER]:
                order = depth_order(splats, by_id=True)
            elif not full:
                return emitted

    def _read(self, counters):
        """Copy of a small device array; waits for the stream."""
        import cupyx

        if self._counters is None:
            self._counters = cupyx.empty_pinned(COUNTERS, np.uint64)
        return counters.get(out=self._counters, blocking=True).copy()


def depth_order(splats, by_id=False):
    """Splats in order of depth: (keys, order), the sorted depth bits (n,) uint32 and the splats'
    indices (n,) int32. Equal depths keep their order, or by_id that of their ids."""
    import cupy

    count = len(splats)
    keys, order = cupy.empty(count, np.uint32), cupy.empty(count, np.int32)
    _launch(
        LISTS, "depth_keys", _blocks(count), BLOCK, splats.data, np.int64(count), splats.count,
        keys, order,
    )
    if by_id:
        _, order = sort_pairs(splats.ids, order)
        keys = keys[order]
    return sort_pairs(keys, order)


def emit_instances(splats, order, camera, mask, depths, capacity, filled=False):
    """Counts and writes the instances, as far as the Capacity or Room goes, and lists the held
    tiles. order: what depth_order returned; filled: keys that no instance has are larger than
    all tiles. Does not wait: counters stay on the device."""
    import cupy

    count, tile_count = len(splats), camera.tile_count
    size = np.int32(camera.width), np.int32(camera.height)
    key_type = np.uint16 if tile_count < 1 << 16 else np.uint32
    keys = cupy.empty(capacity.instances, key_type)
    if filled:
        fill(keys, 0xFF)
    items = cupy.empty(capacity.instances, np.int32)
    sorter(keys, items).storage(keys, items, capacity.instances)  # now, not while the GPU waits
    entries = cupy.empty((ENTRY_WORDS, count), np.uint32)
    slices = cupy.empty((capacity.rows, 2), np.int32)
    tiles, slots = cupy.empty(tile_count, np.int32), cupy.empty(tile_count, np.int32)
    splat_blocks, row_blocks = _blocks(count), _blocks(capacity.rows)
    zeroed = zeros(
        COUNTERS + 2 * _blocks(tile_count, 8) + splat_blocks + row_blocks, np.uint64
    )
    _launch(
        LISTS, "place_rows", splat_blocks, BLOCK, splats.data, *order, splats.ids, np.int64(count),
        splats.count, *size, np.int64(capacity.rows), entries, slices, zeroed,
    )
    _launch(
        LISTS, "emit_" + keys.dtype.name, row_blocks, BLOCK, entries, slices, np.int64(count),
        np.int64(capacity.rows), *size, mask, depths, np.int64(capacity.instances), keys, items,
        zeroed,
    )
    _launch(LISTS, "list_held", 1, 1024, *size, tiles, slots, zeroed)
    return Emitted(keys, items, tiles, slots, zeroed[:COUNTERS])


def _mark_starts(keys, slots, offsets, counters):
    """Set offsets of the lists among sorted keys; counters: where counts stay on the device."""
    each = 16 // keys.itemsize  # keys a thread reads
    _launch(
        LISTS, "mark_starts_" + keys.dtype.name, _blocks(len(keys), BLOCK * each), BLOCK, keys,
        np.int64(len(keys)), slots, np.int32(len(offsets) - 1), offsets, counters,
    )


def pixel_intervals(view, camera, tiles, covered=None):
    """Depths [in, out) inside the cell of every pixel of some tiles, (k, 2, 256) float32."""
    import cupy

    intervals = cupy.empty((len(tiles), 2, PIXELS), np.float32)
    _launch(
        CELL, "pixel_intervals", min(len(tiles), WIDE), PIXELS, view, np.int32(camera.width),
        np.int32(camera.height), tiles, np.int32(len(tiles)), covered, intervals,
    )
    return intervals


def _tile_depths(view, camera, mask, covered):
    """Bounds of the depths inside the cell for each live tile, (tile_count, 4) float32."""
    import cupy

    depths = cupy.empty((camera.tile_count, 4), np.float32)
    _launch(
        CELL, "tile_depths", min(_blocks(camera.tile_count, BLOCK // 32), WIDE), BLOCK, view,
        np.int32(camera.width), np.int32(camera.height), mask, covered, depths,
    )
    return depths


def _pack_view(camera, box):
    """Camera and cell as the kernels take them, by value."""
    view = np.empty(1, VIEW)
    view["camera"] = camera.packed()
    view["box"] = np.asarray(box, np.float64).reshape(6)
    return view


def _empty_lists(camera):
    import cupy

    return TileLists(
        cupy.empty(0, np.int32), cupy.zeros(1, np.int64), cupy.empty(0, np.int32),
        slots=cupy.full(camera.tile_count, -1, np.int32),
    )


def _blocks(count, size=BLOCK):
    return -(-count // size)


def _launch(source, name, blocks, threads, *arguments):
    run(kernel(source, name), (blocks,), threads, arguments)


def _check(array, shape, dtype):
    """Refuses an array that a kernel would misread."""
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(
            f"kernel takes a contiguous {np.dtype(dtype)} array {shape}, "
            f"got {array.dtype} {array.shape}"
        )
