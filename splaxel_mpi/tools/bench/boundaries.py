"""One scene trained to the end with each setting of boundary (paper, table 6)."""

import json
import logging
from pathlib import Path

import numpy as np

from ...evaluate.series import read_series
from ...files import write_text
from ...mpi.world import on_root
from ...train import job
from .base import table

SETTINGS = ("exact", "filter", "none")
HEADER = ("boundary", "PSNR", "in exact order", "SSIM", "s", "kB an image", "Gaussians",
          "ghosts of visible", "of bytes")


def run(config, comm, report, tell):
    """Train with each setting and print a table. Collective.

    Results go to <run.folder>/<run.name>-<setting>. config: config.Config; report: file for the
    figures or None; tell: function that prints a line. Returns a list of dicts on rank 0, None
    elsewhere.
    """
    rows = []
    for setting in SETTINGS:
        chosen = config.model_copy(deep=True)
        chosen.boundary, chosen.run.name = setting, f"{config.run.name}-{setting}"
        rows.append(measure(chosen, comm))
    logging.getLogger(__name__).info("runs with all settings of boundary are done")
    if comm.rank:
        return None
    for line in table(map(_cells, rows), HEADER):
        tell(line)
    if report:
        write_text(Path(report), json.dumps(rows, indent=1) + "\n")
    return rows


def measure(config, comm):
    """Train as a configuration says, then evaluate the Gaussians once more in exact order, as
    any viewer shows them. Collective; returns a dict."""
    folder = Path(config.run.folder) / config.run.name
    job.run(config, False, comm)
    found = on_root(comm, lambda: figures(folder, config.boundary))
    if config.boundary != "exact":
        again = config.model_copy(deep=True)
        again.boundary = "exact"
        job.run(again, True, comm)  # all images are seen: only the end is done again
    found["psnr_exact"] = on_root(comm, lambda: _summary(folder)["psnr"])
    return found


def figures(folder, setting):
    """What the files of a finished run say."""
    summary, series = _summary(folder), read_series(folder / "metrics.h5")

    def total(name):
        mean = series.get(f"{name}/mean", np.zeros(1))
        return float(np.nansum(mean)) * summary["ranks"]

    sent = summary["bytes_exchanged"]
    return dict(
        boundary=setting,
        psnr=summary["psnr"],
        ssim=summary["ssim"],
        seconds=summary["seconds"],
        kilobytes=sent / summary["images_seen"] / 1e3,
        gaussians=summary["gaussians"],
        ghost_share=total("ghosts") / max(total("visible"), 1),
        ghost_bytes=(total("bytes/ghosts") + total("bytes/ghosts back")) / max(sent, 1),
        ranks=summary["ranks"],
    )


def _summary(folder):
    return json.loads((folder / "summary.json").read_text())


def _cells(row):
    """A row of the table."""
    psnr, exact = (
        "-" if row[name] is None else f"{row[name]:.2f}" for name in ("psnr", "psnr_exact")
    )
    ssim = "-" if row["ssim"] is None else f"{row['ssim']:.4f}"
    return (row["boundary"], psnr, exact, ssim, f"{row['seconds']:.0f}",
            f"{row['kilobytes']:.0f}", f"{row['gaussians']:,}", f"{row['ghost_share']:.1%}",
            f"{row['ghost_bytes']:.1%}")
