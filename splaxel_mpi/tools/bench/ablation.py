"""What each part of the method brings, on the ranks at hand (paper, figure 22)."""

from .base import table
from .city_run import (
    CONSOLIDATION,
    GAUSSIAN,
    OURS,
    PIXEL_LEVEL,
    REDUNDANCY,
    SHARE_WORDS,
    SHARES,
    CityRun,
    Site,
    make_config,
)

VARIANTS = (PIXEL_LEVEL, REDUNDANCY, CONSOLIDATION, OURS, GAUSSIAN)
HEADER = ("views", "variant", "ms a view", "x", *SHARE_WORDS, "MB a view", "ranks a view", "U",
          "balance")


def run(settings, overrides, comm, tell):
    """Measure every variant and print a table. Collective.

    settings: dict of gaussians, side, kinds, count, size; overrides: "section.key=value" for all
    variants; comm: of the ranks; tell: prints a line. Returns (list of a dict for each row,
    backend).
    """
    configs = {variant: make_config(overrides, variant, comm.size) for variant in VARIANTS}
    site, rows = Site(configs[OURS], comm, settings["gaussians"], settings["side"]), []
    for kind in settings["kinds"]:
        views = site.views(kind, settings["count"], settings["size"])
        for variant, config in configs.items():
            found = CityRun(site, config, variant, views).measure()
            rows.append(dict(kind=kind, **found.row()))
    for line in table(_cells(rows), HEADER):
        tell(line)
    backend = site.world.backend
    site.close()
    return rows, backend


def _cells(rows):
    """Rows of the table; x: speed against the first variant of the same views."""
    first = {}
    for row in rows:
        base = first.setdefault(row["kind"], row["milliseconds"])
        yield (
            row["kind"], row["variant"], f"{row['milliseconds']:.2f}",
            f"{base / row['milliseconds']:.2f}",
            *(f"{row['shares'][name]:.0%}" for name in SHARES),
            f"{row['total_bytes'] / 1e6:.3f}", f"{row['ranks_a_view']:.2f}",
            f"{row['active']:.2f}", f"{row['balance']:.2f}",
        )
