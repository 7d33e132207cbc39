"""CUDA kernels on pixels: composition, loss, packing (contract in base.py)."""

import functools

import numpy as np

from ..scene.camera import TILE
from . import cuda_module
from .checks import check_array, check_loss
from .cuda_launch import run
from .cuda_emit import HELD
from .pieces import stream_items

PIXELS = TILE * TILE
THREADS = 256  # of a block of compose.cu, of pack and of unpack
SUM_THREADS = 1024  # of share_of_view in step.cu
TILES_A_BLOCK = 4  # compose.cu: 64 threads a tile
LOSS_HEIGHT = 32  # loss.cu: pixel rows of a region
LOSS_PIXELS = 4  # loss.cu: pixels of a region for a thread
# loss.cu: pixel columns of a region, the fastest first, and how it is compiled
LOSS_WIDTHS = ((64, ()), (32, ("REGION_WIDTH=32",)))
BLOCK_RESERVE = 1024  # shared memory that CUDA keeps for itself in a block


@functools.lru_cache(maxsize=None)
def loss_kernel(device):
    """(kernel, region width in pixels, dynamic shared memory) of the loss on a device: the
    widest region of which two blocks fit a multiprocessor, else the narrowest."""
    import cupy

    room = cupy.cuda.Device(device).attributes["MaxSharedMemoryPerMultiprocessor"]
    for width, defines in LOSS_WIDTHS:
        module = cuda_module.module("loss.cu", defines)
        place = module.get_global("loss_shared_bytes")
        size = int(cupy.ndarray((1,), np.int32, place).get()[0])
        kernel = module.get_function("loss")
        if 2 * (size + kernel.shared_size_bytes + BLOCK_RESERVE) <= room:
            break
    kernel.max_dynamic_shared_size_bytes = size
    return kernel, width, size


