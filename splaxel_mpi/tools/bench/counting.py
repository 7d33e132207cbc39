"""What views make ranks send, counted exactly from what cells draw, without sending it.

A city in P cells stands for P ranks of one cell each; any number of processes draws it, forward
only. Each view is drawn twice: the first visit makes masks, the second counts with them, as
training does from a view's second visit on (design section 10).
"""

from dataclasses import dataclass

import numpy as np

from ...backends.base import SPLAT, SPLAT_GRADIENT
from ...compose.bitmaps import gather
from ...compose.boundary import make_boundary
from ...compose.overlap import Overlap
from ...compose.volume import pixel_volume
from ...data.gaussian_city import gaussians
from ...mpi.pipeline import alone
from ...partition.content import ContentBoxes
from ...partition.layout import Layout
from ...partition.migrate import regroup
from ...scene.camera import TILE
from ...scene.gaussians import GROUPS, Gaussians
from ...scene.rows import Rows
from ...train.render import Renderer
from ...visibility.demand import Owned, training
from ...visibility.saturation import RESIDUAL, Saturation
from ...visibility.tiles import areas, boxes_touch
from .gaussian_traffic import Traffic, gaussian_traffic

NEAR = 0.2  # metres, the near plane of the reference implementation
REAL, ID, COUNT = 4, 8, 8  # bytes
GHOST, GHOST_BACK = REAL * SPLAT + ID, REAL * SPLAT_GRADIENT  # a projected splat; its gradient
# Tiles of cells: all of them; those inside the region that geometry predicts; those in which
# something is drawn at the first visit; at the second, when saturated ones are masked.
POSSIBLE, SPATIAL, OCCUPIED, UNSATURATED = STAGES = (
    "possible", "spatial", "occupied", "unsaturated"
)
STRATEGIES = ("overlap", "owner")


