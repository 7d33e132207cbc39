"""Saturation: cells leave the tiles that are dark before light reaches them (design section 7).

Who composes a tile knows P_m, the transmittance in front of cell m. Where it is below a threshold
in all pixels, what m draws changes the image by less than that, and the tile is masked for m: at
the next visit of the view it is not drawn there, sent, supervised, or reached by ghosts. So are
those behind m.

Before a chunk is drawn ranks tell each other the masks of its views, in one collective: who sends
ghosts must know the targets' live tiles. To keep the masks of all cells on every rank instead would
take 6 GB for 64 cells and 100,000 views.

What is masked in a step counts from the next step on, so results do not depend on chunks.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import UserError
from ..mpi.pipeline import alone
from ..partition.order import visibility_order
from .masks import Mask, Masks, level_of, transmittance_of, tree_id

KIND = "masks"  # under which an exchange counts the traffic
NEVER, RESIDUAL, ALWAYS = "never", "residual", "always"


@dataclass
class ViewMasks:
    """Masks of all cells for one view, the same on every rank."""

    index: int  # of the view
    masked: np.ndarray  # (cells, tile_count) bool
    levels: np.ndarray  # (cells, tile_count) uint8, see masks.level_of
    threshold: float  # transmittance below which a tile is saturated

    def live(self, cell):
        """(tile_count,) uint8, 0 where the cell draws nothing; None where all is live."""
        masked = self.masked[cell]
        return (~masked).astype(np.uint8) if masked.any() else None


class Saturation:
    """Masks of one rank and what is to be told about them.

    threshold: see ViewMasks; reevaluate: when masked tiles are looked at again.
    - never: masks stay until ``clear``;
    - residual: at each visit the transmittance that the live cells leave is compared with the
      threshold. Where it is above, masked cells are taken back front to back until what is left,
      less what each of them let through when it was last drawn, falls below (paper 8.2 i);
    - always: all masked cells that receive more than the threshold now are taken back, and the
      next visit finds out which of them are saturated (8.2 iii).
    Who composes a tile tells the cells' ranks with the next chunk's masks: nobody waits for it.
    """

    def __init__(self, threshold, reevaluate):
        self.threshold, self.reevaluate = threshold, reevaluate
        self.masks = Masks()
        self.found, self.wakes = [], []  # of the step under way
        self.pending = _no_notices()  # not yet told to other ranks
        self.woken = _no_notices()  # of all ranks, told in the step under way
        self.since, self.total = np.zeros(3, np.int64), np.zeros(3, np.int64)

    def clear(self):
        """Forget all masks. Every rank must do it at the same time."""
        self.masks.clear()
        self.found, self.wakes = [], []
        self.pending, self.woken = _no_notices(), _no_notices()

    def participants(self, view, cells):
        """Which of this rank's cells have anything left to draw of a view: (cells,) bool. True
        for what has not been seen yet. view: index; cells: their numbers."""
        return np.array([(view, cell) not in self.masks.idle for cell in cells], bool)

    # ---- before a chunk is drawn ----

    def share(self, works, indices, exchange, layout):
        """Fill works[v].masks; indices: of the views. Collective; a generator, see mpi.pipeline.
        """
        message = self._message(works, indices, layout.local)
        self.pending = _no_notices()
        pending = exchange.start_allgather(KIND, np.array([len(message)], np.int64))
        yield
        counts = pending.wait().ravel()
        pending = exchange.start_allgatherv(KIND, message, counts)
        yield
        flat = pending.wait()
        readers = [_Reader(part) for part in np.split(flat, np.cumsum(counts)[:-1])]
        notices = np.concatenate([reader.notices() for reader in readers])
        self._wake(notices, layout.local)
        # a chunk that is drawn beside this one told its masks before they were known
        self.woken = np.concatenate([self.woken, notices])
        for work, index in zip(works, indices):
            shape = layout.cells, work.camera.tile_count
            work.masks = ViewMasks(
                index, np.zeros(shape, bool), np.zeros(shape, np.uint8), self.threshold
            )
        for cell, rank in enumerate(layout.owner):
            for work in works:
                count = work.camera.tile_count
                mask = readers[rank].mask(count)
                if mask is not None:
                    work.masks.masked[cell], work.masks.levels[cell] = mask.rows(count)
        for work in works:
            _, cell, tile = self.woken[self.woken[:, 0] == work.masks.index].T
            work.masks.masked[cell, tile] = False

    def _message(self, works, indices, cells):
        """What this rank tells: notices, then masks cell after cell, view after view."""
        parts = [_bytes(np.array([len(self.pending)], np.int64)), _bytes(self.pending)]
        for cell in cells:
            for index in indices:
                mask = self.masks.get(index, cell)
                parts.append(_bytes(np.array([len(mask.levels) if mask else 0], np.int32)))
                if mask:
                    parts += [mask.bits, mask.levels]
        return np.concatenate(parts)

    def _wake(self, notices, cells):
        """Make tiles of own cells live again."""
        mine = notices[np.isin(notices[:, 1], list(cells))]
        keys, place = np.unique(mine[:, :2], axis=0, return_inverse=True)
        for k, (view, cell) in enumerate(keys.tolist()):
            self.masks.remove(view, cell, mine[place.ravel() == k, 2])

    # ---- after its gradients are known ----

    def judge(self, works, composed, layout, backend):
        """Learn from what the compositor's backward pass has found out (parts[k].saturated and
        Composed.residuals). Local."""
        for work, view in zip(works, composed):
            for part in work.parts:
                self._prune(work, part, backend)
            self._reconsider(work, view, layout)

    def _prune(self, work, part, backend):
        """Keep the tiles that have turned out saturated in one (view, cell)."""
        rows = np.flatnonzero(part.saturated).astype(np.int32)
        self.since[0] += len(part.held)
        tiles, levels = part.held[rows], np.zeros(0, np.uint8)
        if len(rows):
            place, where = backend.to_device(rows[:, None]), backend.to_device(tiles)
            passed = backend.residuals(part.partial.pixels, place, where, work.camera)
            levels = level_of(backend.to_host(passed)[:, 1])
        live, masked = len(rows) < len(part.held), work.masks.masked[part.cell].any()
        if len(rows) or masked:
            count = work.camera.tile_count
            self.found.append((work.masks.index, part.cell, tiles, levels, count, live))

    def _reconsider(self, work, view, layout):
        """Compare what masked cells receive now with the threshold, in the tiles that this rank
        counts: each tile of a view at one rank."""
        masks, rows = work.masks, np.flatnonzero(view.counted[view.tiles])
        tiles = view.tiles[rows]
        masked, left = masks.masked[:, tiles], np.ones(len(tiles))
        if not masked.any():
            return
        order = visibility_order(layout.tree, work.camera.center)
        for place, cell in enumerate(order.tolist()):
            # live layers in front of it
            passed = view.residuals[rows, np.searchsorted(view.places, place)]
            opened = masked[cell] & (passed >= self.threshold)
            flipped = masked[cell] & (passed * left >= self.threshold)
            left[flipped] *= transmittance_of(masks.levels[cell, tiles[flipped]])
            self.since[1:] += masked[cell].sum(), flipped.sum()
            woken = {NEVER: [], RESIDUAL: tiles[flipped], ALWAYS: tiles[opened]}[self.reevaluate]
            notices = np.empty((len(woken), 3), np.int32)
            notices[:, 0], notices[:, 1], notices[:, 2] = masks.index, cell, woken
            self.wakes.append(notices)

    def commit(self):
        """A step ends: what was found in it counts from now on. Local."""
        for found in self.found:
            self.masks.add(*found)
        self.pending = np.concatenate([self.pending, *self.wakes])
        self.found, self.wakes, self.woken = [], [], _no_notices()

    # ---- figures ----

    def take_counts(self):
        """(Tile, cell) pairs of this rank since the last call: (3,) int64. Those drawn; masked
        ones, each seen by one rank; and flips among these (paper 8.2: see RESIDUAL)."""
        out, self.since = self.since, np.zeros(3, np.int64)
        self.total += out
        return out

    def describe(self, exchange):
        """One line on what take_counts has handed out so far. Collective."""
        drawn, masked, flipped = exchange.allreduce("figures", self.total).tolist()
        return (
            f"saturation: {masked / max(drawn + masked, 1):.1%} of the tiles of cells were masked, "
            f"flip rate {flipped / max(masked, 1):.2%}"
        )

    # ---- checkpoints ----

    def state(self, exchange, layout):
        """This rank's arrays for a checkpoint, by name. Collective."""
        alone(self.share([], [], exchange, layout))
        facts = np.array([[tree_id(layout.tree), self.threshold]])
        return dict(self.masks.state(), mask_facts=facts)

    def restore(self, state, layout, cameras):
        """Take what state() gave; False where there is nothing, or it is of another tree or
        threshold or does not fit: then nothing is masked. cameras: of all views."""
        facts = state.get("mask_facts", np.zeros((0, 2)))
        if not np.array_equal(facts, [[tree_id(layout.tree), self.threshold]]):
            return False
        return self.masks.restore(state, layout.local, cameras)


