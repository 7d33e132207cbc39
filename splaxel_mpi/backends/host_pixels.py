"""Host kernels on pixels: composition, loss, optimizer, packing (contract in base.py)."""

import numpy as np

from ..scene.camera import TILE
from .checks import check_array, check_loss
from ..visibility.tiles import to_image, to_tiles
from .host_library import call, suffix
from .pieces import check_table, stream_items

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
        types or slots.
        """
        self._check_layers(pool, slots)
        tiles, layers = slots.shape
        check_array("gradient", gradient, (tiles, 3, PIXELS), self.real)
        check_array("wanted", wanted, (tiles, layers), np.int32)
        out = np.zeros((count, 4, PIXELS), self.real)
        call(f"spx_compose_backward_{suffix(self.real)}", pool, slots, tiles, layers,
             self._background(background), gradient, wanted, count, out, self.threads)
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

    def to_image(self, tiles, data, camera):
        """See Backend.to_image; zero where there is no tile."""
        return to_image(tiles, data, camera)

    def to_tiles(self, tiles, image, camera, out):
        """See Backend.to_tiles."""
        out[:] = to_tiles(tiles, image, camera)

    def share(self, sums, counted, values, out):
        """See Backend.share."""
        out[:] = sums[counted].sum(0) / values

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

    def pack(self, pixels, table, count, half=False, scale=1.0):
        """See Backend.pack. Raises ValueError for wrong shapes or types and pieces that do not
        fit."""
        planes = self._check_pieces("pixels", pixels, table, count, half)
        items, kind = stream_items(self.real, planes, half)
        stream = np.empty(items * count, kind)
        if half:
            call(f"spx_pack_half_{suffix(self.real)}", pixels, table, len(table), float(scale),
                 stream, self.threads)
        else:
            call(f"spx_pack_{suffix(self.real)}", pixels, planes, table, len(table), stream,
                 self.threads)
        return stream

    def unpack(self, stream, table, out, half=False, scale=1.0):
        """See Backend.unpack. Raises ValueError for wrong shapes or types and pieces that do not
        fit."""
        items, kind = stream_items(self.real, out.shape[1], half)
        check_array("stream", stream, (None,), kind)
        planes = self._check_pieces("out", out, table, len(stream) // items, half)
        if half:
            call(f"spx_unpack_half_{suffix(self.real)}", stream, table, len(table), float(scale),
                 out, self.threads)
        else:
            call(f"spx_unpack_{suffix(self.real)}", stream, planes, table, len(table), out,
                 self.threads)

    def _check_pieces(self, name, tiles, table, count, half):
        """Raise ValueError unless the pieces lie in the tiles and the stream. Returns the
        planes."""
        check_array(name, tiles, (None, 4 if half else None, PIXELS), self.real)
        check_array("table", table, (None, 2), np.int64)
        check_table(table, len(tiles), count)
        return tiles.shape[1]
