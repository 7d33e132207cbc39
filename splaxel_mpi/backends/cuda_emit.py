"""Kernels of tile lists: order by depth, instances, where lists begin, what of a cell is seen.

Nothing here waits for the GPU. Parts (tiles.cu) are the views and cells that are listed together.
"""

from dataclasses import dataclass

import numpy as np

from .cuda_launch import fill, run, zeros
from .cuda_module import kernel
from .cuda_sort import sort_pairs, sorter

LISTS, CELL = "tiles.cu", "cell_depths.cu"  # sources
PIXELS = 256
BLOCK = 256  # threads of a block in tiles.cu, and splats or rows of tiles
ENTRY_WORDS = 15  # see Entry in tiles.cu
# counters of tiles.cu that the host reads, and how many words they take
ROWS, INSTANCES, HELD, DISORDER, CROSSED, COUNTERS = 2, 3, 4, 5, 6, 8
# Blocks that fill any GPU of today several times over; more would only repeat the setting up.
WIDE = 2048
VIEW = np.dtype([("camera", np.float64, 16), ("box", np.float64, 6)])  # View in cell_depths.cu


@dataclass
class Parts:
    """Which rows of splats belong to which part."""

    count: int = 1
    runs: object = None  # (count, 2) int64 on the device, see tiles.cu; None: all rows to one
    used: object = None  # rows of all parts, None: all


@dataclass
class Emitted:
    """Instances in order of depth, before they are sorted by tile."""

    keys: object  # (capacity,) uint16 or uint32, tiles of all parts
    items: object  # (capacity,) int32
    tiles: object  # (tiles of all parts,) int32, held tiles first, as tiles of the image
    slots: object  # (tiles of all parts,) int32, place of a tile among the held
    counters: object  # (8,) uint64
    rows: int  # rows of tiles that there was room for


def blocks(count, size=BLOCK):
    """Blocks of so many threads for count items."""
    return -(-count // size)


def depth_order(splats, parts=Parts(), by_id=False):
    """Splats in order of depth: (keys, order), the sorted depth bits (n,) uint32 and the splats'
    indices (n,) int32, those of no part last. Equal depths keep their order, or by_id that of
    their ids."""
    import cupy

    count = len(splats)
    keys, order = cupy.empty(count, np.uint32), cupy.empty(count, np.int32)
    _launch(
        LISTS, "depth_keys", blocks(count), BLOCK, splats.data, np.int64(count), splats.count,
        parts.runs, np.int32(parts.count), keys, order,
    )
    if by_id:
        _, order = sort_pairs(splats.ids, order)
        keys = keys[order]
    return sort_pairs(keys, order)


def emit_instances(
    splats, order, camera, mask, depths, capacity, parts=Parts(), numbers=None, report=None,
    filled=False,
):
    """Counts and writes the instances, as far as the Capacity or Room goes, and lists the held
    tiles.

    order: what depth_order returned; mask: (tiles of all parts,) uint8 or None; depths: of
    tile_depths or None; numbers: (tiles of all parts,) int32 for the held tiles as they are
    numbered in keys, or None; report: (8,) uint64 that gets a copy of the counters, or None;
    filled: keys that no instance has are larger than all tiles.
    """
    import cupy

    tile_count = parts.count * camera.tile_count
    count = len(splats) if parts.used is None else parts.used
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
    splat_blocks, row_blocks = blocks(count), blocks(capacity.rows)
    zeroed = zeros(COUNTERS + 2 * blocks(tile_count, 8) + splat_blocks + row_blocks, np.uint64)
    _launch(
        LISTS, "place_rows", splat_blocks, BLOCK, splats.data, *order, splats.ids, np.int64(count),
        splats.count, parts.runs, np.int32(parts.count), *size, np.int64(capacity.rows), entries,
        slices, zeroed,
    )
    _launch(
        LISTS, "emit_" + keys.dtype.name, row_blocks, BLOCK, entries, slices, np.int64(count),
        np.int64(capacity.rows), np.int32(parts.count), *size, mask, depths,
        np.int64(capacity.instances), keys, items, zeroed,
    )
    _launch(
        LISTS, "list_held", 1, 1024, *size, np.int32(parts.count), tiles, numbers, slots, zeroed,
        report,
    )
    return Emitted(keys, items, tiles, slots, zeroed[:COUNTERS], capacity.rows)


def mark_starts(keys, slots, offsets, counters):
    """Set offsets of the lists among sorted keys; counters: where counts stay on the device."""
    each = 16 // keys.itemsize  # keys a thread reads
    _launch(
        LISTS, "mark_starts_" + keys.dtype.name, blocks(len(keys), BLOCK * each), BLOCK, keys,
        np.int64(len(keys)), slots, np.int32(len(offsets) - 1), offsets, counters,
    )


def pack_view(camera, box):
    """Camera and cell of a part as the kernels take them, VIEW (); box: (2, 3), None for all of
    space."""
    view = np.empty((), VIEW)
    view["camera"] = camera.packed()
    view["box"] = np.ravel([[-np.inf] * 3, [np.inf] * 3] if box is None else box)
    return view


def tile_depths(views, camera, mask, covered):
    """Bounds of the depths inside the cell for each live tile, (parts, tile_count, 4) float32.

    views: of pack_view, as bytes (parts, n) on the device; mask, covered: (parts, tile_count).
    """
    import cupy

    depths = cupy.empty((len(views), camera.tile_count, 4), np.float32)
    grid = min(blocks(camera.tile_count, BLOCK // 32), WIDE), len(views)
    run(kernel(CELL, "tile_depths"), grid, BLOCK, (
        views, np.int32(camera.width), np.int32(camera.height), mask, covered, depths))
    return depths


def pixel_intervals(views, camera, numbers, covered):
    """Depths [in, out) inside the cell of every pixel of some tiles, (k, 2, 256) float32.

    views, covered: as in tile_depths; numbers: (k,) int32 tiles of all parts, ascending.
    """
    import cupy

    intervals = cupy.empty((len(numbers), 2, PIXELS), np.float32)
    _launch(
        CELL, "pixel_intervals", min(len(numbers), WIDE), PIXELS, views, np.int32(camera.width),
        np.int32(camera.height), numbers, np.int32(len(numbers)), covered, intervals,
    )
    return intervals


def _launch(source, name, count, threads, *arguments):
    run(kernel(source, name), (count,), threads, arguments)
