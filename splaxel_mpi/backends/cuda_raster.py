"""Rasterizer of the CUDA backend: partial pixels and their gradient on cupy arrays."""

import functools
from dataclasses import dataclass

import numpy as np

from .base import ABSOLUTE_GRADIENT, SPLAT, SPLAT_GRADIENT, Partial
from .cuda_emit import HELD
from .cuda_launch import note_call, run, zeros
from .cuda_module import kernel

PIXELS = 256
REGIONS = 8  # parts of a tile that masks and counts tell apart, see raster.cuh
BATCH = 32  # list positions that a word of a mask stands for
WARPS = 4  # of a block, and warps that one entry of the order of work takes
SEGMENT = 1024  # list positions of a heavy tile that are walked backward by one warp
BLOCKS = 5  # of the backward pass on one multiprocessor
STOP_FLOOR = 1e-20  # StopFloor<float> of math/blend.cuh
THREADS = 256
SIDES = ("SIDES=2",)  # of raster_backward.cu, for absolute sums


@dataclass
class Walked:
    """What the forward pass leaves for the backward pass."""

    last: object  # (held, 256) int32, list position of the last splat drawn, -1 for none
    masks: object  # (instances // 32 + held, 8) uint32, splats walked by the parts of a tile
    steps: object  # (held, 8) int32, list positions looked at for them
    states: object  # (instances // 1024 + held, 256, 4) float32, segments of heavy tiles alone
    most: int  # list of a light tile


