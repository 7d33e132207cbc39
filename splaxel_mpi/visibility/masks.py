"""Which tiles of which views this rank's cells need not draw: one bit a tile, in host memory.

Each masked tile keeps one byte besides: how little light the cell let through when it was last
drawn there (paper section 8.2, its consumption budget).
"""

import zlib
from dataclasses import dataclass

import numpy as np

from ..backends.host_library import call, suffix

# Levels of an octave of transmittance, so that a byte reaches from 1 to 2^-31.9 in steps of 9 %.
STEPS = 8
LEAST = 2.0 ** -(255 / STEPS)


def saturated_tiles(tiles, saturated, passed):
    """Those of the tiles of some cells that are saturated, and their levels.

    tiles: per cell (n,) int32; saturated: (n,) bool; passed: (n,) real, transmittances 0 to 1.
    Returns per cell (tiles, levels); levels are uint8, rounded up in transmittance.
    """
    if not tiles:
        return []
    sizes = np.array([len(part) for part in tiles], np.int64)
    tiles, saturated, passed = map(np.concatenate, (tiles, saturated, passed))
    levels, ends = np.empty(len(tiles), np.uint8), np.empty(len(sizes), np.int64)
    call(f"spx_prune_{suffix(passed.dtype)}", tiles, saturated, passed, sizes, len(sizes),
         float(STEPS), LEAST, levels, ends)
    ends = ends.tolist()
    return [(tiles[a:b], levels[a:b]) for a, b in zip([0, *ends], ends)]


def transmittance_of(level):
    """What a level was made of, or a little more: float64."""
    return 2.0 ** (np.asarray(level, np.float64) / -STEPS)


def tree_id(tree):
    """A number that tells trees apart: masks mean nothing for other cells."""
    parts = (tree.axis, tree.split, tree.left, tree.right)
    return zlib.crc32(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))


@dataclass
class Mask:
    """Masked tiles of one (view, cell)."""

    bits: np.ndarray  # (ceil(tile_count / 8),) uint8, row-major tiles as packbits has them
    levels: np.ndarray  # (masked,) uint8, of the masked tiles in ascending order

    def rows(self, count):
        """Whether each of the view's tiles is masked, (count,) bool, and its level, (count,)
        uint8, 0 where it is not."""
        masked = np.unpackbits(self.bits, count=count).astype(bool)
        levels = np.zeros(count, np.uint8)
        levels[masked] = self.levels
        return masked, levels


class Masks:
    """Mask by (view index, cell), for the cells of one rank."""

    def __init__(self):
        self.kept = {}  # (view, cell) -> Mask with at least one tile
        self.idle = set()  # (view, cell) of which all that was drawn is masked

    def clear(self):
        """Forget all: every tile is live."""
        self.kept.clear()
        self.idle.clear()

    def get(self, view, cell):
        """Mask of a (view, cell), None where every tile is live."""
        return self.kept.get((view, cell))

    def add(self, view, cell, tiles, levels, count, live):
        """Mask some more tiles. levels: uint8 of each of them; count: tiles of the view; live:
        whether the cell still draws anything there."""
        mask = self.kept.get((view, cell))
        if len(tiles):
            mask = self.kept[view, cell] = _changed(mask, count, tiles, levels)[0]
        if live or mask is None:
            self.idle.discard((view, cell))
        else:
            self.idle.add((view, cell))

    def remove(self, view, cell, tiles):
        """Make tiles live again."""
        mask = self.kept.get((view, cell))
        if mask is None:
            return
        mask, changed = _changed(mask, 8 * len(mask.bits), tiles, None)
        if changed:
            self.idle.discard((view, cell))
        if len(mask.levels):
            self.kept[view, cell] = mask
        else:
            del self.kept[view, cell]

    def state(self):
        """Arrays for a checkpoint, by name."""
        keys = sorted(self.kept)
        masks = [self.kept[key] for key in keys]
        rows = [
            (*key, len(mask.bits), len(mask.levels), key in self.idle)
            for key, mask in zip(keys, masks)
        ]
        none = [np.zeros(0, np.uint8)]
        return dict(
            mask_entries=np.array(rows, np.int64).reshape(-1, 5),
            mask_bits=np.concatenate(none + [mask.bits for mask in masks]),
            mask_levels=np.concatenate(none + [mask.levels for mask in masks]),
        )

    def restore(self, state, cells, cameras):
        """Take what state() gave. cells: this rank's; cameras: of all views, by index. False,
        and nothing is masked, where it does not fit them."""
        self.clear()
        entries = state.get("mask_entries", np.zeros((0, 5), np.int64))
        none = np.zeros(0, np.uint8)
        bits, levels = state.get("mask_bits", none), state.get("mask_levels", none)
        if not _fits(entries, bits, levels, cells, cameras):
            return False
        ends = entries[:, 2:4].cumsum(axis=0)
        for (view, cell, size, count, idle), (a, b) in zip(entries.tolist(), ends.tolist()):
            mask = Mask(bits[a - size : a].copy(), levels[b - count : b].copy())
            # all bits, so that none behind the last tile is set
            masked = np.flatnonzero(np.unpackbits(mask.bits))
            if len(masked) != count or (masked >= cameras[view].tile_count).any():
                self.clear()
                return False
            self.kept[view, cell] = mask
            if idle:
                self.idle.add((view, cell))
        return True


def _fits(entries, bits, levels, cells, cameras):
    """Whether the arrays of a checkpoint belong together and to these cells and views."""
    kinds = entries.dtype.kind, bits.dtype, levels.dtype
    if kinds != ("i", np.uint8, np.uint8) or entries.shape[1:] != (5,) or (entries < 0).any():
        return False
    view, cell, size, count, _ = entries.T
    if not (np.isin(cell, list(cells)).all() and (view < len(cameras)).all()):
        return False
    expected = [-(-cameras[v].tile_count // 8) for v in view.tolist()]
    return bool(
        np.array_equal(size, expected) and size.sum() == len(bits) and count.sum() == len(levels)
    )


def _changed(mask, count, tiles, levels):
    """(Mask in which tiles have new levels, or are live where levels is None; how many of them
    were masked). mask: Mask or None; count: tiles of the view. Raises IndexError for others."""
    tiles = np.ascontiguousarray(tiles, np.int32)
    old = (None, None, 0) if mask is None else (mask.bits, mask.levels, len(mask.levels))
    bits, kept = np.empty(-(-count // 8), np.uint8), np.empty(count, np.uint8)
    changed = np.empty(1, np.int64)
    size = call("spx_change_mask", *old, count, tiles, levels, len(tiles), bits, kept, changed)
    if size < 0:
        raise IndexError(f"a mask or its change does not fit {count} tiles")
    return Mask(bits, kept[:size].copy()), int(changed[0])
