"""Counts the pixel bytes of exchange strategies on a city of Gaussians, without sending them.

    python benchmarks/exchange_bytes.py --gaussians 4e6 --side 1000 --cells 8 --views 20

One process draws every view with a tree of so many cells, each standing for a rank, and counts from
the bitmaps what ranks would send: strategies overlap and owner, and owners of whole views. Once
with all tiles that cells hold, once without those in front of which less than 1e-4 of the light is
left in every pixel (saturated). Prints MB a view, of 1e6 bytes, all ranks together.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.compose.base import Compositor  # noqa: E402
from splaxel_mpi.compose.volume import pixel_volume  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras, gaussians  # noqa: E402
from splaxel_mpi.mpi.host import HostExchange  # noqa: E402
from splaxel_mpi.partition.assign import cells_of  # noqa: E402
from splaxel_mpi.partition.kdtree import build  # noqa: E402
from splaxel_mpi.partition.layout import Layout  # noqa: E402
from splaxel_mpi.partition.order import visibility_order  # noqa: E402
from splaxel_mpi.train.render import Renderer  # noqa: E402
from splaxel_mpi.visibility.demand import Owned, training, whole_image  # noqa: E402
from splaxel_mpi.visibility.tiles import areas  # noqa: E402

NEAR, STOP = 0.2, 1e-4
SATURATED = 1e-4  # the default threshold of design section 7


class Drawn(Compositor):
    """Leaves the partial pixels where they are."""

    def compose(self, works, rules):
        return works


def bitmaps(work, layout):
    """Tiles that cells hold, and those of them that are not saturated: (cells, tile_count)."""
    camera, parts = work.camera, {part.cell: part for part in work.parts}
    tiles_x, _ = camera.tiles
    tile, pixel = np.arange(camera.tile_count)[:, None], np.arange(256)
    inside = (tile % tiles_x * 16 + pixel % 16 < camera.width) & (
        tile // tiles_x * 16 + pixel // 16 < camera.height
    )
    held = np.zeros((layout.cells, camera.tile_count), bool)
    live, light = held.copy(), np.ones(inside.shape, np.float32)
    for cell in visibility_order(layout.tree, camera.center):
        part = parts[int(cell)]
        tiles = part.partial.tiles
        held[cell, tiles] = True
        live[cell] = held[cell] & ((light >= SATURATED) & inside).any(1)
        light[tiles] *= part.partial.pixels[:, 3]
    return held, live


def count(held, camera, ranks, owned):
    """MB of overlap, owner, its halo, and owners of whole views."""
    home = int((held @ areas(camera)).argmax())
    found = [
        pixel_volume(held, ranks, training(held, camera), camera, False),
        pixel_volume(held, ranks, owned(held, camera), camera, True),
        pixel_volume(held, ranks, whole_image(home)(held, camera), camera, True),
    ]
    return np.array([found[0].total, found[1].total, found[1].halo, found[2].total]) / 1e6


def main():
    parser = argparse.ArgumentParser(description="Count the pixel bytes of exchange strategies.")
    parser.add_argument("--gaussians", type=float, default=4e6)
    parser.add_argument("--side", type=float, default=1000, help="of the city in metres")
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--views", type=int, default=20, help="of each kind")
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    content = gaussians(int(options.gaussians), options.side, bands=0, threads=threads)
    exchange = HostExchange(MPI.COMM_SELF)
    tree = build(content.means, None, options.cells, exchange)
    cell = cells_of(tree, content.means)
    content = content.take(np.argsort(cell, kind="stable"))
    offsets = np.concatenate([[0], np.bincount(cell, minlength=tree.cells).cumsum()])
    layout, backend = Layout(tree, 0, 1, offsets), HostBackend(np.float32, threads)
    ranks = Layout(tree, 0, tree.cells, offsets[:2])
    renderer = Renderer(backend, exchange, layout, Drawn(), NEAR, STOP)
    print("| views | tiles | overlap | owner | of which halo | whole views | owner / overlap |")
    print("|" + " --- |" * 7, flush=True)
    for kind in ("street", "aerial"):
        totals, owned = np.zeros((2, 4)), (Owned(tree.cells), Owned(tree.cells))
        for camera in cameras(kind, options.views, options.side):
            (work,), _ = renderer.draw(content, [camera], 0, [None])
            for k, held in enumerate(bitmaps(work, layout)):
                totals[k] += count(held, camera, ranks, owned[k])
        for name, row in zip(("held", "not saturated"), totals / options.views):
            figures = " | ".join(f"{value:.2f}" for value in [*row, row[1] / row[0]])
            print(f"| {options.views} {kind} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
