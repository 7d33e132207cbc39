"""Host kernels on pixels: composition, loss, optimizer, packing (contract in base.py)."""

import numpy as np

from ..scene.camera import TILE
from .checks import check_array, check_loss
from .host_library import call, suffix

PIXELS = TILE * TILE


def check_range(name, values, low, high):
    """Raise ValueError unless all integers lie in low to high."""
    if len(values) and (values.min() < low or values.max() > high):
        raise ValueError(f"{name} must lie in {low} to {high}, got {values.min()} to "
                         f"{values.max()}")


class HostPixels:
    """Mixin of HostBackend: compose, compose_backward, residuals, loss, adam_groups, pack,
    unpack."""

    def _check_layers(self, pool, slots):
        check_array("pool", pool, (None, 4, PIXELS), self.real)
        check_array("slots", slots, (None, None), np.int32)
        check_range("slots", slots.ravel(), -1, len(pool) - 1)

    def _background(self, background):
        background = np.ascontiguousarray(background, self.real)
        check_array("background", background, (3,), self.real)
        return background

    def compose(self, pool, slots, background):
        """See Backend.compose. Raises ValueError for wrong shapes, types or slots."""
        self._check_layers(pool, slots)
        tiles, layers = slots.shape
        image = np.empty((tiles, 3, PIXELS), self.real)
        transmittance = np.empty((tiles, PIXELS), self.real)
        call(f"spx_compose_{suffix(self.real)}", pool, slots, tiles, layers,
             self._background(background), image, transmittance, self.threads)
        return image, transmittance

    def compose_backward(self, pool, slots, background, gradient, wanted, count):
        """See Backend.compose_backward. A row of the result is wanted by one layer at most.

        Layers that have nothing (slot -1) give nothing. Raises ValueError for wrong shapes,
        types, slots or rows.
        """
        self._check_layers(pool, slots)
        tiles, layers = slots.shape
        check_array("gradient", gradient, (tiles, 3, PIXELS), self.real)
        check_array("wanted", wanted, (tiles, layers), np.int32)
        check_range("wanted", wanted.ravel(), -1, count - 1)
        out = np.zeros((count, 4, PIXELS), self.real)
        call(f"spx_compose_backward_{suffix(self.real)}", pool, slots, tiles, layers,
             self._background(background), gradient, wanted, out, self.threads)
        return out

    def residuals(self, pool, slots, tiles, camera):
        """See Backend.residuals. Raises ValueError for wrong shapes, types, slots or tiles."""
        self._check_layers(pool, slots)
        count, layers = slots.shape
        check_array("tiles", tiles, (count,), np.int32)
        check_range("tiles", tiles, 0, camera.tile_count - 1)
        out = np.empty((count, layers + 1), self.real)
        call(f"spx_residuals_{suffix(self.real)}", pool, slots, count, layers, tiles,
             camera.width, camera.height, out, self.threads)
        return out

    def loss(self, image, photo, camera, tiles, rect, ssim_weight):
        """See Backend.loss. Tiles outside rect are not supervised.

        Raises ValueError for wrong shapes or types and a rect outside the image.
        """
        bounds = check_loss(self.real, image, photo, camera, tiles, rect)
        gradient = np.zeros_like(image)
        sums = np.zeros((camera.tile_count, 3))
        call(
            f"spx_loss_{suffix(self.real)}", image, photo, camera.width, camera.height, tiles,
            *bounds, float(ssim_weight), gradient, sums, self.threads,
        )
        return gradient, sums

    def adam_groups(self, groups, seen, betas, epsilon, step, scale, clear=False, broken=None):
        """See Backend.adam_groups.

        Raises ValueError for wrong shapes or types and step below 1.
        """
        if step < 1:
            raise ValueError(f"step must be 1 or more, got {step}")
        rows = len(groups[0][0])
        if seen is not None:
            check_array("seen", seen, (rows,), np.uint8)
        if broken is not None:
            check_array("broken", broken, (len(groups),), np.int32)
        for *arrays, _ in groups:
            shape = (rows, arrays[0].shape[-1])
            for name, array in zip(("parameter", "gradient", "first", "second"), arrays):
                check_array(name, array, shape, self.real)
        for k, (*arrays, rate) in enumerate(groups):
            flag = None if broken is None else broken[k : k + 1]
            call(
                f"spx_adam_{suffix(self.real)}", rows, arrays[0].shape[1], *arrays, seen,
                float(rate), float(betas[0]), float(betas[1]), float(epsilon), float(step),
                float(scale), int(clear), flag, self.threads,
            )

    def _stream_length(self, tiles, camera):
        tiles_x, _ = camera.tiles
        row, column = np.divmod(tiles.astype(np.int64), tiles_x)
        wide = np.minimum(TILE, camera.width - TILE * column)
        high = np.minimum(TILE, camera.height - TILE * row)
        return 4 * int((wide * high).sum())

    def pack(self, pixels, index, tiles, camera):
        """See Backend.pack. Raises ValueError for wrong shapes or types and indices out of
        range."""
        check_array("pixels", pixels, (None, 4, PIXELS), self.real)
        check_array("index", index, (None,), np.int32)
        check_array("tiles", tiles, (len(index),), np.int32)
        check_range("index", index, 0, len(pixels) - 1)
        check_range("tiles", tiles, 0, camera.tile_count - 1)
        stream = np.empty(self._stream_length(tiles, camera), self.real)
        call(f"spx_pack_{suffix(self.real)}", pixels, index, tiles, len(index), camera.width,
             camera.height, stream, self.threads)
        return stream

    def unpack(self, stream, tiles, camera, out):
        """See Backend.unpack; pixels outside the image get colour 0 and transmittance 1.

        Raises ValueError for wrong shapes or types, tiles out of range, and a stream that is
        not as long as its tiles.
        """
        check_array("tiles", tiles, (None,), np.int32)
        check_range("tiles", tiles, 0, camera.tile_count - 1)
        check_array("stream", stream, (self._stream_length(tiles, camera),), self.real)
        check_array("out", out, (len(tiles), 4, PIXELS), self.real)
        call(f"spx_unpack_{suffix(self.real)}", stream, tiles, len(tiles), camera.width,
             camera.height, out, self.threads)