class CellCity:
    """The city of Gaussians without the bands of spherical harmonics, shared by processes.

    count, side, seed: as for data.gaussian_city; exchange: of the processes; threads: that make
    the rows. It takes some 70 bytes a Gaussian on the host, where training takes 965.
    """

    def __init__(self, count, side, exchange, threads, seed=0):
        start, stop = (count * (exchange.rank + k) // exchange.ranks for k in (0, 1))
        share = gaussians(count, side, seed, 0, start, stop, threads)
        columns = share.columns()
        del columns["shN"]  # zeros that no kernel reads
        self.rows, self.offsets = Rows(columns), None

    @property
    def gaussians(self):
        """This process's Gaussians. The memory of their bands is never touched."""
        bands = self.rows.xp.zeros((len(self.rows), GROUPS["shN"]), np.float32)
        return Gaussians(**{name: self.rows[name] for name in self.rows.arrays}, shN=bands)

    def migrate(self, tree, exchange):
        """As train.state.State.migrate."""
        self.offsets = regroup(self.rows, tree, exchange)


@dataclass
class ViewCount:
    """What the cells of a tree have of one view; each stands for a rank."""

    camera: object
    layout: Layout  # with a rank for each cell
    tiles: dict  # stage -> (cells, tile_count) bool
    visible: np.ndarray  # (cells,) int64, own Gaussians in the view
    ghosts: dict  # stage -> (cells,) int64 Gaussians of others to draw; occupied, unsaturated
    masks: int  # bytes of the masks of all cells, as one of them tells them to one other
    baseline: Traffic  # of strategy gaussian on as many ranks
    lean: int  # the least that can be said for it, see Traffic.lean

    @property
    def cells(self):
        """Number of cells, and of ranks that they stand for."""
        return len(self.visible)

    def pixels(self, stage):
        """Pixels of the cells' tiles of a stage, (cells,) int64."""
        return self.tiles[stage] @ areas(self.camera)

    def work(self, stage):
        """(Gaussians, pixels) that each cell draws, (2, cells), as a scheduler observes them."""
        tiles = self.tiles[stage].sum(1)
        drawn = np.where(tiles > 0, self.visible + self.ghosts[stage], 0)
        return np.stack([drawn, TILE * TILE * tiles])

    def demand(self, strategy, stage):
        """visibility.demand.Demand of a stage's tiles."""
        rule = training if strategy == "overlap" else Owned(self.cells)
        return rule(self.tiles[stage], self.camera)

    def bytes(self, strategy, stage=UNSATURATED):
        """Bytes that all ranks send for the view in a chunk of its own, by the kinds of the
        exchange object, float32. Stages possible and spatial have pixels alone."""
        demand, tiles = self.demand(strategy, stage), self.tiles[stage]
        back = strategy == "owner"
        volume = pixel_volume(tiles, self.layout, demand, self.camera, back)
        found = {"streams": volume.streams, "streams back": volume.back, "halo": volume.halo}
        if stage not in self.ghosts:
            return found
        ghosts, pairs = int(self.ghosts[stage].sum()), self.cells * (self.cells - 1)
        bits = -(-self.camera.tile_count // 8)
        found |= {"ghosts": ghosts * GHOST + pairs * COUNT, "ghosts back": ghosts * GHOST_BACK,
                  "bitmaps": pairs * bits}
        if back:
            found["bitmaps"] += int((-(-self._foreign(tiles, demand) // 8)).sum())
        found["masks"] = pairs * COUNT  # how much each rank has to tell
        if stage == UNSATURATED:
            told = (self.tiles[OCCUPIED] & ~tiles).any(1).sum()  # cells with a mask
            # each begins with the number of notices and the length of its mask
            found["masks"] += (self.cells - 1) * (int(told) * (COUNT + 4) + self.masks)
        return found

    @staticmethod
    def _foreign(tiles, demand):
        """Tiles of a rank that another one composes, for each two of which there are any: (pairs,)
        int64. demand: of strategy owner, where one rank composes a tile."""
        holder, tile = np.nonzero(tiles)
        owner = demand.counted[tile].astype(np.int64)
        away = owner != holder
        return np.unique(owner[away] * len(tiles) + holder[away], return_counts=True)[1]

    def busiest(self, strategy, stage=UNSATURATED):
        """Bytes that each rank sends or receives, whichever is more: (cells,) int64. Pixels,
        gradients and ghosts; what a link carries while the others rest does not show in sums."""
        needed, held = self.demand(strategy, stage).needed, self.tiles[stage]
        weights = areas(self.camera)
        # what all want of a tile and what all hold of it, less what a rank has itself
        itself = (needed & held) @ weights
        sent = 4 * REAL * (held @ (needed.sum(0) * weights) - itself)
        got = 4 * REAL * (needed @ (held.sum(0) * weights) - itself)
        if strategy == "owner":
            sent = got = sent + got
        return np.maximum(sent, got) + (GHOST + GHOST_BACK) * self.ghosts[stage]


class Counter:
    """Draws the views of a scene in cells and counts.

    scene: CellCity or train.state.State whose rows lie in the cells of ``tree`` (migrate was
    called); backend: float32; exchange: of the processes that share the scene, any number;
    threshold, stop: settings saturation.threshold and render.stop; near: view depth in metres.
    """

    def __init__(self, scene, tree, backend, exchange, threshold=1e-4, stop=1e-4, near=NEAR):
        self.scene, self.tree, self.near = scene, tree, near
        self.gaussians = scene.gaussians
        self.boxes = ContentBoxes()
        self.boxes.update(self.gaussians, scene.offsets, tree, exchange)
        layout = Layout(tree, exchange.rank, exchange.ranks, scene.offsets)
        self.ranks = Layout(tree, 0, tree.cells, np.zeros(2, np.int64))
        compositor = Overlap(backend, exchange, layout, [0.0] * 3)
        boundary = make_boundary("exact", self.boxes, near)
        self.saturation = Saturation(threshold, RESIDUAL)
        self.renderer = Renderer(
            backend, exchange, layout, compositor, near, stop, boundary, self.saturation
        )

    def count(self, camera):
        """ViewCount of a view. Collective; the same on every process.

        At the second visit a cell draws in the tiles of the first less those that are masked
        since, and gets the ghosts that touch any of them: that needs no drawing.
        """
        exchange, xp = self.renderer.exchange, self.renderer.backend.xp
        predicted, tiles = self.boxes.regions(camera, self.near)
        spatial = np.zeros((self.tree.cells, camera.tile_count), bool)
        spatial[predicted] = tiles
        work, occupied = self._draw(camera)
        masked, masks = self._masks(camera.tile_count)
        visible, ghosts = self._splats(work, lambda part: len(part.splats) - part.own)
        _, live = self._splats(work, lambda part: int(self._live(work, part, masked).sum()))
        traffic = [gaussian_traffic(work.splats, camera, self.tree.cells, equal, xp, exchange)
                   for equal in (False, True)]
        stages = np.ones_like(spatial), spatial, occupied, occupied & ~masked
        return ViewCount(camera, self.ranks, dict(zip(STAGES, stages)), visible,
                         {OCCUPIED: ghosts, UNSATURATED: live}, masks, traffic[0],
                         traffic[1].lean)

    def _draw(self, camera):
        """The first visit: (ViewWork of this process, tiles drawn by each cell (cells,
        tile_count))."""
        renderer, index = self.renderer, 0
        (work,), composed = renderer.draw(self.gaussians, [camera], 0, [training], [index])
        nothing = renderer.backend.xp.zeros_like(composed[0].image)
        alone(renderer.compositor.backward([work], composed, nothing))
        alone(renderer.compositor.judge([work], composed))
        self.saturation.judge([work], composed, renderer.layout)
        self.saturation.commit()
        return work, alone(gather([work], renderer.layout, renderer.exchange))[0]

    def _masks(self, tile_count):
        """Masks that the visit has made, (cells, tile_count) bool, and the bytes of all of them;
        forgets them. Collective."""
        masked, size = np.zeros((self.tree.cells, tile_count), np.int32), 0
        for cell in self.renderer.layout.local:
            mask = self.saturation.masks.get(0, cell)
            if mask:
                masked[cell] = mask.rows(tile_count)[0]
                size += mask.bits.nbytes + mask.levels.nbytes
        self.saturation.clear()
        exchange = self.renderer.exchange
        size = int(exchange.allreduce("count", np.array([size]))[0])
        return exchange.allreduce("count", masked).astype(bool), size

    def _live(self, work, part, masked):
        """Which ghosts of a part touch a tile that is not masked: (ghosts,) bool."""
        xp, data = self.renderer.backend.xp, part.splats.data[part.own :]
        if not masked.any():
            return xp.ones(len(data), bool)
        cell = xp.full(len(data), part.cell, np.int64)
        return boxes_touch(data, cell, xp.asarray(~masked), work.camera, xp)

    def _splats(self, work, ghosts):
        """Own splats of every cell and what ``ghosts`` says of its part, (cells,) each.
        Collective."""
        counts = np.zeros((2, self.tree.cells), np.int64)
        for part in work.parts:
            counts[:, part.cell] = part.own, ghosts(part)
        return self.renderer.exchange.allreduce("count", counts)