class CudaRaster:
    """rasterize and rasterize_backward of backends.base.Backend on cupy arrays.

    deterministic: rasterize_backward gives the same bits every time, for tests: it keeps 288
    bytes an instance and sorts them. Otherwise sums are made by atomic additions.
    """

    deterministic = False
    # A tile with a longer list is heavy: more warps, and segments in the backward pass. Measured
    # on the benchmark city, see `splaxel-mpi bench kernels`.
    most = 1024

    def rasterize(self, splats, lists, camera, stop):
        """See Backend.rasterize. Does not wait for the GPU."""
        import cupy

        held, instances = len(lists.tiles), len(lists.items)
        _check_job(splats, lists)
        pixels = cupy.empty((held, 4, PIXELS), np.float32)
        walked = Walked(
            cupy.empty((held, PIXELS), np.int32),
            cupy.empty((instances // BATCH + held, REGIONS), np.uint32),
            cupy.empty((held, REGIONS), np.int32),
            cupy.empty((instances // SEGMENT + held, PIXELS, 4), np.float32),
            self.most,
        )
        if held:
            order = _order(lists, None, walked.most)
            arguments = (
                *_job(splats, lists, camera), *order, np.float32(max(stop, STOP_FLOOR)), pixels,
                walked.last, walked.masks, walked.steps, walked.states,
            )
            # as many blocks as there can be entries: their count stays on the GPU
            _launch("forward", lists, 2 * held, arguments)
        return Partial(lists.tiles, pixels, walked)

    def rasterize_backward(
        self, splats, lists, partial, gradient, camera, stop, absolute=False, out=None
    ):
        """See Backend.rasterize_backward. Does not wait for the GPU."""
        import cupy

        walked, held = partial.last, len(lists.tiles)
        _check_job(splats, lists)
        _check("gradient", gradient, (held, 4, PIXELS), np.float32)
        columns = ABSOLUTE_GRADIENT if absolute else SPLAT_GRADIENT
        sums = zeros((len(splats), columns), np.float32) if out is None else out
        if sums.shape != (len(splats), columns) or not sums.flags.c_contiguous:
            raise TypeError(f"out must be contiguous {(len(splats), columns)}, got {sums.shape}")
        if not held:
            return sums
        rows = None
        if self.deterministic:
            rows = cupy.zeros((len(lists.items), REGIONS, columns), np.float32)
        order = _order(lists, walked.steps, walked.most)
        arguments = (
            *_job(splats, lists, camera), *order, partial.pixels, walked.last, walked.masks,
            walked.states, gradient, sums, _pointer(rows),
        )
        blocks = BLOCKS * _multiprocessors(cupy.cuda.Device().id)
        _launch("backward", lists, blocks, arguments, SIDES if absolute else ())
        if self.deterministic:
            _gather(lists.items, rows, sums)
        return sums

    def rasterize_all(self, parts, stop):
        """See Backend.rasterize_all: one pass over the tiles of each Stack (cuda_lists)."""
        for stack in _stacks(parts):
            stack.partial = self.rasterize(stack.splats, stack.lists, stack.camera, stop)
        out = []
        for _, lists, _ in parts:
            stack, k = lists.stack
            pixels = stack.partial.pixels[stack.bounds[k] : stack.bounds[k + 1]]
            out.append(Partial(lists.tiles, pixels))
        return out

    def rasterize_all_backward(self, parts, partials, seeds, stop, absolute, out):
        """See Backend.rasterize_all_backward; out: of gradient_rows."""
        for stack in _stacks(parts):
            mine = [k for k, (_, lists, _) in enumerate(parts) if lists.stack[0] is stack]
            # the rows of the splats that the lists name
            sums = out[mine[0]].base[: len(stack.splats)]
            self.rasterize_backward(
                stack.splats, stack.lists, stack.partial, _joined([seeds[k] for k in mine]),
                stack.camera, stop, absolute, sums,
            )
        return out

    def evaluated_pairs(self, lists, partial):
        """See Backend.evaluated_pairs: 32 pixels for each bit of the masks that were written."""
        import cupy

        walked, held = partial.last, len(lists.tiles)
        if not held:
            return 0
        # words of a tile begin at offset / BATCH + tile, first_mask of raster.cuh
        first = lists.offsets[:-1] // BATCH + cupy.arange(held)
        word = cupy.arange(len(walked.masks))
        tile = cupy.searchsorted(first, word, side="right") - 1
        written = (word - first[tile])[:, None] * BATCH < walked.steps[tile]
        masks = cupy.where(written, walked.masks, np.uint32(0))
        bits = cupy.unpackbits(masks.view(np.uint8).ravel())
        return int(bits.sum(dtype=np.int64)) * PIXELS // REGIONS


def _stacks(parts):
    """The stacks that the lists of the parts come from, in their order."""
    found = {id(lists.stack[0]): lists.stack[0] for _, lists, _ in parts}
    return list(found.values())


def _joined(arrays):
    """The arrays one after another: a view where they lie so in memory."""
    import cupy

    arrays = [array for array in arrays if len(array)] or arrays[:1]
    first, ends = arrays[0], [array.data.ptr + array.nbytes for array in arrays]
    if all(array.data.ptr == end for array, end in zip(arrays[1:], ends)):
        rows = sum(map(len, arrays))
        return cupy.ndarray((rows, *first.shape[1:]), first.dtype, first.data)
    return cupy.concatenate(arrays)


def _order(lists, steps, most):
    """Entries of the tiles by falling weight, (., 2) int32 of raster.cuh, and (2,) int32: their
    count and zero. steps: (held, 8) int32, or None before the tiles were walked."""
    import cupy

    held = len(lists.tiles)
    # two entries a heavy tile, or two a segment of one
    entries = 2 * held if steps is None else 2 * (held + len(lists.items) // SEGMENT)
    order, count = cupy.empty((entries, 2), np.int32), cupy.empty(2, np.int32)
    tiles = None if lists.counters is None else lists.counters[HELD:]
    arguments = (
        lists.offsets, _pointer(steps), np.int32(held), _pointer(tiles), np.int32(most), order,
        count,
    )
    run(kernel("raster_order.cu", "raster_order"), (1,), 1024, arguments)
    return order, count


def _job(splats, lists, camera):
    """Arguments that both passes begin with, Lists of raster.cuh."""
    return (
        lists.tiles, lists.offsets, lists.items, splats.data, _pointer(lists.intervals),
        np.int32(len(lists.tiles)), np.int32(camera.width), np.int32(camera.height),
    )


def _launch(name, lists, blocks, arguments, defines=()):
    """Launches a pass over the tiles."""
    cut = "_cut" if lists.intervals is not None else ""
    function = kernel(f"raster_{name}.cu", f"raster_{name}{cut}", defines)
    run(function, (blocks,), 32 * WARPS, arguments)


@functools.lru_cache(maxsize=None)
def _multiprocessors(device):
    import cupy

    return cupy.cuda.Device(device).attributes["MultiProcessorCount"]


def _gather(items, rows, sums):
    """Adds rows (instances, 8, columns) into sums (n, columns), those of a splat in the order of
    the lists."""
    import cupy

    note_call(None)  # CuPy's own kernels are not recorded
    instances = cupy.argsort(items)  # stable for integers
    splats = cupy.arange(len(sums) + 1, dtype=items.dtype)
    starts = cupy.searchsorted(items[instances], splats).astype(np.int64)
    blocks = -(-sums.size // THREADS)
    defines = SIDES if sums.shape[1] == ABSOLUTE_GRADIENT else ()
    kernel("raster_backward.cu", "raster_gather", defines)(
        (blocks,), (THREADS,), (instances, starts, rows, np.int64(len(sums)), sums)
    )


def _pointer(array):
    """An array as a kernel argument, None as the null pointer."""
    return np.uint64(0) if array is None else array


def _check_job(splats, lists):
    """Refuses arrays that the kernels would misread."""
    held = len(lists.tiles)
    _check("splats.data", splats.data, (len(splats), SPLAT), np.float32)
    _check("lists.tiles", lists.tiles, (held,), np.int32)
    _check("lists.offsets", lists.offsets, (held + 1,), np.int64)
    _check("lists.items", lists.items, (len(lists.items),), np.int32)
    if lists.intervals is not None:
        _check("lists.intervals", lists.intervals, (held, 2, PIXELS), np.float32)


def _check(name, array, shape, dtype):
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(
            f"{name} must be a contiguous {np.dtype(dtype)} array {shape}, "
            f"got {array.dtype} {array.shape}"
        )
    if array.size and array.data.ptr % 16 and len(shape) > 1:
        raise TypeError(f"{name} must begin at a multiple of 16 bytes")
