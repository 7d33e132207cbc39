"""How many Gaussians travel as ghosts, and what that is against exchanging all of them."""

import json
from pathlib import Path

import numpy as np

from ...backends.base import EXTENT_Y, SPLAT, SPLAT_GRADIENT, V
from ...data.gaussian_city import cameras, gaussians
from ...files import write_text
from ...partition.assign import cells_of
from ...partition.kdtree import build
from .base import table

ROWS = 1 << 19  # Gaussians at a time, to bound memory
NEAR = 0.2  # metres, the near plane of the reference implementation
# Bytes of a ghost: a float32 splat, its id of 8 bytes, and the gradient that returns
GHOST = 4 * SPLAT + 8 + 4 * SPLAT_GRADIENT
RECORD = 80  # of an exchanged Gaussian: 11 floats forth and 9 back
HEADER = ("views", "visible", "ghosts", "worst view", "bytes of the exchange's")


def run(count, side, cells, views, kinds, backend, exchange, report, tell):
    """Count ghosts without masks on a city of Gaussians, and print a table.

    count: Gaussians; side: metres; cells: of the tree, one a rank; views: of each kind; backend:
    of the host, float32; exchange: of this process alone; report: file for the figures or None;
    tell: prints a line. Returns a list of dicts, one for each kind.
    """
    content = gaussians(count, side, bands=0, threads=backend.threads)
    tree = build(content.means, None, cells, exchange)
    cell, rows = cells_of(tree, content.means), []
    for kind in kinds:
        seen = cameras(kind, views, side)
        counts = [count_view(content, tree, cell, camera, backend) for camera in seen]
        rows.append(dict(kind=kind, views=views, **summarise(np.array(counts), cells)))
    for line in table(map(_cells, rows), HEADER):
        tell(line)
    if report:
        facts = dict(gaussians=count, side=side, cells=cells, kinds=rows)
        write_text(Path(report), json.dumps(facts, indent=1) + "\n")
    return rows


def count_view(content, tree, cell, camera, backend):
    """Visible Gaussians, ghosts, and pairs of a Gaussian and a band of pixel rows that its box
    meets, of as many equal bands as cells: (3,) int64. cell: (n,) int32, of each row."""
    total = np.zeros(3, np.int64)
    for start in range(0, len(content), ROWS):
        rows = slice(start, start + ROWS)
        splats = backend.project(content.take(rows), camera, 0, NEAR)
        ghosts, _ = backend.reach(splats, cell[rows][splats.rows], camera, tree)
        v, reach = splats.data[:, V], splats.data[:, EXTENT_Y]
        first, last = (
            np.clip((v + sign * reach) * tree.cells // camera.height, 0, tree.cells - 1)
            for sign in (-1, 1)
        )
        total += len(splats), len(ghosts), int((last - first + 1).sum())
    return total


def summarise(views, cells):
    """Figures of views (n, 3) as count_view returns them. The exchange of Gaussians sends a record
    to each rank whose band the Gaussian meets, but one in so many ranks is its own."""
    visible, ghosts, pairs = (int(total) for total in views.sum(axis=0))
    exchanged = pairs * RECORD * (cells - 1) / cells
    return dict(
        visible=visible / len(views),
        ghosts=ghosts / max(visible, 1),
        worst=float((views[:, 1] / np.maximum(views[:, 0], 1)).max()),
        bytes=ghosts * GHOST / max(exchanged, 1),
    )


def _cells(row):
    """A row of the table."""
    shares = (f"{row[name]:.2%}" for name in ("ghosts", "worst", "bytes"))
    return f"{row['views']} {row['kind']}", f"{row['visible']:,.0f}", *shares
