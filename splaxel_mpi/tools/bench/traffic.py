"""Bytes of a view against Gaussians and against ranks, ours and the baseline's (figures 3, 4)."""

import logging
import time
from dataclasses import asdict

import numpy as np

from ...data.gaussian_city import cameras
from ...partition.kdtree import build
from .base import table
from .counting import (
    GHOST,
    GHOST_BACK,
    OCCUPIED,
    SPATIAL,
    STAGES,
    STRATEGIES,
    UNSATURATED,
    CellCity,
    Counter,
)

log = logging.getLogger(__name__)

NOTES = (
    "",
    "MB: 10^6 bytes a training view that all ranks send to others, float32. First table: pixels, "
    "their gradients,",
    "halo, ghosts and their gradients, bitmaps and masks, with masks in effect; x first: owner "
    "over that of the first",
    "city; least: the baseline with strips of equal size and the records of Grendel. Second "
    "table: pixels alone.",
)

HEADER = ("views", "Gaussians", "ranks", "visible", "ranks a view", "overlap, MB", "owner, MB",
          "x first", "ghosts, MB", "gaussian, MB", "least", "gaussian / owner", "/ overlap")
STAGE_HEADER = ("views", "Gaussians", "ranks", "tiles", "pixels / image", "ranks a view",
                "overlap, MB", "owner, MB", "overlap / spatial", "owner / spatial")
PIXELS = ("streams", "streams back", "halo")  # kinds of bytes that no Gaussian is part of


def run(settings, backend, exchange, tell):
    """Count and print two tables. Collective.

    settings: dict of gaussians (counts), side (metres), ranks (numbers of them), kinds, count
    (views of each kind), size (width, height), threshold, stop; backend: of the host, float32;
    exchange: of the processes that share the work, however many; tell: prints a line. Returns
    the list of a dict for each row. Cells are those of the first count, so that all have the
    same ranks in the same places.
    """
    rows, trees = [], {}
    for count in settings["gaussians"]:
        city = CellCity(count, settings["side"], exchange, backend.threads)
        for ranks in settings["ranks"]:
            if ranks not in trees:
                trees[ranks] = build(city.rows["means"], None, ranks, exchange)
            city.migrate(trees[ranks], exchange)
            counter = Counter(city, trees[ranks], backend, exchange, settings["threshold"],
                              settings["stop"])
            for kind in settings["kinds"]:
                views = cameras(kind, settings["count"], settings["side"], 1, *settings["size"])
                start = time.perf_counter()
                found = [counter.count(camera) for camera in views]
                log.info("%d %s views of %d Gaussians on %d ranks counted in %.0f s", len(views),
                         kind, count, ranks, time.perf_counter() - start)
                rows.append(dict(kind=kind, gaussians=count, side=settings["side"], ranks=ranks,
                                 views=len(views), **summarise(found)))
    show(rows, tell)
    return rows


def summarise(counts):
    """Figures of views, means over a list of ViewCount.

    visible: Gaussians; stages: per stage pixels (over those of an image), ranks (that draw) and
    bytes by strategy and kind; outside: share of drawn tiles outside of the predicted regions;
    baseline: Traffic of strategy gaussian, and lean, the least that can be said for it; totals:
    bytes of each view by strategy, masks in effect.
    """
    stages = {}
    for stage in STAGES:
        shares = [c.pixels(stage).sum() / (c.camera.width * c.camera.height) for c in counts]
        stages[stage] = dict(
            pixels=float(np.mean(shares)),
            ranks=float(np.mean([c.tiles[stage].any(1).sum() for c in counts])),
            ghosts=_mean([c.ghosts[stage].sum() for c in counts if stage in c.ghosts]),
            bytes={name: _by_kind(counts, name, stage) for name in STRATEGIES},
        )
    drawn = sum(c.tiles[OCCUPIED].sum() for c in counts)
    missed = sum((c.tiles[OCCUPIED] & ~c.tiles[SPATIAL]).sum() for c in counts)
    baseline = [asdict(c.baseline) for c in counts]
    totals = {name: [sum(c.bytes(name).values()) for c in counts] for name in STRATEGIES}
    return dict(
        visible=float(np.mean([c.visible.sum() for c in counts])),
        stages=stages,
        outside=float(missed / max(drawn, 1)),
        baseline=dict({name: float(np.mean([row[name] for row in baseline]))
                       for name in baseline[0]},
                      total=float(np.mean([c.baseline.total for c in counts])),
                      lean=float(np.mean([c.lean for c in counts]))),
        totals=dict(totals, gaussian=[c.baseline.total for c in counts]),
    )


def _by_kind(counts, strategy, stage):
    """Mean bytes of a stage by kind, and their total."""
    found = [c.bytes(strategy, stage) for c in counts]
    means = {kind: float(np.mean([row[kind] for row in found])) for kind in found[0]}
    return dict(means, total=sum(means.values()))


def _mean(values):
    return float(np.mean(values)) if values else None


def show(rows, tell):
    """Print both tables: bytes, then what each reduction leaves."""
    first = {}
    for row in rows:
        first.setdefault((row["kind"], row["ranks"]), row)
    for line in table([_cells(row, first[row["kind"], row["ranks"]]) for row in rows], HEADER):
        tell(line)
    tell("")
    stages = [_stage_cells(row, stage) for row in rows for stage in STAGES]
    for line in table(stages, STAGE_HEADER):
        tell(line)
    for line in NOTES:
        tell(line)


def total(row, strategy):
    """Mean bytes of a view, masks in effect."""
    return row["stages"][UNSATURATED]["bytes"][strategy]["total"]


def pixel_bytes(row, strategy, stage=UNSATURATED):
    """Those of them that are pixels, their gradients and the halo."""
    found = row["stages"][stage]["bytes"][strategy]
    return sum(found[kind] for kind in PIXELS)


def _cells(row, first):
    """A row of the first table. first: the row of the same views and the smallest city."""
    last, baseline = row["stages"][UNSATURATED], row["baseline"]["total"]
    overlap, owner = (total(row, name) for name in STRATEGIES)
    shown = overlap, owner, last["ghosts"] * (GHOST + GHOST_BACK), baseline, row["baseline"]["lean"]
    megabytes = [f"{value / 1e6:.2f}" for value in shown]
    return (
        f"{row['views']} {row['kind']}", f"{row['gaussians']:,}", row["ranks"],
        f"{row['visible']:,.0f}", f"{last['ranks']:.1f}", *megabytes[:2],
        _ratio(owner, total(first, "owner")), *megabytes[2:],
        _ratio(baseline, owner), _ratio(baseline, overlap),
    )


def _stage_cells(row, stage):
    """A row of the second table."""
    found = row["stages"][stage]
    pixels = [pixel_bytes(row, name, stage) for name in STRATEGIES]
    before = [pixel_bytes(row, name, SPATIAL) for name in STRATEGIES]
    return (
        f"{row['views']} {row['kind']}", f"{row['gaussians']:,}", row["ranks"], stage,
        f"{found['pixels']:.2f}", f"{found['ranks']:.1f}",
        *(f"{value / 1e6:.2f}" for value in pixels), *map(_ratio, pixels, before),
    )


def _ratio(value, base):
    """A quotient for a table, - where there is none."""
    return f"{value / base:.2f}" if base else "-"
