"""What every rank draws of a view, skips and exchanges, as pictures (paper, figure 24).

Each view is visited twice as training does, forward and backward: the first visit finds which
tiles are saturated, the second is the one that is shown. Parameters do not change.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...checkpoint.resume import load as load_checkpoint
from ...checkpoint.resume import load_latest
from ...data import gaussian_city
from ...data.base import View
from ...data.dataset import load as load_data
from ...errors import UserError
from ...evaluate.heldout import picture_name, render_views
from ...files import cannot_write, check_writable
from ...mpi.world import on_root
from ...partition.content import ContentBoxes
from ...partition.kdtree import build
from ...partition.migrate import regroup
from ...partition.order import visibility_order
from ...scene.ply import read_ply
from ...scene.rows import Rows
from ...train.job import make_renderer
from ...train.state import State
from ...train.step import forward_backward
from ...train.world import make_world
from ...visibility.tiles import areas, to_image
from .panels import EMPTY, OUTSIDE, RECEIVED, SATURATED, SENT, SHOWN, Panel, contact_sheet, sheet


@dataclass
class Source:
    """What is looked at. gaussians: this rank's share, any; tree: of the cells, None: a new one;
    views: list of View; degree: SH degree in use."""

    gaussians: object
    tree: object
    views: list
    degree: int


@dataclass
class Seen:
    """One visit of a view on one rank."""

    image: np.ndarray = None  # (height, width, 3) real: its cells composed alone
    masked: np.ndarray = None  # (tile_count,) bool: any of them leaves the tile out
    held: np.ndarray = None  # (ranks, tile_count) bool
    demand: object = None  # visibility.demand.Demand


class Watched:
    """A rule of training views that keeps what it was asked and what it answered."""

    def __init__(self, rule):
        self._rule, self.found = rule, []

    def __call__(self, held, camera):
        demand = self._rule(held, camera)
        self.found.append((held, demand))
        return demand

    def __getattr__(self, name):
        return getattr(self._rule, name)


def run(config, source, folder, width, comm, tell):
    """Write <folder>/<view>.png for every view and <folder>/contact.png. Collective.

    config: config.Config; source: function of (config, world) that gives a Source; width: most
    pixels of a panel across; tell: prints a line. Raises UserError.
    """
    if config.exchange.strategy == "gaussian":
        raise UserError("bench pictures: strategy gaussian exchanges no partial pixels; set "
                        "exchange.strategy=overlap or owner")
    folder, rows = Path(folder), []
    on_root(comm, _make_folder, folder)
    world = make_world(config, comm)
    found = source(config, world)
    look = Look(config, world, found)
    for view in found.views:
        final, panels = look.at(view)
        if world.is_root:
            title = f"{view.name}, {config.exchange.strategy}, {world.ranks} ranks"
            path = folder / f"{picture_name(view.name)}.png"
            sheet(path, title, final, panels, width)
            rows.append((title, final, panels))
            tell(f"{path}: " + "; ".join(panel.caption for panel in panels))
    if world.is_root:
        contact_sheet(folder / "contact.png", rows)
        tell(f"{folder / 'contact.png'}: all {len(rows)} views")


def _make_folder(folder):
    """Make a folder for files. Raises UserError where that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(cannot_write(folder, error)) from error
    check_writable(folder / "contact.png")


def city(count, side, kind, views, size):
    """Source of a city of Gaussians: see data.gaussian_city."""

    def source(config, world):
        bounds = count * np.arange(world.ranks + 1) // world.ranks
        start, stop = bounds[world.rank : world.rank + 2].tolist()
        content = gaussian_city.gaussians(
            count, side, config.run.seed, start=start, stop=stop, threads=world.backend.threads
        )
        cameras = gaussian_city.cameras(kind, views, side, config.run.seed + 1, *size)
        views_seen = [View(k, f"{kind}_{k:03d}", None, c) for k, c in enumerate(cameras)]
        return Source(content, None, views_seen, 3)

    return source


