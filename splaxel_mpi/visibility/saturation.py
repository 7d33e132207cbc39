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

from ..backends.host_library import call, suffix
from ..errors import UserError
from ..mpi.pipeline import alone
from ..partition.order import visibility_orders
from .masks import Masks, saturated_tiles, transmittance_of, tree_id

KIND = "masks"  # under which an exchange counts the traffic
NEVER, RESIDUAL, ALWAYS = "never", "residual", "always"
# what masked tiles of each level let through
LIGHT = transmittance_of(np.arange(256))


@dataclass
class ViewMasks:
    """Masks of all cells for one view, the same on every rank."""

    index: int  # of the view
    masked: np.ndarray  # (cells, tile_count) bool
    levels: np.ndarray  # (cells, tile_count) uint8, see masks.saturated_tiles
    shown: np.ndarray  # (cells,) bool, whether any tile is masked
    threshold: float  # transmittance below which a tile is saturated

    def live(self, cell):
        """(tile_count,) uint8, 0 where the cell draws nothing; None where all is live."""
        return (~self.masked[cell]).view(np.uint8) if self.shown[cell] else None


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
        # (n, 3) int32 view, cell, tile: not yet told to other ranks; told by all ranks in the step
        # under way
        self.pending, self.woken = _no_notices(), _no_notices()
        self.since, self.total = np.zeros(3, np.int64), np.zeros(3, np.int64)
        self.room = _no_notices()

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
        message, self.pending = self._message(indices, layout.local), _no_notices()
        pending = exchange.start_allgather(KIND, np.array([len(message)], np.int64))
        yield
        sizes = pending.wait().ravel()
        pending = exchange.start_allgatherv(KIND, message, sizes) if sizes.any() else None
        yield
        flat = pending.wait() if pending else message
        counts = np.array([work.camera.tile_count for work in works], np.int64)
        masked, levels = (np.zeros(layout.cells * int(counts.sum()), np.uint8) for _ in range(2))
        notices = np.empty((len(flat) // 12 + 1, 3), np.int32)
        views = layout.cells, counts, len(works)
        told = call("spx_read_masks", flat, sizes, len(sizes), layout.owner, *views, masked,
                    levels, notices)
        if told < 0:
            raise ValueError("masks of another rank do not fit the views")
        self._wake(notices[:told], layout.local)
        # a chunk that is drawn beside this one told its masks before they were known
        self.woken = np.concatenate([self.woken, notices[:told]])
        shown = np.empty((len(works), layout.cells), bool)
        call("spx_wake", self.woken, len(self.woken), np.array(indices, np.int32), *views, masked,
             shown)
        start, masked = 0, masked.view(bool)
        for work, index, row in zip(works, indices, shown):
            end = start + layout.cells * work.camera.tile_count
            of_view = (array[start:end].reshape(layout.cells, -1) for array in (masked, levels))
            work.masks, start = ViewMasks(index, *of_view, row, self.threshold), end

    def _message(self, indices, cells):
        """What this rank tells: the number of notices, notices, the number of masked tiles of
        each cell and view, then masks cell after cell, view after view. Empty where there is
        nothing to tell."""
        masks = [self.masks.get(index, cell) for cell in cells for index in indices]
        told = [mask for mask in masks if mask is not None]
        if not told and not len(self.pending):
            return np.zeros(0, np.uint8)
        sizes = np.array([0 if mask is None else len(mask.levels) for mask in masks], np.int32)
        head = np.array([len(self.pending)], np.int64), self.pending.ravel(), sizes
        parts = [part.view(np.uint8) for part in head]
        for mask in told:
            parts += [mask.bits, mask.levels]
        return np.concatenate(parts)

    def _wake(self, notices, cells):
        """Make tiles of own cells live again."""
        mine = notices[(notices[:, 1] >= cells.start) & (notices[:, 1] < cells.stop)]
        if len(mine):
            borders = np.flatnonzero((np.diff(mine[:, :2], axis=0) != 0).any(1)) + 1
            for rows in np.split(mine, borders):
                self.masks.remove(*rows[0, :2].tolist(), rows[:, 2])

    # ---- after its gradients are known ----

    def judge(self, works, composed, layout):
        """Learn from what Compositor.judge has found out. Local."""
        self._prune(works)
        orders = visibility_orders(layout.tree, [work.camera.center for work in works])
        for work, view, order in zip(works, composed, orders):
            if work.masks.shown.any():
                self._reconsider(work.masks, view, order)

    def _prune(self, works):
        """Keep the tiles that have turned out saturated in each (view, cell)."""
        parts = [(work, part) for work in works for part in work.parts]
        found = saturated_tiles([part.held for _, part in parts],
                                [part.saturated for _, part in parts],
                                [part.through for _, part in parts])
        for (work, part), (tiles, levels) in zip(parts, found):
            self.since[0] += len(part.held)
            if len(tiles) or work.masks.shown[part.cell]:
                live, count = len(tiles) < len(part.held), work.camera.tile_count
                self.found.append((work.masks.index, part.cell, tiles, levels, count, live))

    def _reconsider(self, masks, view, order):
        """Compare what masked cells receive now with the threshold, in the tiles that this rank
        counts: each tile of a view at one rank."""
        residuals, (cells, tile_count) = view.residuals, masks.masked.shape
        room = cells * len(view.tiles)  # of notices: kept, since few of them are needed
        if len(self.room) < room:
            self.room = np.empty((room, 3), np.int32)
        when = (NEVER, RESIDUAL, ALWAYS).index(self.reevaluate)
        told = call(
            f"spx_reconsider_{suffix(residuals.dtype)}", view.tiles, len(view.tiles),
            view.counted, residuals, residuals.shape[1] - 1, view.places, len(view.places),
            order, masks.masked, masks.levels, tile_count, cells, LIGHT, float(self.threshold),
            when, masks.index, self.since[1:], self.room,
        )
        self.wakes.append(self.room[:told].copy())

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


def _no_notices():
    return np.zeros((0, 3), np.int32)
