"""Cells of a run that has not begun, and what views make them draw and send.

A sample of the points stands for the scene, each as large as its distance to the others of the
sample, so that surfaces are covered as by all of them; cells stand for ranks, and nothing is
rasterized: tile lists say in which tiles a cell draws.
"""

from copy import copy
from dataclasses import dataclass

import numpy as np

from ...backends import make_backend
from ...compose.base import ViewWork
from ...mpi.pipeline import alone
from ...mpi.transport import exchange_alone
from ...partition.kdtree import build
from ...scene.initialise import initial_gaussians, neighbour_distances
from ...scene.rows import Rows
from ..bench.counting import OCCUPIED, CellCity, Counter, ViewCount
from ..bench.gaussian_traffic import gaussian_traffic

# 256 points a cell of 1024, so that a cell's count is known to 6 %; neighbours, tree and a view
# take seconds
MOST_POINTS = 1 << 18
# Views counted: means of city views are known to about a tenth with 48; a view takes longer the
# more cells there are
VIEWS, VIEWS_OF_MANY, MANY_CELLS = 48, 16, 256
# Training raises opacities, and with them how far Gaussians are drawn: to sqrt(2 ln(255 a))
# standard deviations, 2.5 for the 0.1 of the start, 3.1 for 0.5, 3.3 for 1.
TRAINED_OPACITY = 0.5


class Sample(CellCity):
    """Gaussians at points, as the start of training makes them but as opaque as it leaves them,
    on one process.

    points: data.base.Points; settings: config.Config; cells: of the tree; seed: of the sample.
    """

    def __init__(self, points, settings, cells, seed=0):
        self.total = len(points)
        chosen = np.arange(self.total)
        if self.total > MOST_POINTS:
            chosen = np.sort(np.random.default_rng(seed).choice(
                self.total, MOST_POINTS, replace=False, shuffle=False))
        positions = points.positions[chosen]
        scene = settings.scene
        made = initial_gaussians(
            positions, points.colors[chosen], chosen, neighbour_distances(positions),
            max(scene.initial_opacity, TRAINED_OPACITY), np.float32, scene.initial_scale,
        )
        columns = made.columns()
        del columns["shN"]  # zeros that no kernel reads
        self.rows, self.offsets = Rows(columns), None
        self.backend = make_backend("host", settings.backend.model_copy(
            update={"precision": "float32"}), settings.backend.threads or 1)
        self.exchange = exchange_alone(self.backend)
        self.tree = build(self.rows["means"], None, cells, self.exchange)
        self.migrate(self.tree, self.exchange)

    @property
    def shares(self):
        """Part of the Gaussians in each cell, (cells,) float64."""
        return np.diff(self.offsets) / len(self.rows)

    @property
    def share_error(self):
        """Standard error of a cell's share, relative; 0 where all points were taken."""
        if self.total == len(self.rows):
            return 0.0
        return float(np.sqrt(self.tree.cells / len(self.rows)))


@dataclass
class Seen(ViewCount):
    """ViewCount before any mask; baseline and lean are not known."""

    gaussian_bytes: int = 0  # that strategy gaussian sends on as many ranks; 0 where not asked


class Survey(Counter):
    """Counts views by projection and tile lists alone. See Counter."""

    def __init__(self, sample, settings):
        super().__init__(sample, sample.tree, sample.backend, sample.exchange,
                         near=settings.render.near)
        self.traffic = settings.exchange.strategy == "gaussian"

    def count(self, camera):
        """Seen of a view: with stage OCCUPIED alone."""
        renderer, cells = self.renderer, self.tree.cells
        work, ghosts = ViewWork(camera), copy(self.renderer.ghosts)
        projected = renderer.backend.project_views(self.gaussians, [camera], 0, self.near)
        alone(ghosts.send([work], projected))
        # of many cells most draw nothing in a view
        some = [(part, job) for part, job in zip(work.parts, renderer.jobs([work]))
                if len(part.splats)]
        lists = renderer.backend.start_tile_lists([job for _, job in some]).take()
        occupied = np.zeros((cells, camera.tile_count), bool)
        visible, foreign = np.zeros((2, cells), np.int64)
        for (part, _), found in zip(some, lists):
            occupied[part.cell, found.held] = True
            visible[part.cell], foreign[part.cell] = part.own, len(part.splats) - part.own
        moved = 0
        if self.traffic:
            moved = gaussian_traffic(work.splats, camera, cells, False, np,
                                     renderer.exchange).total
        return Seen(camera, self.ranks, {OCCUPIED: occupied}, visible, {OCCUPIED: foreign}, 0,
                    None, 0, moved)


def chosen_views(cameras, cells, seed=0):
    """Cameras to count, drawn at random from a list."""
    count = VIEWS if cells < MANY_CELLS else VIEWS_OF_MANY
    if len(cameras) <= count:
        return cameras
    places = np.random.default_rng(seed).choice(len(cameras), count, replace=False)
    return [cameras[place] for place in np.sort(places)]
