"""Draws loss, PSNR, bytes, utilisation and memory of a run.

    python docs/examples/plot_run.py runs/city figures

writes figures/loss.png, figures/psnr.png, ... and prints a few figures of the newest checkpoint.
It works on a run that is under way, too.
"""

import sys
from pathlib import Path

import numpy as np

from splaxel_mpi import analysis
from splaxel_mpi.analysis.figures import draw_all


def draw(run, out):
    """Write a PNG of each figure that the run has."""
    metrics = run.metrics()
    if metrics is None:
        sys.exit(f"{run.folder}: no metrics yet")
    out.mkdir(parents=True, exist_ok=True)
    with metrics:
        images, psnr = metrics.points("heldout_psnr")
        if len(images):
            print(f"held-out PSNR {psnr[-1]:.2f} dB after {images[-1]:,} images")
        for drawn in draw_all(metrics):
            drawn.figure.savefig(out / f"{drawn.name}.png", dpi=144)


def tell(checkpoint):
    """Print what the Gaussians are like, without holding all of them at a time."""
    edges = np.linspace(0, 1, 11)
    counts = np.zeros(10, np.int64)
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for _, logits in checkpoint["gaussians/opacities"].blocks():
        counts += np.histogram(1 / (1 + np.exp(-logits.astype(np.float64))), edges)[0]
    for _, means in checkpoint["gaussians/means"].blocks():
        low, high = np.minimum(low, means.min(0)), np.maximum(high, means.max(0))
    origin = checkpoint["run/origin"]
    print(f"{checkpoint.gaussians:,} Gaussians from {low + origin} to {high + origin}")
    for left, count in zip(edges, counts):
        print(f"opacity {left:.1f} to {left + 0.1:.1f}: {count:,}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    one = analysis.Run(sys.argv[1])
    draw(one, Path(sys.argv[2]))
    newest = one.checkpoint()
    if newest is not None:
        with newest:
            tell(newest)
