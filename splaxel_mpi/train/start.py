"""Where training starts: from SfM points, or from a checkpoint."""

import numpy as np

from ..checkpoint.resume import load_latest
from ..errors import UserError
from ..partition.balance import first_tree, new_tree
from ..partition.layout import Layout
from ..partition.migrate import regroup
from ..scene.rows import Rows
from ..scene.initialise import initial_gaussians, neighbour_distances
from .state import State


def from_points(points, config, world, budget):
    """State and tree from sparse points that the root holds (others pass None). Collective.

    The root finds neighbour distances and deals the points evenly; every rank makes its share
    of Gaussians, the tree is built from all of them, and they migrate to their cells. Ids are
    places in the input, so they do not depend on ranks. budget: train.budget.Budget. Raises
    UserError on all ranks where they do not fit one.
    """
    positions, colors, distances, ids = _deal(points, world)
    budget.check(world.exchange, len(ids))
    opacity, scale = config.scene.initial_opacity, config.scene.initial_scale
    gaussians = initial_gaussians(
        positions, colors, ids, distances, opacity, world.backend.real, scale
    )
    cells = config.partition.cells or world.ranks
    tree = first_tree(gaussians.means, cells, config.partition.skew, world.exchange)
    rows = Rows(gaussians.columns())
    offsets = regroup(rows, tree, world.exchange)
    budget.check(world.exchange, len(rows))
    return State(rows, offsets, budget), tree


def _deal(points, world):
    """Rows of positions, colours, distances and ids for this rank, dealt evenly by the root."""
    exchange, ranks = world.exchange, world.ranks
    total = np.array([len(points.positions) if world.is_root else 0], np.int64)
    total = int(exchange.allreduce("points", total)[0])
    bounds = total * np.arange(ranks + 1) // ranks
    mine = int(bounds[world.rank + 1] - bounds[world.rank])
    rows = np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.zeros((0, 1)), np.zeros((0, 1), int)
    if world.is_root:
        distances = neighbour_distances(points.positions)
        ids = np.arange(total, dtype=np.int64)
        rows = points.positions, points.colors, distances[:, None], ids[:, None]
    out = []
    for array in rows:
        width = array.shape[1]
        counts = np.diff(bounds) * width if world.is_root else np.zeros(ranks, np.int64)
        expected = np.zeros(ranks, np.int64)
        expected[world.root] = mine * width
        flat = np.ascontiguousarray(array).ravel()
        flat, _ = exchange.alltoallv("points", flat, counts, expected)
        out.append(flat.reshape(mine, width))
    positions, colors, distances, ids = out
    return positions, colors, distances[:, 0], ids[:, 0]


def from_checkpoint(folder, config, world, content_id, budget):
    """State, tree and checkpoint from the newest whole checkpoint of a folder. Collective.

    Rows keep their order on the rank count that wrote them; otherwise Gaussians migrate to the
    cells of the stored tree, or of a new one when the number of cells changes. budget:
    train.budget.Budget. Raises UserError where there is nothing to go on from, or it does not
    fit.
    """
    path, stored = load_latest(folder, world.comm)
    if stored is None:
        raise UserError(f"{folder}: no checkpoint to resume from; start without --resume")
    if stored.dataset != content_id:
        raise UserError(
            f"{path}: written for another data set than {config.data.path}; "
            "give the same data.path and data.scale or start without --resume"
        )
    gaussians = stored.gaussians
    if gaussians.dtype != world.backend.real:
        raise UserError(
            f"{path}: holds {gaussians.dtype} but backend.precision is {world.backend.real}; "
            f"set backend.precision={gaussians.dtype}"
        )
    count = stored.gradient_count.astype(np.int32)
    columns = dict(gaussians.columns(), norm=stored.gradient_norm, count=count)
    if stored.seen_count is not None:
        columns["seen_count"] = stored.seen_count
    for moment in ("first", "second"):
        moments = getattr(stored, moment)
        columns.update({f"{moment}/{name}": array for name, array in moments.items()})
    state = State(Rows(columns), budget=budget)
    state.images_seen, state.step = stored.images_seen, stored.step
    tree, cells = stored.tree, config.partition.cells or world.ranks
    if tree.cells != cells:
        tree = new_tree(gaussians.means, state.seen, cells, config.partition, world.exchange)
    if stored.ranks == world.ranks and tree is stored.tree:
        local = Layout(tree, world.rank, world.ranks, np.zeros(1, np.int64)).local
        state.offsets = np.searchsorted(stored.cell, np.arange(local.start, local.stop + 1))
    else:
        state.migrate(tree, world.exchange)
    budget.check(world.exchange, len(state.rows))
    return state, tree, stored
