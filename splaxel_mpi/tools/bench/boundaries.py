"""One scene trained to the end with each setting of boundary (paper, table 6)."""

from pathlib import Path

from ...mpi.world import on_root
from .base import shown, table
from .trainings import changed, complete, measure, summary

SETTINGS = ("exact", "filter", "none")
HEADER = ("boundary", "PSNR", "in exact order", "SSIM", "s", "kB an image", "Gaussians",
          "ghosts of visible", "of bytes")


def run(config, comm, tell):
    """Train with each setting and print a table. Collective.

    Results go to <run.folder>/<run.name>-<setting>. config: config.Config; tell: function that
    prints a line. Returns a list of dicts.
    """
    rows = [_measure(changed(config, setting, f"boundary={setting}"), comm)
            for setting in SETTINGS]
    if comm.rank == 0:
        for line in table(map(_cells, rows), HEADER):
            tell(line)
    return rows


def _measure(config, comm):
    """Train as a configuration says, then evaluate the Gaussians once more in exact order, as
    any viewer shows them. Collective; returns a dict."""
    found = dict(boundary=config.boundary, **measure(config, comm))
    if config.boundary != "exact":
        again = config.model_copy(deep=True)
        again.boundary = "exact"
        complete(again, True, comm)  # all images are seen: only the end is done again
    folder = Path(config.run.folder) / config.run.name
    return dict(found, psnr_exact=on_root(comm, lambda: summary(folder)["psnr"]))


def _cells(row):
    """A row of the table."""
    psnr, exact = (shown(row[name], 2) for name in ("psnr", "psnr_exact"))
    return (row["boundary"], psnr, exact, shown(row["ssim"], 4), f"{row['seconds']:.0f}",
            f"{row['kilobytes']:.0f}", f"{row['gaussians']:,}", f"{row['ghost_share']:.1%}",
            f"{row['ghost_bytes']:.1%}")
