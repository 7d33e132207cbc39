"""How well schedulers fill ranks on a city of Gaussians, CPU only.

    python benchmarks/schedules.py [--views 512] [--gaussians 1000000] [--pixel-cost 1]
    python benchmarks/schedules.py --time 100000    # views; seconds of one core for an epoch
    python benchmarks/schedules.py --fit            # cost of a pixel on this CPU

The first form projects every Gaussian into every view and counts, per cell, visible Gaussians
and the pixels of the tiles that their boxes touch. Schedulers see this work (as after a view's
first visit) or what geometry predicts (as in the first epoch); all are judged by the former. A
rank has one cell, a batch as many views as ranks. Columns: U and balance as in schedule/figures.py,
the latter also as a share of the bound that the partition sets.
"""

import argparse
import sys
import time
from pathlib import Path

import mpi4py.MPI  # noqa: F401  starts MPI, which exchanges need
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.base import EXTENT_X, EXTENT_Y, U, V  # noqa: E402
from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.data.base import View  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras as city_cameras  # noqa: E402
from splaxel_mpi.data.gaussian_city import gaussians as city_gaussians  # noqa: E402
from splaxel_mpi.mpi.transport import exchange_alone  # noqa: E402
from splaxel_mpi.partition.assign import cells_of  # noqa: E402
from splaxel_mpi.partition.content import ContentBoxes  # noqa: E402
from splaxel_mpi.partition.kdtree import build  # noqa: E402
from splaxel_mpi.partition.layout import Layout  # noqa: E402
from splaxel_mpi.scene.camera import TILE  # noqa: E402
from splaxel_mpi.schedule import figures  # noqa: E402
from splaxel_mpi.schedule.costs import CostFit  # noqa: E402
from splaxel_mpi.schedule.predictor import WorkPredictor  # noqa: E402
from splaxel_mpi.tools.bench.cost_model import run_epoch  # noqa: E402

NEAR, SIDE, CHUNK = 0.2, 1000.0, 2
BACKEND = HostBackend(np.float32, 1)
ALONE = exchange_alone(BACKEND)
KINDS, CELLS, MIXES = ("street", "aerial"), (8, 64), (0.5, 1.0)
ORDERS = ("one-view", "conflict-free", "fixed", "balanced")


def grouped(gaussians, tree):
    """Gaussians in the order of their cells, and the first row of each cell."""
    cell = cells_of(tree, gaussians.means)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=tree.cells))])
    return gaussians.take(np.argsort(cell, kind="stable")), offsets


def count_work(gaussians, cameras, trees, seen=None):
    """Per tree (Gaussians, pixels), each (views, cells), over all views. seen: (n,) counts of
    views that see a Gaussian, added to."""
    owners = [cells_of(tree, gaussians.means).astype(np.int64) for tree in trees]
    out = [np.zeros((2, len(cameras), tree.cells)) for tree in trees]
    for k, camera in enumerate(cameras):
        splats = BACKEND.project(gaussians, camera, 0, NEAR)
        if seen is not None:
            seen[splats.rows] += 1
        for tree, owner, found in zip(trees, owners, out):
            cell = owner[splats.rows]
            found[0, k] = np.bincount(cell, minlength=tree.cells)
            found[1, k] = occupied(splats.data, cell, tree.cells, camera)
    return out


