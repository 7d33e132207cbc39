"""Time and quality against the exchange of Gaussians, in one run (paper, table 1)."""

import numpy as np

from .base import shown, table
from .trainings import GAUSSIAN, PLAIN, changed, less, measure

HEADER = ("seed", "variant", "PSNR", "- gaussian, dB", "SSIM", "s", "images/s", "x gaussian",
          "kB an image", "gaussian / this", "Gaussians")
VARIANTS = {"ours": (), "gaussian": GAUSSIAN}
MEANS = ("psnr", "ssim", "seconds", "images_per_second", "kilobytes", "gaussians")


def run(config, seeds, comm, tell):
    """Train with every seed in both ways, and print a table with their means. Collective.

    config: config.Config; seeds: how many, from run.seed on; tell: prints a line. Returns a list
    of dicts, the means last where there are several seeds.
    """
    rows = []
    for seed in range(config.run.seed, config.run.seed + seeds):
        for variant, settings in VARIANTS.items():
            chosen = changed(config, f"{variant}-{seed}", *PLAIN, f"run.seed={seed}", *settings)
            rows.append(dict(seed=seed, variant=variant, **measure(chosen, comm)))
    if seeds > 1:
        rows += [_mean([row for row in rows if row["variant"] == name], name)
                 for name in VARIANTS]
    if comm.rank == 0:
        baseline = {row["seed"]: row for row in rows if row["variant"] == "gaussian"}
        for line in table([_cells(row, baseline[row["seed"]]) for row in rows], HEADER):
            tell(line)
    return rows


def _mean(rows, variant):
    """Means over seeds."""
    found = dict(seed="mean", variant=variant)
    for name in MEANS:
        values = [row[name] for row in rows]
        found[name] = None if None in values else float(np.mean(values))
    return found


def _cells(row, baseline):
    """A row of the table. baseline: the row of strategy gaussian with the same seed."""
    return (
        row["seed"], row["variant"], shown(row["psnr"], 2),
        shown(less(row["psnr"], baseline["psnr"]), 2), shown(row["ssim"], 4),
        f"{row['seconds']:.1f}",
        f"{row['images_per_second']:.1f}",
        f"{row['images_per_second'] / baseline['images_per_second']:.2f}",
        f"{row['kilobytes']:.0f}",
        f"{baseline['kilobytes'] / row['kilobytes']:.2f}" if row["kilobytes"] else "-",
        f"{row['gaussians']:,.0f}",
    )
