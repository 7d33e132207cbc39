"""What the reductions of redundancy leave to be sent on the city of Gaussians.

    python benchmarks/reductions.py [--count 4000000] [--side 1000] [--cells 8] [--views 16]

One cell a rank; all cells are drawn by this process on the host, forward only, `boundary: exact`.
Each view is drawn twice: the first pass makes masks, the second counts with them. For the tiles
that are possible, left by geometry (spatial), drawn into (occupied), and not saturated: pixels
over those of an image, cells a view, and bytes that pixels take under `overlap` and under owners
of macro-tiles, by the same rules as training; ghosts and their gradients apart. Sums over views.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.base import SPLAT, SPLAT_GRADIENT  # noqa: E402
from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.compose.boundary import make_boundary  # noqa: E402
from splaxel_mpi.compose.overlap import Overlap  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras, gaussians  # noqa: E402
from splaxel_mpi.mpi.host import HostExchange  # noqa: E402
from splaxel_mpi.mpi.pipeline import alone  # noqa: E402
from splaxel_mpi.partition.content import ContentBoxes  # noqa: E402
from splaxel_mpi.partition.kdtree import build  # noqa: E402
from splaxel_mpi.partition.layout import Layout  # noqa: E402
from splaxel_mpi.partition.migrate import regroup  # noqa: E402
from splaxel_mpi.scene.rows import Rows  # noqa: E402
from splaxel_mpi.train.render import Renderer  # noqa: E402
from splaxel_mpi.train.state import State  # noqa: E402
from splaxel_mpi.visibility.demand import training  # noqa: E402
from splaxel_mpi.visibility.saturation import RESIDUAL, Saturation  # noqa: E402
from splaxel_mpi.visibility.tiles import areas  # noqa: E402

NEAR = 0.2  # metres, the near plane of the reference implementation
MACRO = 8  # tiles of a macro-tile along a side
PIXEL = 16  # bytes of a partial pixel
GHOST = 4 * SPLAT + 8 + 4 * SPLAT_GRADIENT  # a float32 splat, its id, the gradient that returns
KINDS = ("street", "aerial")
STAGES = ("possible", "spatial", "occupied", "unsaturated")
FIGURES = ("pixels", "cells", "overlap", "owner")


def make_renderer(options, exchange):
    """The city in cells, ready to be drawn: (renderer, Gaussians, ContentBoxes)."""
    threads = os.cpu_count()
    city = gaussians(options.count, options.side, bands=0, threads=threads)
    tree = build(city.means, None, options.cells, exchange)
    rows = Rows(city.columns())
    del city
    state = State(rows, regroup(rows, tree, exchange))
    boxes = ContentBoxes()
    boxes.update(state.gaussians, state.offsets, tree, exchange)
    layout, backend = Layout(tree, 0, 1, state.offsets), HostBackend(np.float32, threads)
    compositor = Overlap(backend, exchange, layout, [0.0] * 3)
    renderer = Renderer(
        backend, exchange, layout, compositor, NEAR, options.stop,
        make_boundary("exact", boxes, NEAR), Saturation(options.threshold, RESIDUAL),
    )
    return renderer, state.gaussians, boxes


def draw(renderer, gaussians, camera, index):
    """One pass over a view: tiles drawn by each cell (cells, tile_count) bool, visible Gaussians
    and ghosts. Masks count, and are made."""
    works, composed = renderer.draw(gaussians, [camera], 0, [training], [index])
    nothing = [np.zeros_like(view.image) for view in composed]
    alone(renderer.compositor.backward(works, composed, nothing))
    renderer.saturation.judge(works, composed, renderer.layout, renderer.backend)
    renderer.saturation.commit()
    held = np.zeros((renderer.layout.cells, camera.tile_count), bool)
    for part in works[0].parts:
        held[part.cell, part.held] = True
    return held, renderer.take_counts()


def figures(tiles, camera):
    """FIGURES of a view: tiles (cells, tile_count) bool that cells have."""
    pixels, needed = areas(camera), training(tiles, camera).needed
    to_others = (needed.sum(axis=0) - needed) * tiles  # ranks besides its own that need a tile
    tiles_x, tiles_y = camera.tiles
    grid = np.zeros((len(tiles), -(-tiles_y // MACRO) * MACRO, -(-tiles_x // MACRO) * MACRO))
    grid[:, :tiles_y, :tiles_x] = (tiles * pixels).reshape(-1, tiles_y, tiles_x)
    blocks = grid.reshape(len(tiles), grid.shape[1] // MACRO, MACRO, -1, MACRO).sum(axis=(2, 4))
    foreign = blocks.sum(axis=0) - blocks.max(axis=0)
    return np.array([
        (tiles * pixels).sum() / (camera.width * camera.height), tiles.any(axis=1).sum(),
        PIXEL * (to_others * pixels).sum(), 2 * PIXEL * foreign.sum(),
    ])


def mask_bytes(masks, view, camera, cells):
    """Bytes that tell all others the masks of a view, as Saturation.share has them."""
    found = [masks.get(view, cell) for cell in range(cells)]
    sizes = [mask.bits.nbytes + mask.levels.nbytes for mask in found if mask]
    return (cells - 1) * (4 * cells + sum(sizes))


def measure(kind, options, renderer, gaussians, boxes):
    """Sums over the views of a kind."""
    sums = np.zeros((len(STAGES), len(FIGURES)))
    visible, ghosts, missed, told = 0, np.zeros(2, np.int64), np.zeros(2), 0
    for index, camera in enumerate(cameras(kind, options.views, options.side)):
        began = time.perf_counter()
        index += KINDS.index(kind) * options.views  # masks are kept by it
        spatial = np.zeros((options.cells, camera.tile_count), bool)
        cells, tiles = boxes.regions(camera, NEAR)
        spatial[cells] = tiles
        occupied, (seen, sent) = draw(renderer, gaussians, camera, index)
        told += mask_bytes(renderer.saturation.masks, index, camera, options.cells)
        unsaturated, (_, live) = draw(renderer, gaussians, camera, index)
        stages = np.ones_like(spatial), spatial, occupied, unsaturated
        sums += [figures(tiles, camera) for tiles in stages]
        visible, ghosts = visible + seen, ghosts + [sent, live]
        missed += (occupied & ~spatial).sum(), occupied.sum()
        print(f"{kind} {index}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    drawn, masked, flipped = renderer.saturation.take_counts().tolist()
    means = (sums / options.views).tolist()
    return dict(
        kind=kind, count=options.count, side=options.side, cells=options.cells,
        views=options.views, threshold=options.threshold, visible=visible / options.views,
        ghosts=(ghosts / options.views).tolist(), outside_spatial=missed[0] / missed[1],
        masks=told / options.views, flip_rate=flipped / max(masked, 1),
        stages={name: dict(zip(FIGURES, row)) for name, row in zip(STAGES, means)},
    )


def show(found):
    """Prints the table of one kind of views."""
    print(f"\n{found['count'] / 1e6:g} M, {found['side']:g} m, {found['cells']} cells, mean of "
          f"{found['views']} {found['kind']} views, threshold {found['threshold']:g}\n")
    print("| tiles | pixels / image | cells | overlap MB | owner MB | ghosts MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    ghosts = [None, None, *found["ghosts"]]
    for name, count in zip(STAGES, ghosts):
        row = found["stages"][name]
        sent = "" if count is None else f"{count * GHOST / 1e6:.2f}"
        print(f"| {name} | {row['pixels']:.2f} | {row['cells']:.1f} | {row['overlap'] / 1e6:.1f} | "
              f"{row['owner'] / 1e6:.1f} | {sent} |")
    for name in ("overlap", "owner"):
        _, spatial, occupied, unsaturated = (found["stages"][s][name] for s in STAGES)
        print(f"\n{name}: occupancy and saturation remove {1 - unsaturated / spatial:.1%} of what "
              f"spatial leaves, saturation alone {1 - unsaturated / occupied:.1%} of the rest")
    print(f"\nmasks {found['masks'] / 1e6:.2f} MB; visible {found['visible']:,.0f}; drawn outside "
          f"of spatial {found['outside_spatial']:.2%} of tiles; flips {found['flip_rate']:.2%}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description="Count what the reductions leave.")
    parser.add_argument("--count", type=int, default=4_000_000, help="Gaussians")
    parser.add_argument("--side", type=float, default=1000.0, help="metres")
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--views", type=int, default=16, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--threshold", type=float, default=1e-4)
    parser.add_argument("--stop", type=float, default=1e-4, help="render.stop")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    from mpi4py import MPI

    renderer, gaussians, boxes = make_renderer(options, HostExchange(MPI.COMM_SELF))
    found = []
    for kind in options.kinds:
        found.append(measure(kind, options, renderer, gaussians, boxes))
        show(found[-1])
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
