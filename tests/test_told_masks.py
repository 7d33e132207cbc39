"""Masks as ranks tell them and look at them again, against plain loops over random ones."""

from types import SimpleNamespace

import numpy as np
import pytest
from exchanges import run_ranks
from tables import chain_of

from splaxel_mpi.mpi.pipeline import alone
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.visibility.masks import Masks, transmittance_of
from splaxel_mpi.visibility.saturation import Saturation, ViewMasks

SIZES = [(97, 61), (5, 300), (1040, 50), (16, 16)]
THRESHOLD = 1e-4


def camera_of(size):
    return Camera(*size, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))


@pytest.fixture
def random():
    return np.random.default_rng(11)


@pytest.mark.parametrize("count", [1, 8, 61, 64, 200])
def test_masks_change_as_dictionaries_do(random, count):
    masks, want = Masks(), {}
    for step in range(60):
        tiles = random.integers(0, count, random.integers(0, count + 1))
        if step % 3:
            tiles = np.unique(tiles)  # a tile has one level
            levels = random.integers(0, 256, len(tiles)).astype(np.uint8)
            masks.add(3, 1, tiles, levels, count, live=False)
            want.update(zip(tiles.tolist(), levels.tolist()))
            assert ((3, 1) in masks.idle) == bool(want)
        else:
            idle = (3, 1) in masks.idle and not any(tile in want for tile in tiles.tolist())
            masks.remove(3, 1, tiles)
            for tile in tiles.tolist():
                want.pop(tile, None)
            assert ((3, 1) in masks.idle) == idle
        assert ((3, 1) in masks.kept) == bool(want)
        if want:
            masked, levels = masks.get(3, 1).rows(count)
            assert dict(zip(np.flatnonzero(masked).tolist(), levels[masked].tolist())) == want
            assert len(masks.get(3, 1).bits) == -(-count // 8)
    for wrong in (-1, 8 * -(-count // 8)):
        with pytest.raises(IndexError, match="does not fit"):
            masks.add(3, 1, [wrong], np.ones(1, np.uint8), count, live=True)


def random_masks(random, cells, cameras):
    """Levels by (view, cell), each {tile: level}, of some cells in some views; none masks nothing
    anywhere."""
    out = {}
    for key in np.ndindex(len(cameras), cells):
        tiles = np.flatnonzero(random.random(cameras[key[0]].tile_count) < random.random())
        if len(tiles) and random.random() < 0.6:
            out[key] = dict(zip(tiles.tolist(), random.integers(0, 256, len(tiles)).tolist()))
    return out


@pytest.mark.parametrize("cells, ranks", [(2, 1), (2, 3), (5, 2), (4, 4)])
@pytest.mark.parametrize("told", ["all", "notices", "nothing"])
def test_all_ranks_hear_all_masks(random, cells, ranks, told):
    """Of the views of a chunk, one of them twice; with notices of these views and of others."""
    cameras = [camera_of(size) for size in SIZES]
    kept = random_masks(random, cells, cameras) if told == "all" else {}
    indices, tree = [2, 0, 2], chain_of(cells)
    notices = [
        np.array([(v, c, t) for v, c in np.ndindex(4, cells) if random.random() < 0.5
                  for t in random.integers(0, cameras[v].tile_count, 5)], np.int32).reshape(-1, 3)
        for _ in range(ranks)
    ]
    if told == "nothing":
        notices = [rows[:0] for rows in notices]
    woken = {tuple(row) for rows in notices for row in rows.tolist()}

    def check(exchange):
        layout = Layout(tree, exchange.rank, ranks, np.zeros(2, np.int64))
        saturation = Saturation(THRESHOLD, "residual")
        for (view, cell), levels in kept.items():
            if cell in layout.local:
                tiles, values = np.array(list(levels.items())).T
                saturation.masks.add(view, cell, tiles, values.astype(np.uint8),
                                     cameras[view].tile_count, live=False)
        saturation.pending = notices[exchange.rank]
        works = [SimpleNamespace(camera=cameras[index]) for index in indices]
        alone(saturation.share(works, indices, exchange, layout))
        for index, work in zip(indices, works):
            for cell in range(cells):
                levels = kept.get((index, cell), {})
                live = {tile: level for tile, level in levels.items()
                        if (index, cell, tile) not in woken}
                masked = work.masks.masked[cell]
                assert np.flatnonzero(masked).tolist() == sorted(live)
                assert [work.masks.levels[cell, tile] for tile in live] == list(live.values())
                assert work.masks.shown[cell] == bool(live)
                mask = work.masks.live(cell)
                assert (mask is None) if not live else (mask.tolist() == (~masked).tolist())
        for (view, cell), levels in kept.items():  # own masks know, too
            if cell in layout.local:
                live = [tile for tile in levels if (view, cell, tile) not in woken]
                mask = saturation.masks.get(view, cell)
                count = cameras[view].tile_count
                found = [] if mask is None else np.flatnonzero(mask.rows(count)[0]).tolist()
                assert found == sorted(live)
                assert ((view, cell) in saturation.masks.idle) == (len(live) == len(levels))
        assert not len(saturation.pending)
        sent = exchange.calls.get(("allgatherv", "masks"), 0)
        assert sent == (told != "nothing")

    run_ranks(ranks, check)


def test_a_message_that_does_not_fit_is_refused(random):
    cameras = [camera_of(SIZES[0])] * 2
    layout = Layout(chain_of(2), 0, 1, np.zeros(2, np.int64))
    works = [SimpleNamespace(camera=camera) for camera in cameras]

    def check(exchange):
        for change in (lambda data: data[:-1], lambda data: data[:20], lambda data: data[:3],
                       lambda data: np.concatenate([data[:24], data[24:] ^ 1])):
            saturation = Saturation(THRESHOLD, "residual")
            saturation.masks.add(0, 1, np.arange(9), np.ones(9, np.uint8), 28, live=True)
            message = change(saturation._message([0, 1], layout.local))
            saturation._message = lambda indices, cells: message
            with pytest.raises(ValueError, match="do not fit the views"):
                alone(saturation.share(works, [0, 1], exchange, layout))

    run_ranks(1, check)


def looked_at(masks, view, order, mode):
    """What Saturation._reconsider counts and tells, tile by tile."""
    counts, notices = np.zeros(2, np.int64), []
    left = dict.fromkeys(view.tiles.tolist(), 1.0)
    threshold = view.residuals.dtype.type(THRESHOLD)
    for place, cell in enumerate(order):
        layer = sum(other < place for other in view.places)
        for row, tile in enumerate(view.tiles.tolist()):
            if not (view.counted[tile] and masks.masked[cell, tile]):
                continue
            passed = view.residuals[row, layer]
            flipped = float(passed) * left[tile] >= THRESHOLD
            if flipped:
                left[tile] *= transmittance_of(masks.levels[cell, tile])
            counts += 1, flipped
            if {"never": False, "residual": flipped, "always": passed >= threshold}[mode]:
                notices.append([masks.index, cell, tile])
    return counts, notices


@pytest.mark.parametrize("mode", ["never", "residual", "always"])
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_masked_tiles_that_receive_light(random, mode, real):
    for size in SIZES:
        count, cells = camera_of(size).tile_count, 5
        tiles = np.flatnonzero(random.random(count) < 0.7).astype(np.int32)
        places = np.flatnonzero(random.random(cells) < 0.6).astype(np.int32)
        passed = -np.sort(-10 ** random.uniform(-6, 0, (len(tiles), len(places) + 3)), axis=1)
        passed[random.random(passed.shape) < 0.1] = THRESHOLD
        view = SimpleNamespace(tiles=tiles, places=places, residuals=passed.astype(real),
                               counted=random.random(count) < 0.6)
        masked = random.random((cells, count)) < 0.4
        levels = np.where(masked, random.integers(0, 60, masked.shape), 0).astype(np.uint8)
        masks = ViewMasks(7, masked, levels, masked.any(1), THRESHOLD)
        order = random.permutation(cells).astype(np.int32)
        saturation = Saturation(THRESHOLD, mode)
        saturation._reconsider(masks, view, order)
        counts, notices = looked_at(masks, view, order.tolist(), mode)
        assert saturation.since[1:].tolist() == counts.tolist()
        (told,) = saturation.wakes
        assert told.tolist() == notices
