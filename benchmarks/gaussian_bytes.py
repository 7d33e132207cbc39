"""Bytes a training view of strategy gaussian in the city of Gaussians: the baseline to beat.

    python benchmarks/gaussian_bytes.py [--counts 1e6 4e6 1e7] [--side 1000] [--ranks 8]
        [--views 16] [--json FILE]

Counted in one process by where every visible splat would go, forward and backward, float32; means
over the views. "least": the most that speaks for the baseline, strips of equal size, the 80 bytes
of Grendel's records instead of 92, no halo. Prints Markdown.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.host import HostBackend  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras, gaussians  # noqa: E402
from splaxel_mpi.tools.bench.gaussian_traffic import gaussian_traffic  # noqa: E402

NEAR = 0.2  # metres, as 3DGS draws
COLUMNS = ("scene", "visible", "strips a splat", "splats sent", "out, MB", "back, MB", "halo, MB",
           "**total, MB**", "least, MB", "worst view, MB")


def measure(count, side, kind, views, ranks, content, backend):
    """Means over the views, and the totals of each."""
    found, least = [], []
    for camera in cameras(kind, views, side):
        splats = backend.project(content, camera, 0, NEAR)  # colours do not travel further
        found.append(gaussian_traffic(splats, camera, ranks))
        least.append(gaussian_traffic(splats, camera, ranks, equal=True).lean)
    means = {name: float(np.mean([getattr(t, name) for t in found])) for name in asdict(found[0])}
    return dict(
        gaussians=count, side=side, kind=kind, ranks=ranks, views=views, **means,
        least=float(np.mean(least)), totals=[traffic.total for traffic in found],
    )


def line(row):
    """A row of the table."""
    megabytes = [row[name] / 1e6 for name in ("out", "back", "halo")]
    values = [
        f"{row['gaussians'] / 1e6:g} M, {row['side']:g} m, {row['kind']}",
        f"{row['visible']:,.0f}",
        f"{row['drawn'] / max(row['visible'], 1):.3f}",
        f"{row['sent']:,.0f}",
        *(f"{value:.1f}" for value in [*megabytes, sum(megabytes)]),
        f"{row['least'] / 1e6:.1f}",
        f"{max(row['totals']) / 1e6:.1f}",
    ]
    return "| " + " | ".join(values) + " |"


def main():
    parser = argparse.ArgumentParser(description="Bytes a view of strategy gaussian.")
    parser.add_argument("--counts", type=float, nargs="+", default=[1e6, 4e6, 1e7])
    parser.add_argument("--side", type=float, default=1000.0, help="of the city, metres")
    parser.add_argument("--kinds", nargs="+", default=["street", "aerial"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    backend, rows = HostBackend(np.float32, options.threads), []
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    for count in map(int, options.counts):
        content = gaussians(count, options.side, bands=0, threads=options.threads)
        for kind in options.kinds:
            rows.append(measure(count, options.side, kind, options.views, options.ranks, content,
                                backend))
            print(line(rows[-1]), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