class CudaPixels:
    """Mixin of CudaBackend: compose, compose_layer and their backward passes, loss, pack, unpack.

    Indices are not read on the host, which would wait for the device: a slot or row out of
    range counts as absent in compose; pack and unpack trust their tables.
    """

    def _check_layers(self, pool, slots):
        check_array("pool", pool, (None, 4, PIXELS), self.real)
        check_array("slots", slots, (None, None), np.int32)
        return slots.shape

    def _compose_arguments(self, pool, slots, background):
        tiles, layers = slots.shape
        counts = np.int32(len(pool)), slots, np.int32(tiles), np.int32(layers)
        return pool, *counts, *(np.float32(value) for value in background)

    def compose(self, pool, slots, background):
        """See Backend.compose. Raises ValueError for wrong shapes or types."""
        tiles, _ = self._check_layers(pool, slots)
        image = self.xp.empty((tiles, 3, PIXELS), self.real)
        transmittance = self.xp.empty((tiles, PIXELS), self.real)
        if tiles:
            run(cuda_module.kernel("compose.cu", "compose"), (-(-tiles // TILES_A_BLOCK),), THREADS,
                (*self._compose_arguments(pool, slots, background), image, transmittance))
        return image, transmittance

    def compose_backward(self, pool, slots, background, gradient, wanted, count):
        """See Backend.compose_backward. A row of the result is wanted by one layer at most.

        Layers that have nothing (slot -1) give nothing. Raises ValueError for wrong shapes or
        types.
        """
        tiles, layers = self._check_layers(pool, slots)
        check_array("gradient", gradient, (tiles, 3, PIXELS), self.real)
        check_array("wanted", wanted, (tiles, layers), np.int32)
        out = self.xp.zeros((count, 4, PIXELS), self.real)
        if tiles and count:
            kernel = cuda_module.kernel("compose.cu", "compose_backward")
            run(kernel, (-(-tiles // TILES_A_BLOCK),), THREADS, (
                *self._compose_arguments(pool, slots, background), gradient, wanted,
                np.int32(count), out))
        return out

    def residuals(self, pool, slots, tiles, camera):
        """See Backend.residuals. Raises ValueError for wrong shapes or types."""
        count, layers = self._check_layers(pool, slots)
        check_array("tiles", tiles, (count,), np.int32)
        out = self.xp.zeros((count, layers + 1), self.real)
        if count:
            kernel = cuda_module.kernel("compose.cu", "residuals")
            run(kernel, (-(-count // TILES_A_BLOCK),), THREADS, (
                pool, np.int32(len(pool)), slots, np.int32(count), np.int32(layers), tiles,
                np.int32(camera.width), np.int32(camera.height), out))
        return out

    def compose_layer(self, lists, partial, camera, background):
        """compose of a view's only layer, straight into its image.

        lists, partial: of tile_lists and rasterize over all of space; tiles without splats show
        the background. Returns the padded image (3, 16 tiles_y, 16 tiles_x).
        """
        tiles_x, tiles_y = camera.tiles
        image = self.xp.empty((3, TILE * tiles_y, TILE * tiles_x), self.real)
        kernel = cuda_module.kernel("compose.cu", "compose_layer")
        run(kernel, (-(-tiles_x * tiles_y // TILES_A_BLOCK),), THREADS, (
            partial.pixels, np.int32(len(partial.pixels)), lists.slots, np.int32(tiles_x),
            np.int32(tiles_y), *map(np.float32, background), image,
        ))
        return image

    def compose_layer_backward(self, gradient, lists, camera, background):
        """compose_backward of compose_layer: dL/d(C_m, T_m), (held, 4, 256), from the gradient
        (3, 16 tiles_y, 16 tiles_x) of the padded image."""
        tiles_x, tiles_y = camera.tiles
        held = len(lists.tiles)
        out = self.xp.empty((held, 4, PIXELS), self.real)
        if held:
            count = None if lists.counters is None else lists.counters[HELD:]
            kernel = cuda_module.kernel("compose.cu", "compose_layer_backward")
            run(kernel, (-(-held // TILES_A_BLOCK),), THREADS, (
                gradient, lists.tiles, np.int32(held), count, np.int32(tiles_x),
                np.int32(tiles_y), *map(np.float32, background), out,
            ))
        return out

    def to_image(self, tiles, data, camera):
        """See Backend.to_image."""
        tiles_x, tiles_y = camera.tiles
        image = self.xp.empty((3, TILE * tiles_y, TILE * tiles_x), self.real)
        self._lay_out("tiles_to_image", data, tiles, camera, image)
        return image

    def to_tiles(self, tiles, image, camera, out):
        """See Backend.to_tiles."""
        tiles_x, tiles_y = camera.tiles
        check_array("image", image, (3, TILE * tiles_y, TILE * tiles_x), self.real)
        self._lay_out("image_to_tiles", out, tiles, camera, image)

    def _lay_out(self, name, data, tiles, camera, image):
        count, (tiles_x, tiles_y) = len(tiles), camera.tiles
        check_array("tiles", tiles, (count,), np.int32)
        check_array("data", data, (count, 3, PIXELS), self.real)
        source, target = (data, image) if name == "tiles_to_image" else (image, data)
        if count:
            run(cuda_module.kernel("compose.cu", name), (-(-count // TILES_A_BLOCK),), THREADS,
                (source, tiles, np.int32(count), np.int32(tiles_x), np.int32(tiles_y), target))

    def share(self, sums, counted, values, out):
        """See Backend.share."""
        check_array("sums", sums, (len(counted), 3), np.float64)
        check_array("out", out, (3,), np.float64)
        run(cuda_module.kernel("step.cu", "share_of_view"), (1,), SUM_THREADS,
            (sums, np.int32(len(sums)), counted, np.float64(values), out))

    def loss(self, image, photo, camera, tiles, rect, ssim_weight):
        """See Backend.loss. Tiles outside rect are not supervised.

        Raises ValueError for wrong shapes or types and a rect outside the image.
        """
        bounds = check_loss(self.real, image, photo, camera, tiles, rect)
        tiles_x, tiles_y = camera.tiles
        gradient = self.xp.empty_like(image)
        sums = self.xp.empty((camera.tile_count, 3), np.float64)
        kernel, width, shared = loss_kernel(self.xp.cuda.Device().id)
        grid = -(-TILE * tiles_x // width), -(-TILE * tiles_y // LOSS_HEIGHT)
        values = 3 * camera.width * camera.height
        run(kernel, grid, width * LOSS_HEIGHT // LOSS_PIXELS, (
            image, photo, np.int32(camera.width), np.int32(camera.height), tiles,
            *map(np.int32, bounds), np.float32((1 - ssim_weight) / values),
            np.float32(ssim_weight / values), gradient, sums,
        ), shared)
        return gradient, sums

    def pack(self, pixels, table, count, half=False, scale=1.0):
        """See Backend.pack. Raises ValueError for wrong shapes or types."""
        planes = self._check_pieces("pixels", pixels, table, half)
        items, kind = stream_items(self.real, planes, half)
        stream = self.xp.empty(items * count, kind)
        if len(table) and half:
            run(cuda_module.kernel("pack.cu", "pack_half"), (len(table),), THREADS,
                (pixels, table, np.float32(scale), stream))
        elif len(table):
            run(cuda_module.kernel("pack.cu", "pack"), (len(table),), THREADS,
                (pixels, np.int32(planes), table, stream))
        return stream

    def unpack(self, stream, table, out, half=False, scale=1.0):
        """See Backend.unpack. Raises ValueError for wrong shapes or types."""
        planes = self._check_pieces("out", out, table, half)
        check_array("stream", stream, (None,), stream_items(self.real, planes, half)[1])
        if len(table) and half:
            run(cuda_module.kernel("pack.cu", "unpack_half"), (len(table),), THREADS,
                (stream, table, np.float32(scale), out))
        elif len(table):
            run(cuda_module.kernel("pack.cu", "unpack"), (len(table),), THREADS,
                (stream, np.int32(planes), table, out))

    def _check_pieces(self, name, tiles, table, half):
        check_array(name, tiles, (None, 4 if half else None, PIXELS), self.real)
        check_array("table", table, (None, 2), np.int64)
        return tiles.shape[1]
