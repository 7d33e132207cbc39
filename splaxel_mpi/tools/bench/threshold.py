"""Saturation threshold against quality and bytes (paper, table 4)."""

from .base import shown, table
from .trainings import PLAIN, changed, less, measure

HEADER = ("threshold", "PSNR", "- off, dB", "SSIM", "kB an image", "x off", "tiles an image",
          "x off", "masked", "flips", "images/s")


def run(config, thresholds, comm, tell):
    """Train without masks and with each threshold, and print a table. Collective.

    config: config.Config; thresholds: numbers, see saturation.threshold; render.stop is lowered to
    them where it is above; tell: prints a line. Returns a list of dicts.
    """
    rows = [dict(threshold=None, **measure(
        changed(config, "off", *PLAIN, "saturation.enabled=false"), comm))]
    for value in thresholds:
        settings = ["saturation.enabled=true", f"saturation.threshold={value:g}",
                    f"render.stop={min(value, config.render.stop):g}"]
        found = measure(changed(config, f"{value:g}", *PLAIN, *settings), comm)
        rows.append(dict(threshold=value, **found))
    if comm.rank == 0:
        for line in table([_cells(row, rows[0]) for row in rows], HEADER):
            tell(line)
    return rows


def _cells(row, off):
    """A row of the table."""
    name = "off" if row["threshold"] is None else f"{row['threshold']:g}"
    # without masks tiles are not counted; those that are then count as drawn
    tiles = row["tiles"] / (1 - row["masked"]) if row["masked"] < 1 else 0.0
    return (
        name, shown(row["psnr"], 2), shown(less(row["psnr"], off["psnr"]), 2),
        shown(row["ssim"], 4),
        f"{row['kilobytes']:.0f}", f"{row['kilobytes'] / max(off['kilobytes'], 1e-9):.3f}",
        f"{row['tiles']:.1f}" if row["tiles"] else "-",
        f"{row['tiles'] / tiles:.3f}" if tiles else "-",
        f"{row['masked']:.2%}", f"{row['flips']:.2%}", f"{row['images_per_second']:.1f}",
    )