def occupied(data, cell, cells, camera):
    """Pixels of the tiles that the boxes of splats (n, 12) touch, by cell: (cells,)."""
    sides = np.array(camera.tiles)[:, None]
    middle, half = data[:, [U, V]].T, data[:, [EXTENT_X, EXTENT_Y]].T
    x0, y0 = np.clip((middle - half) // TILE, 0, sides - 1).astype(np.int64)
    x1, y1 = np.clip((middle + half) // TILE, 0, sides - 1).astype(np.int64) + 1
    wide, high = sides[:, 0] + 1
    base = cell * wide * high
    corners = [base + y * wide + x for x, y in ((x0, y0), (x1, y1), (x1, y0), (x0, y1))]
    weights = np.repeat([1.0, 1.0, -1.0, -1.0], len(data))
    grid = np.bincount(np.concatenate(corners), weights, cells * wide * high)
    grid = grid.reshape(cells, high, wide).cumsum(axis=1).cumsum(axis=2)
    return TILE * TILE * (grid > 0.5).sum(axis=(1, 2))


def predict(gaussians, cameras, tree):
    """The same from geometry alone, as schedule/predictor.py does before a view's first visit:
    (Gaussians, pixels), each (views, cells)."""
    out = []
    for cost in (0.0, 1.0):
        predictor = city_predictor(gaussians, cameras, tree, cost)
        out.append(predictor.prepare(np.arange(len(cameras)))())
    return out[0], out[1] - out[0]


def city_predictor(gaussians, cameras, tree, cost):
    """WorkPredictor of a run with a rank for each cell; this one holds all of them."""
    part, offsets = grouped(gaussians, tree)
    boxes = ContentBoxes()
    boxes.update(part, offsets, tree, ALONE)
    views = [View(k, "", None, camera) for k, camera in enumerate(cameras)]
    layout = Layout(tree, 0, tree.cells, offsets)
    return WorkPredictor(
        views, ALONE, lambda: layout, lambda: (part, boxes), BACKEND, NEAR, cost
    )


def row(name, true, predicted):
    """Print the figures of a scheduler that sees `predicted` and is judged by `true`."""
    views, waits = run_epoch(name.split()[0], predicted, predicted.shape[1], CHUNK)
    reached, limit = figures.balance(true[views], waits), figures.bound(true)
    print(f"  {name:30s} U {figures.active(true[views], waits):.3f}   balance {reached:.3f}   "
          f"of the bound {reached / limit:.3f}", flush=True)


def compare(title, true, predicted=None):
    """Figures of every scheduler on one work matrix."""
    print(f"{title}: bound {figures.bound(true):.3f}, zero-intersection "
          f"{figures.disjoint(true):.3f}", flush=True)
    for name in ORDERS:
        row(name, true, true)
    views = run_epoch("balanced", true, true.shape[1], CHUNK)[0]
    chunks = figures.balance(true[views], [CHUNK] * (len(views) // CHUNK))
    print(f"  {'balanced, waiting after 2 views':40s} balance {chunks:.3f}")
    if predicted is not None:
        row("balanced by geometry alone", true, predicted)


def together(parts, cost):
    """Work (views, cells) of kinds one after the other."""
    return np.concatenate([gaussians + cost * pixels for gaussians, pixels in parts])


def tables(options):
    """All comparisons."""
    gaussians = city_gaussians(options.gaussians, SIDE, bands=0)
    trees = [build(gaussians.means, None, cells, ALONE) for cells in CELLS]
    cameras = {kind: city_cameras(kind, options.views, SIDE) for kind in KINDS}
    seen = {kind: np.zeros(len(gaussians), np.int64) for kind in KINDS}
    true = {kind: count_work(gaussians, cameras[kind], trees, seen[kind]) for kind in KINDS}
    for k, (tree, cells) in enumerate(zip(trees, CELLS)):
        found = {kind: predict(gaussians, cameras[kind], tree) for kind in KINDS}
        for kinds in (("street",), ("aerial",), KINDS):
            work = together([true[kind][k] for kind in kinds], options.pixel_cost)
            guess = together([found[kind] for kind in kinds], options.pixel_cost)
            compare(f"{' + '.join(kinds)}, {cells} cells", work, guess)
    for kind in KINDS:
        weights = [1 - mix + mix * seen[kind] / seen[kind].mean() for mix in MIXES]
        trees = [build(gaussians.means, one, 8, ALONE) for one in weights]
        works = count_work(gaussians, cameras[kind], trees)
        for mix, tree, work in zip(MIXES, trees, works):
            count = np.bincount(cells_of(tree, gaussians.means), minlength=8)
            compare(f"{kind}, 8 cells, seen-weighted {mix} (Gaussians max / mean "
                    f"{count.max() / count.mean():.2f})", together([work], options.pixel_cost))


def time_epoch(count):
    """Seconds of one core for predicting and arranging an epoch of street and aerial views."""
    gaussians, cells = city_gaussians(300_000, SIDE, bands=0), 64
    tree = build(gaussians.means, None, cells, ALONE)
    cameras = [c for kind in KINDS for c in city_cameras(kind, -(-count // 2), SIDE)][:count]
    predictor = city_predictor(gaussians, cameras, tree, 1.0)
    start = time.process_time()
    job = predictor.prepare(np.arange(count))
    asked, work = time.process_time(), job()
    predicted = time.process_time()
    print(f"{count} views, {cells} cells: predicted in {predicted - start:.1f} s, of which "
          f"{asked - start:.2f} s hold up training", flush=True)
    for name in ("balanced", "conflict-free"):
        start = time.process_time()
        views, waits = run_epoch(name, work, work.shape[1], CHUNK)
        print(f"  {name:14s} arranged in {time.process_time() - start:.1f} s, balance "
              f"{figures.balance(work[views], waits):.3f}, bound {figures.bound(work):.3f}")


def fit():
    """Cost of a pixel from times of the host backend, forward and backward, one thread."""
    gaussians, costs = city_gaussians(300_000, SIDE), CostFit()
    tree = build(gaussians.means, None, 8, ALONE)
    part, offsets = grouped(gaussians, tree)
    cells = [part.take(np.arange(a, b)) for a, b in zip(offsets[:-1], offsets[1:])]
    for kind in KINDS:
        for camera in city_cameras(kind, 12, SIDE, width=960, height=540):
            for cell, box in zip(cells, tree.boxes()):
                costs.add(*time_view(cell, camera, box))
    print(f"a pixel costs {costs.pixel_cost(ALONE, float('nan')):.3f} visible Gaussians")


def time_view(gaussians, camera, box):
    """(Gaussians, pixels, seconds) of one cell and view."""
    from splaxel_mpi.train.state import State

    backend, out = BACKEND, State.fresh(gaussians, None).gradients()
    start = time.process_time()
    splats = backend.project(gaussians, camera, 3, NEAR)
    lists = backend.tile_lists(splats, camera, box)
    partial = backend.rasterize(splats, lists, camera, 1e-4)
    seeds = np.full(partial.pixels.shape, 1e-6, np.float32)
    rows = backend.rasterize_backward(splats, lists, partial, seeds, camera, 1e-4)
    backend.project_backward(gaussians, camera, 3, splats, rows, out)
    return len(splats), TILE * TILE * len(lists.tiles), time.process_time() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--views", type=int, default=512, help="of each kind")
    parser.add_argument("--gaussians", type=int, default=1_000_000)
    parser.add_argument("--pixel-cost", type=float, default=1.0, help="in visible Gaussians")
    parser.add_argument("--time", type=int, metavar="VIEWS", help="time an epoch of so many")
    parser.add_argument("--fit", action="store_true", help="fit the cost of a pixel")
    chosen = parser.parse_args()
    if chosen.fit:
        fit()
    elif chosen.time:
        time_epoch(chosen.time)
    else:
        tables(chosen)