def trained(model, count, names):
    """Source of a trained scene under the cameras of the settings' data set.

    model: path of a PLY or checkpoint, None: the newest checkpoint of the run; count: views,
    evenly spaced by name; names: of the views instead, where there are any.
    """

    def source(config, world):
        def read():
            data = config.data
            found = load_data(data.path, format=data.format, scale=data.scale,
                              holdout=data.holdout, images=data.images)
            return _chosen(found.views, count, names), found.origin

        views, origin = on_root(world.comm, read)
        if model is not None and model.endswith(".ply"):
            content, degree = read_ply(model, origin)
            return Source(content.take(slice(world.rank, None, world.ranks)), None, views, degree)
        if model is None:
            folder = Path(config.run.folder) / config.run.name / "checkpoints"
            _, stored = load_latest(folder, world.comm)
            if stored is None:
                raise UserError(f"{folder}: no checkpoint; train first, or give --model")
        elif model.endswith(".h5"):
            stored = load_checkpoint(model, world.comm)
        else:
            raise UserError(f"{model}: not a model; give a .ply or a checkpoint, .h5")
        return Source(stored.gaussians, stored.tree, views, stored.sh_degree)

    return source


def _chosen(views, count, names):
    """Some of the views of a data set. Raises UserError for names that it does not have."""
    if not names:
        places = np.unique(np.linspace(0, len(views) - 1, count).round().astype(int))
        return [views[place] for place in places]
    by_name = {view.name: view for view in views}
    for name in names:
        if name not in by_name:
            raise UserError(f"bench pictures: no view is called {name}; one is {views[0].name}")
    return [by_name[name] for name in names]


