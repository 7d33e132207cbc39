"""What ranks need that hold half of a scene each, beside one that holds all of it."""

import numpy as np

from ...backends.base import SPLAT_GRADIENT
from ...mpi.transport import exchange_alone
from ...partition.assign import cells_of
from ...partition.kdtree import build
from ...partition.layout import Layout
from ...partition.order import visibility_order
from ...scene.gaussians import GROUPS
from ...settings import Saturation
from ...train.state import State
from .base import PASSES, Samples
from .stages import BETAS, EPSILON, NEAR, SEED, STEP, STOP, groups_of

STAGES = ("project", "lists", "rasterize", "rasterize back", "project back", "adam, selective")


class HostArrays:
    """What an exchange of host arrays asks of a backend."""

    xp = np


class Chunk:
    """Stages of one cell on several views at a time, as ranks that exchange go through them.

    backend: Backend; gaussians: of the cell, on the host; degree: SH degree in use; box: bounds
    of the cell, (2, 3), None for all of space.
    """

    def __init__(self, backend, gaussians, degree, box=None):
        self.backend, self.degree, self.box = backend, degree, box
        tree = build(gaussians.means, None, 1, exchange_alone(HostArrays))
        self.layout = Layout(tree, 0, 1, np.array([0, len(gaussians)]))
        self.state = State.fresh(gaussians.map(backend.to_device), None)
        self.gaussians, self.out = self.state.gaussians, self.state.gradients()

    def look(self, cameras, masks):
        """Begin a chunk. masks: of each view (tile_count,) uint8 on the host, 0 where nothing is
        drawn, or None for all tiles."""
        self.cameras, self.masks = cameras, masks
        self.out.seen.fill(0)

    def stages(self):
        """{name: function} of STAGES."""
        functions = (self.project, self.list_tiles, self.rasterize, self.rasterize_back,
                     self.project_back, self.adam)
        return dict(zip(STAGES, functions))

    def project(self):
        projected = self.backend.project_views(self.gaussians, self.cameras, self.degree, NEAR)
        nothing = [None] * len(self.cameras)
        self.routed = self.backend.start_route(projected, self.layout, nothing, False).take()
        self.splats = [part for part, in self.backend.place_ghosts(self.routed, None, None)]

    def list_tiles(self):
        jobs = [(splats, camera, self.box, mask, None)
                for splats, camera, mask in zip(self.splats, self.cameras, self.masks)]
        lists = self.backend.start_tile_lists(jobs).take()
        self.drawn = list(zip(self.splats, lists, self.cameras))

    def rasterize(self):
        self.partials = self.backend.rasterize_all(self.drawn, STOP)

    def even_seeds(self):
        """A constant gradient of the partial pixels, in place of a loss."""
        self.seeds = [self.backend.xp.full_like(one.pixels, SEED) for one in self.partials]

    def rasterize_back(self):
        out = self.backend.gradient_rows(self.routed, SPLAT_GRADIENT)
        self.rows = self.backend.rasterize_all_backward(
            self.drawn, self.partials, self.seeds, STOP, False, [rows for rows, in out]
        )

    def project_back(self):
        for camera, splats, rows in zip(self.cameras, self.splats, self.rows):
            self.backend.project_backward(
                self.gaussians, camera, self.degree, splats, rows, self.out
            )

    def adam(self):
        self.backend.adam_groups(
            groups_of(self.state), self.out.seen, BETAS, EPSILON, STEP, 1.0 / len(self.cameras),
            clear=True,
        )

    def dark(self):
        """Per view (tile_count,) uint8, 1 where what was drawn lets less than the threshold
        through."""
        found = []
        for (_, lists, camera), partial in zip(self.drawn, self.partials):
            dark = np.zeros(camera.tile_count, np.uint8)
            slots = self.backend.xp.arange(len(lists.tiles), dtype=np.int32)[:, None]
            passed = self.backend.residuals(partial.pixels, slots, lists.tiles, camera)
            least = self.backend.to_host(passed)[:, 1]
            dark[self.backend.to_host(lists.tiles)] = least < Saturation().threshold
            found.append(dark)
        return found


def measure_halves(scene, backend, clock, views):
    """{stage: whole_ms, and shares of it that the two cells take, drawn and masked}.

    The scene is cut into two cells by the k-d tree; sums over all views, in chunks of ``views``,
    with one update a chunk. drawn: as at the first visit of a view; masked: as at later ones,
    where the cell that stands behind leaves the tiles that are dark in front of it. Ghosts are
    left out.
    """
    tree = build(scene.gaussians.means, None, 2, exchange_alone(HostArrays))
    cells = cells_of(tree, scene.gaussians.means)
    whole = _times(Chunk(backend, scene.gaussians, scene.degree), scene, clock, views)
    chunks = [
        Chunk(backend, scene.gaussians.take(cells == cell), scene.degree, box)
        for cell, box in enumerate(tree.boxes())
    ]
    masks = _masks(chunks, scene.cameras, tree)
    drawn = [_times(chunk, scene, clock, views) for chunk in chunks]
    masked = [_times(chunk, scene, clock, views, mask) for chunk, mask in zip(chunks, masks)]
    rows = {}
    for name in (*STAGES, "sum"):
        pick = (lambda times: sum(times.values())) if name == "sum" else (lambda t: t[name])
        rows[name] = {"whole_ms": pick(whole)}
        for kind, halves in (("drawn", drawn), ("masked", masked)):
            rows[name][kind] = [pick(half) / pick(whole) for half in halves]
    return rows


def _masks(chunks, cameras, tree):
    """For each cell the masks of all views, see Chunk.look."""
    masks = [[None] * len(cameras) for _ in chunks]
    for view, camera in enumerate(cameras):
        front, behind = visibility_order(tree, camera.center).tolist()
        chunk = chunks[front]
        chunk.look([camera], [None])
        chunk.project(), chunk.list_tiles(), chunk.rasterize()
        masks[behind][view] = 1 - chunk.dark()[0]
    return masks


def _times(chunk, scene, clock, views, masks=None):
    """{stage: milliseconds summed over views}."""
    samples, cameras = Samples(), scene.cameras
    masks = masks or [None] * len(cameras)
    for turn in range(PASSES):
        for start in range(0, len(cameras), views):
            part = slice(start, start + views)
            chunk.look(cameras[part], masks[part])
            for name, stage in chunk.stages().items():
                if name == "rasterize back":
                    chunk.even_seeds()
                milliseconds = clock.stage(stage)
                if turn:
                    samples.add(name, start, milliseconds)
    return {name: samples.total(name) for name in STAGES}
