"""Counts ghosts on the benchmark city: python benchmarks/ghosts.py [options], with the folder of
city.py (gaussians(n, side, bands=1), cameras(kind, count, side)) on PYTHONPATH.

Projects every view on the host and routes ghosts as `boundary: exact` does, without masks. Prints
for each kind of views the visible Gaussians of a view, their share that travels as ghosts (mean
over all views, and the worst view), and the bytes of ghosts and their gradients against those of
exchanging Gaussians: every visible Gaussian to the ranks whose band of pixel rows its box meets,
in equal bands, RECORD bytes forth and back. One cell a rank.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.base import EXTENT_Y, SPLAT, SPLAT_GRADIENT, V  # noqa: E402
from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.mpi.host import HostExchange  # noqa: E402
from splaxel_mpi.partition.assign import cells_of  # noqa: E402
from splaxel_mpi.partition.kdtree import build  # noqa: E402
from splaxel_mpi.scene.camera import Camera  # noqa: E402
from splaxel_mpi.scene.gaussians import Gaussians  # noqa: E402

ROWS = 1 << 19  # Gaussians at a time, to bound memory
NEAR = 0.2  # metres, the near plane of the reference implementation
# Bytes of a ghost: a float32 splat, its id of 8 bytes, and the gradient that returns
GHOST = 4 * SPLAT + 8 + 4 * SPLAT_GRADIENT
RECORD = 80  # of an exchanged Gaussian: 11 floats forth and 9 back


def load(count, side, cells, exchange):
    """The city without its higher harmonics, its tree, and the cell of each Gaussian."""
    from city import gaussians

    city = gaussians(count, side, bands=1)
    tree = build(city["means"], None, cells, exchange)
    opacity = np.clip(city["opacities"], 1e-6, 1 - 1e-6)[:, None]
    columns = dict(
        means=city["means"], scales=np.log(city["scales"]), quats=city["quats"],
        opacities=np.log(opacity / (1 - opacity)).astype(np.float32),
        sh0=np.ascontiguousarray(city["sh"][:, 0]),
    )
    return columns, tree, cells_of(tree, city["means"])


def cameras_of(kind, count, side):
    from city import cameras

    for view in cameras(kind, count, side):
        pose = np.asarray(view["world_to_camera"], np.float64)
        lens = (view[name] for name in ("fx", "fy", "cx", "cy"))
        yield Camera(view["width"], view["height"], *lens, pose[:3, :3], pose[:3, 3])


def count_view(columns, tree, cell, camera, backend):
    """Visible Gaussians, ghosts, and (Gaussian, band) pairs of a view."""
    total, shN = np.zeros(3, np.int64), np.zeros((ROWS, 45), np.float32)
    for start in range(0, len(cell), ROWS):
        rows = {name: array[start : start + ROWS] for name, array in columns.items()}
        ids = np.arange(start, start + len(rows["means"]), dtype=np.int64)
        block = Gaussians(**rows, shN=shN[: len(ids)], ids=ids)
        splats = backend.project(block, camera, 0, NEAR)
        own = cell[start : start + ROWS][splats.rows]
        ghosts, _ = backend.reach(splats, own, camera, tree)
        v, reach = splats.data[:, V], splats.data[:, EXTENT_Y]
        first, last = (
            np.clip((v + sign * reach) * tree.cells // camera.height, 0, tree.cells - 1)
            for sign in (-1, 1)
        )
        total += len(splats), len(ghosts), int((last - first + 1).sum())
    return total


def main():
    parser = argparse.ArgumentParser(description="Count ghosts on the benchmark city.")
    parser.add_argument("--count", type=int, default=10_000_000, help="Gaussians")
    parser.add_argument("--side", type=float, default=1000.0, help="metres")
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--views", type=int, default=16, help="of each kind")
    options = parser.parse_args()
    from mpi4py import MPI

    exchange, backend = HostExchange(MPI.COMM_SELF), HostBackend(np.float32)
    columns, tree, cell = load(options.count, options.side, options.cells, exchange)
    print("| Gaussians, side | views | visible | ghosts | worst view | bytes of the baseline's |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for kind in ("street", "aerial"):
        views = np.array([
            count_view(columns, tree, cell, camera, backend)
            for camera in cameras_of(kind, options.views, options.side)
        ])
        visible, ghosts, pairs = views.sum(axis=0)
        others = (tree.cells - 1) / tree.cells  # of the ranks that a record goes to
        print(
            f"| {options.count / 1e6:g} M, {options.side:g} m | {options.views} {kind} | "
            f"{visible / len(views):,.0f} | {ghosts / visible:.2%} | "
            f"{(views[:, 1] / views[:, 0]).max():.2%} | "
            f"{ghosts * GHOST / (pairs * others * RECORD):.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