class Look:
    """A scene in cells over the ranks, looked at view by view."""

    def __init__(self, config, world, source):
        self.world, self.degree, self.train = world, source.degree, config.train
        real, exchange = world.backend.real, world.exchange
        cells, tree = config.partition.cells or world.ranks, source.tree
        content = source.gaussians.map(lambda a: a.astype(real) if a.dtype.kind == "f" else a)
        if tree is None or tree.cells != cells:
            tree = build(content.means, None, cells, exchange)
        rows = Rows(content.columns())
        self.state = State(rows, regroup(rows, tree, exchange))
        self.state.move(world.backend.to_device)
        self.boxes, self.near = ContentBoxes(config.partition.margin), config.render.near
        self.boxes.update(self.state.gaussians, self.state.offsets, tree, exchange)
        self.renderer = make_renderer(config, world, tree, self.state, self.boxes)

    def at(self, view):
        """(final image (height, width, 3) uint8, list of Panel of each rank) of a view on the
        root, (None, None) elsewhere. Collective."""
        first, second = self._visit(view), self._visit(view)
        flags = self._flags(view.camera, second)
        shown = np.where(_pixels(flags & SATURATED > 0, view.camera), first.image, second.image)
        camera, images = view.camera, self._gather(_bytes(shown).ravel())
        flags = self._gather(flags)
        final = [image for _, image in render_views(
            self.renderer, self.state.gaussians, [camera], self.degree, self.world.root)]
        if not self.world.is_root:
            return None, None
        images = images.reshape(-1, camera.height, camera.width, 3)
        owner, panels = self.renderer.layout.owner, []
        for rank, row in enumerate(flags.reshape(self.world.ranks, -1)):
            caption = _caption(rank, np.flatnonzero(owner == rank), row, camera)
            panels.append(Panel(caption, images[rank], _pixels(row, camera)[..., 0]))
        return _bytes(final[0]), panels

    def _visit(self, view):
        """Draw a view and go back as training does; returns Seen. Collective."""
        seen, compositor, camera = Seen(), self.renderer.compositor, view.camera
        rule = compositor.training
        def observe(_, work):
            seen.image = self._alone(work)
            seen.masked = np.zeros(camera.tile_count, bool)
            if work.masks is not None:
                seen.masked |= work.masks.masked[self.renderer.layout.local].any(axis=0)

        photo = {view.index: np.zeros((camera.height, camera.width, 3), np.uint8)}
        compositor.training = watched = Watched(rule)
        try:
            forward_backward(
                self.renderer, self.state.gaussians, [view], photo, self.degree, self.train,
                self.state.gradients(), None, observe,
            )
        finally:
            compositor.training = rule
        (seen.held, seen.demand), = watched.found
        return seen

    def _alone(self, work):
        """This rank's cells composed before black: (height, width, 3)."""
        backend, camera = self.world.backend, work.camera
        nearest = np.argsort(visibility_order(self.renderer.layout.tree, camera.center))
        parts = [part for part in work.parts if len(part.held)]
        if not parts:
            return np.zeros((camera.height, camera.width, 3), backend.real)
        parts.sort(key=lambda part: nearest[part.cell])
        tiles = np.unique(np.concatenate([part.held for part in parts]))
        slots, row = np.full((len(tiles), len(parts)), -1, np.int32), 0
        for layer, part in enumerate(parts):
            slots[np.searchsorted(tiles, part.held), layer] = row + np.arange(len(part.held))
            row += len(part.held)
        pool = backend.xp.concatenate([part.partial.pixels for part in parts])
        black = np.zeros(3, backend.real)
        image, _ = backend.compose(pool, backend.to_device(slots), black)
        image = to_image(tiles, backend.to_host(image), camera)
        return image[:, : camera.height, : camera.width].transpose(1, 2, 0)

    def _flags(self, camera, seen):
        """What this rank does with each tile, (tile_count,) uint8 of panels' flags."""
        layout, rank = self.renderer.layout, self.world.rank
        held, demand = seen.held, seen.demand
        others = np.arange(layout.ranks) != rank
        region = np.zeros(camera.tile_count, bool)
        if layout.cells == 1:
            region[:] = rank in layout.owner
        else:
            cells, tiles = self.boxes.regions(camera, self.near)
            region |= tiles[layout.owner[cells] == rank].any(axis=0)
        state = np.where(seen.masked, SATURATED, np.where(region, EMPTY, OUTSIDE))
        flags = np.where(held[rank], SHOWN, state).astype(np.uint8)
        flags[held[rank] & demand.needed[others].any(axis=0)] |= SENT
        flags[demand.needed[rank] & held[others].any(axis=0)] |= RECEIVED
        return flags

    def _gather(self, data):
        """Arrays of one length (n,) uint8 of all ranks on the root, (ranks, n); collective."""
        counts, root = np.zeros(self.world.ranks, np.int64), self.world.root
        counts[root] = len(data)
        arriving = np.full(self.world.ranks, len(data) if self.world.is_root else 0, np.int64)
        flat, _ = self.world.exchange.alltoallv("pictures", data, counts, arriving)
        return flat.reshape(-1, len(data))


def _caption(rank, cells, flags, camera):
    """What a rank does, in percent of the pixels of a view."""
    size = camera.width * camera.height
    shares = [
        areas(camera)[chosen].sum() / size
        for chosen in (flags & SHOWN > 0, flags & SENT > 0, flags & RECEIVED > 0,
                       flags & SATURATED > 0)
    ]
    which = "no cell"
    if len(cells):
        which = f"cell {cells[0]}" if len(cells) == 1 else f"cells {cells[0]}-{cells[-1]}"
    text = "rank {} ({}): draws {:.0%}, sends {:.0%}, gets {:.0%}, saturated {:.0%}"
    return text.format(rank, which, *shares)


def _pixels(tiles, camera):
    """Values of tiles (tile_count,) at every pixel, (height, width, 1)."""
    tiles_x, tiles_y = camera.tiles
    grid = tiles.reshape(tiles_y, tiles_x).repeat(16, axis=0).repeat(16, axis=1)
    return grid[: camera.height, : camera.width, None]


def _bytes(image):
    """uint8 of an image in 0..1."""
    return np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
