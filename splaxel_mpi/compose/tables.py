"""What a rank sends, gets and composes of a chunk of views, as tables for kernels.

Bitmaps tell every rank what comes from whom, so nothing but pixels travels (paper section 4.3,
design section 6). Two calls compute the tables of all views (cuda_src/host/routes.cpp), one copy
brings them to the device.
"""

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..backends.host_library import address, call
from ..partition.order import visibility_orders
from ..visibility.tiles import SSIM_REACH


@dataclass
class Route:
    """Pieces of tiles in the order of a stream, rank after rank; see backends.pieces."""

    table: np.ndarray  # (k, 2) int64, on the device
    host: np.ndarray  # the same on the host
    pieces: np.ndarray  # (ranks,) int64, to or from each rank
    pixels: np.ndarray  # (ranks,) int64 of these


@dataclass
class Tables:
    """Tables of a chunk.

    Partial tiles are rows of one pool: own ones first, view after view and cell after cell, then
    those that arrive, rank after rank, from each by view and cell. The image has a row for each
    tile that this rank composes or gets strips of, view after view.
    """

    rows: int  # of the pool
    own: int  # rows of the pool that are this rank's own
    bounds: list  # where own rows of each (view, local cell) begin, and the end of the last
    own_ends: list  # where own rows of each view begin, and the end
    ends: list  # where rows of the image of each view begin, and the end
    sent: Route  # rows of the pool
    got: Route
    halo_sent: Route  # rows of the image
    halo_got: Route
    tiles: list  # per view (n,) int32 ascending on the host, the rows of the image
    places: list  # per view (layers,) int32 ascending: its layers' places in visibility order
    # (rows of the image, layers) int32, rows of the pool front to back, -1 for none and in tiles
    # that are not composed here
    slots: np.ndarray
    device_tiles: np.ndarray  # (rows of the image,) int32, tiles on the device
    own_tiles: np.ndarray  # (own,) int32 on the device, none where views have no masks
    host_slots: np.ndarray  # slots on the host

    def split(self, rows):
        """Own rows of an array like the pool: per view a list over local cells."""
        pieces = [rows[a:b] for a, b in zip(self.bounds, self.bounds[1:])]
        cells = len(pieces) // len(self.tiles)
        return [pieces[v * cells : (v + 1) * cells] for v in range(len(self.tiles))]


def make_tables(backend, layout, works, held, demands):
    """Tables of a chunk.

    works: list of ViewWork; held: per view (cells, tile_count) bool; demands: per view
    visibility.demand.Demand. Raises ValueError for arrays of other shapes or types.
    """
    chunk, rows, composed, pieces = _count(layout, works, held, demands)
    count, layers = int(composed.sum()), int((rows > 0).sum(1).max())
    local = rows[:, layout.local.start : layout.local.stop]
    bounds, own_ends, ends, steps = (
        [0, *accumulate(numbers.tolist())]
        for numbers in (local.ravel(), local.sum(1), composed, pieces.sum(1))
    )
    listed = bounds[-1] if works[0].masks is not None else 0
    host, parts = _memory(steps[-1], count, layers, listed)
    table, slots, tiles, own_tiles = parts(host)
    if listed:
        np.concatenate([part.held for work in works for part in work.parts], out=own_tiles)
    pixels, depth = np.empty((4, layout.ranks), np.int64), np.empty(len(works), np.int64)
    places = np.empty(rows.shape, np.int32)
    orders = visibility_orders(layout.tree, [work.camera.center for work in works])
    call("spx_chunk_tables", *chunk, rows, composed, orders, SSIM_REACH, layers, table, pixels,
         tiles, slots, places, depth)
    device_table, *others = parts(backend.to_device(host))
    routes = [
        Route(device_table[a:b], table[a:b], *of_ranks)
        for a, b, *of_ranks in zip(steps, steps[1:], pieces, pixels)
    ]
    return Tables(
        int(rows.sum()), bounds[-1], bounds, own_ends, ends, *routes,
        [tiles[a:b] for a, b in zip(ends, ends[1:])],
        [row[:number] for row, number in zip(places, depth)], *others, slots,
    )


def _count(layout, works, held, demands):
    """(arrays that both calls take; rows of the pool of each (view, cell); rows of the image of
    each view; pieces of the four routes, (4, ranks))."""
    cameras, strips = [work.camera for work in works], [d.halo is not None for d in demands]
    sizes = np.array([(camera.width, camera.height) for camera in cameras], np.int64)
    words = -(-max(camera.tile_count for camera in cameras) // 64)
    shape = np.array([len(works), layout.cells, layout.ranks, layout.rank, words], np.int64)
    kinds = (
        (layout.cells, held),
        (layout.ranks, [demand.needed for demand in demands]),
        (layout.ranks, [d.supervised if wanted else None for d, wanted in zip(demands, strips)]),
        (layout.ranks, [demand.halo for demand in demands]),
    )
    addresses = np.array([
        _address(array, (rows, camera.tile_count))
        for rows, arrays in kinds
        for camera, array in zip(cameras, arrays)
    ], np.uint64)
    bits = np.empty((len(works), layout.cells + 3 * layout.ranks, words), np.uint64)
    rows, composed = np.empty((len(works), layout.cells), np.int64), np.empty(len(works), np.int64)
    pieces = np.zeros((4, layout.ranks), np.int64)
    call("spx_chunk_counts", shape, sizes, layout.owner, addresses, bits, rows, composed, pieces)
    return (shape, sizes, layout.owner, bits), rows, composed, pieces


def _address(array, shape):
    """Where an array of sets of tiles lies, 0 for None. Raises ValueError for another shape or
    type."""
    if array is None:
        return 0
    if array.shape != shape or array.dtype != bool:
        raise ValueError(f"expected tiles of shape {shape}, got {array.dtype} {array.shape}")
    return address(array)


def _memory(pieces, count, layers, own):
    """A flat int64 array for the table of all routes, slots, tiles and own tiles, and a function
    that gives these parts of an array like it."""
    ends = list(accumulate((2 * pieces, *((n + 1) // 2 for n in (count * layers, count, own)))))

    def parts(memory):
        slots, tiles, own_tiles = (memory[a:b].view(np.int32) for a, b in zip(ends, ends[1:]))
        return (memory[: ends[0]].reshape(pieces, 2),
                slots[: count * layers].reshape(count, layers), tiles[:count], own_tiles[:own])

    return np.empty(ends[-1], np.int64), parts
