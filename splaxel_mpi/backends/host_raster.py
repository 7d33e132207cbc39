"""Rasterizer of the host backend: tile lists, partial pixels and their gradient."""

import os
from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from .base import ABSOLUTE_GRADIENT, SPLAT, SPLAT_GRADIENT, Partial, TileLists
from .host_library import call, suffix

ISA = ("base", "avx2", "avx512")
RECORD = 16  # numbers a splat takes in the kernels
PIXELS = 256


def isa():
    """Instruction set of the rasterizer's kernels: "base" (SSE2), "avx2" or "avx512".

    The widest that the CPU has, or what the environment variable SPLAXEL_ISA names. Raises
    UserError when that is unknown or the CPU lacks it.
    """
    best = ISA[call("raster_best_isa")]
    name = os.environ.get("SPLAXEL_ISA") or best
    if name not in ISA:
        raise UserError(f"SPLAXEL_ISA={name}: choose one of {', '.join(ISA)}")
    if ISA.index(name) > ISA.index(best):
        raise UserError(f"SPLAXEL_ISA={name}: this CPU has only {best}; unset the variable")
    return name


@dataclass
class Intervals:
    """Per-pixel depth intervals of the tiles that need them."""

    rows: np.ndarray  # (held,) int32, row of table; -1 where the whole list is inside the cell
    table: np.ndarray  # (k, 2, 256) real: in, out; pixels in the kernels' order


@dataclass
class Walked:
    """What the forward pass leaves for the backward pass."""

    isa: int  # masks depend on the vector width
    records: np.ndarray  # (n, 16) real, the splats as the kernels read them
    last: np.ndarray  # (held, 256) int32, list position that finished the pixel
    masks: np.ndarray  # (instances,) uint32, blocks of pixels evaluated
    steps: np.ndarray  # (held,) int32, list positions walked
    pairs: int  # (pixel, splat) pairs whose alpha was computed


class HostRaster:
    """tile_lists, rasterize and rasterize_backward of backends.base.Backend.

    The class that mixes it in has real (a numpy dtype) and threads.
    """

    def tile_lists(self, splats, camera, box=None, mask=None, covered=None):
        """See Backend.tile_lists. Raises MemoryError when the lists do not fit."""
        name, count = suffix(self.real), len(splats)
        _check(splats.data, (count, SPLAT), self.real)
        _check(splats.ids, (count,), np.int64)
        if box is not None:
            box = np.ascontiguousarray(box, np.float64)
            _check(box, (2, 3), np.float64)
            box = None if np.isinf(box).all() else box
        for tiles in (mask, covered):
            if tiles is not None:
                _check(tiles, (camera.tile_count,), np.uint8)
        counts = np.zeros(3, np.int64)
        handle = call(
            "tile_lists_" + name, splats.data, splats.ids, count, camera.packed(), camera.width,
            camera.height, box, mask, covered, self.threads, counts,
        )
        if not handle:
            raise MemoryError(f"no memory for the tile lists of {count} splats")
        held, instances, rows = (int(value) for value in counts)
        lists = TileLists(
            np.empty(held, np.int32), np.empty(held + 1, np.int64), np.empty(instances, np.int32)
        )
        intervals = Intervals(
            np.empty(held, np.int32), np.empty((rows, 2, PIXELS), self.real)
        )
        call(
            "take_tile_lists_" + name, handle, self.threads, lists.tiles, lists.offsets,
            lists.items, intervals.rows, intervals.table,
        )
        lists.intervals = intervals if rows else None
        return lists

    def rasterize(self, splats, lists, camera, stop):
        """See Backend.rasterize."""
        name, held, count = suffix(self.real), len(lists.tiles), len(splats)
        _check(splats.data, (count, SPLAT), self.real)
        walked = Walked(
            ISA.index(isa()),
            np.empty((count, RECORD), self.real),
            np.empty((held, PIXELS), np.int32),
            np.empty(len(lists.items), np.uint32),
            np.empty(held, np.int32),
            0,
        )
        pixels = np.empty((held, 4, PIXELS), self.real)
        lengths = np.diff(lists.offsets)
        call("raster_records_" + name, splats.data, count, walked.records, self.threads)
        walked.pairs = call(
            "raster_forward_" + name, *_job(lists, camera, walked, lengths, self.threads),
            float(stop), pixels, walked.last, walked.masks, walked.steps,
        )
        return Partial(lists.tiles, pixels, walked)

    def rasterize_backward(
        self, splats, lists, partial, gradient, camera, stop, absolute=False, out=None
    ):
        """See Backend.rasterize_backward. The same bits for any number of threads: a splat's
        contributions are added tile by tile in ascending order."""
        name, walked, count = suffix(self.real), partial.last, len(splats)
        _check(splats.data, (count, SPLAT), self.real)
        _check(gradient, partial.pixels.shape, self.real)
        columns = ABSOLUTE_GRADIENT if absolute else SPLAT_GRADIENT
        sums = np.zeros((count, columns), self.real) if out is None else out
        _check(sums, (count, columns), self.real)
        rows = None
        if self.threads > 1:
            rows = np.zeros((len(lists.items), columns), self.real)
        call(
            "raster_backward_" + name, *_job(lists, camera, walked, walked.steps, self.threads),
            partial.pixels, walked.last, walked.masks, walked.steps, gradient, splats.data,
            count, columns, rows, sums,
        )
        return sums

    def evaluated_pairs(self, lists, partial):
        """See Backend.evaluated_pairs."""
        return int(partial.last.pairs)


def _job(lists, camera, walked, work, threads):
    """Arguments that both passes begin with; work: (held,), tiles of more work go first when
    there are threads to balance."""
    schedule = None
    if threads > 1:
        schedule = np.argsort(-work, kind="stable").astype(np.int32)
    rows = table = None
    if lists.intervals is not None:
        rows, table = lists.intervals.rows, lists.intervals.table
    return (
        walked.isa, threads, schedule, len(lists.tiles), walked.records, lists.tiles,
        lists.offsets, lists.items, rows, table, camera.width, camera.height,
    )


def _check(array, shape, dtype):
    """Refuses an array that a kernel would misread."""
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(
            f"kernel takes a contiguous {np.dtype(dtype)} array {shape}, "
            f"got {array.dtype} {array.shape}"
        )