def make_saturation(settings, cells, stop):
    """Saturation of the settings saturation, None where it is off or a single cell has nothing
    before it. stop: render.stop. Raises UserError for a threshold below it: pixels end there, and
    none would ever be saturated."""
    if not settings.enabled or cells == 1:
        return None
    if settings.threshold < stop:
        raise UserError(
            f"saturation.threshold={settings.threshold:g} is below render.stop={stop:g}: raise it "
            "or lower render.stop"
        )
    return Saturation(settings.threshold, settings.reevaluate)


class _Reader:
    """Reads what one rank has told, in its order."""

    def __init__(self, data):
        self.data, self.start = data, 0

    def take(self, count, dtype):
        """The next values, copied so that they are aligned."""
        size = count * np.dtype(dtype).itemsize
        self.start += size
        return np.frombuffer(self.data[self.start - size : self.start].tobytes(), dtype)

    def notices(self):
        """(n, 3) int32: view, cell, tile."""
        return self.take(3 * int(self.take(1, np.int64)[0]), np.int32).reshape(-1, 3)

    def mask(self, tile_count):
        """Mask of the next (cell, view), or None."""
        count = int(self.take(1, np.int32)[0])
        if not count:
            return None
        return Mask(self.take(-(-tile_count // 8), np.uint8), self.take(count, np.uint8))


def _bytes(array):
    return np.frombuffer(array.tobytes(), np.uint8)


def _no_notices():
    return np.zeros((0, 3), np.int32)
