"""Throughput against ranks: measured as far as there are ranks, modelled beyond (figures 19, 20).
"""

import time
from dataclasses import dataclass, field

from ...errors import UserError
from ...mpi.world import on_root
from .base import table
from .city_run import (
    CONSOLIDATION,
    GAUSSIAN,
    OURS,
    SHARE_WORDS,
    SHARES,
    CityRun,
    Site,
    Variant,
    make_config,
)
from .cost_model import CostModel, alone, load_of
from .counting import Counter

PAPER = Variant("paper", CONSOLIDATION.settings)
VARIANTS = (OURS, PAPER, GAUSSIAN)
BASE_RANKS = 2  # the model is calibrated on counts up to this
HEADER = ("scaling", "views", "Gaussians", "variant", "ranks", "from", "images/s", "x one rank",
          *SHARE_WORDS, "MB a view", "U", "balance", "modelled images/s")


@dataclass
class Study:
    """The rows of one city and one kind of scaling, and what its model is made of."""

    scaling: str
    rows: list = field(default_factory=list)
    measured: dict = field(default_factory=dict)  # (kind, variant, ranks) -> Measured


def run(settings, overrides, comm, tell):
    """Measure and model every count of ranks, and print a table. Collective.

    settings: dict of gaussians (counts of strong scaling), per_rank (Gaussians a rank of weak
    scaling, or None), side, kinds, count, size, ranks (counts to measure), model (counts to
    model), bandwidth (GB/s), latency (microseconds); overrides: "section.key=value" for all
    variants; comm: of the ranks; tell: prints a line. Returns the list of a dict for each row, on
    rank 0.
    """
    for variant in VARIANTS:
        make_config(overrides, variant, comm.size)  # a mistake is none of a count of ranks
    rows = []
    for count in settings["gaussians"]:
        study = Study("strong")
        for ranks in settings["ranks"]:
            _measure(study, settings, overrides, comm, ranks, count, settings["side"])
        _model(study, settings, overrides, comm, count)
        rows += study.rows
    if settings["per_rank"]:
        study = Study("weak")
        for ranks in settings["ranks"]:
            # the same density: a larger city
            side = settings["side"] * ranks**0.5
            _measure(study, settings, overrides, comm, ranks, ranks * settings["per_rank"], side)
        rows += study.rows
    on_root(comm, _check_some_ran, rows)
    if comm.rank == 0:
        _compare(rows)
        for line in table(map(_cells, rows), HEADER):
            tell(line)
        tell(f"\nmodelled: {settings['bandwidth']:g} GB/s a rank, {settings['latency']:g} us a "
             f"message, nothing hidden; calibrated on up to {BASE_RANKS} ranks, or the fewest on "
             "which the city fits. Parameters stay as they are.")
        for row in rows:
            if row["source"] == "not run":
                tell(f"{row['gaussians']:,} Gaussians on {row['ranks']} ranks: {row['reason']}")
    return rows


def _check_some_ran(rows):
    """Raise UserError where no row was measured."""
    if not any(row["source"] == "measured" for row in rows):
        raise UserError(rows[0]["reason"])


def counts_up_to(ranks):
    """1, 2, 4, ... and the number itself."""
    return sorted({1 << k for k in range(ranks.bit_length())} | {ranks})


def _measure(study, settings, overrides, comm, ranks, count, side):
    """Rows of all variants and views on the first ranks of comm; the others sleep."""
    group = comm.Split(int(comm.rank >= ranks), comm.rank)
    if comm.rank < ranks:
        site = None
        try:
            site = Site(make_config(overrides, OURS, ranks), group, count, side)
        except UserError as error:
            study.rows.append(dict(scaling=study.scaling, gaussians=count, side=side,
                                   ranks=ranks, source="not run", reason=str(error)))
        if site:
            _measure_site(study, settings, overrides, site, ranks)
            site.close()
    _wait(comm)
    group.Free()


def _measure_site(study, settings, overrides, site, ranks):
    for variant in VARIANTS:  # in the order that moves Gaussians once
        config = make_config(overrides, variant, ranks)
        for kind in settings["kinds"]:
            views = site.views(kind, settings["count"], settings["size"])
            found = CityRun(site, config, variant, views).measure()
            study.measured[kind, variant.name, ranks] = found
            study.rows.append(dict(
                scaling=study.scaling, kind=kind, gaussians=site.count, side=site.side,
                source="measured", backend=site.world.backend.name,
                transport=site.world.exchange.name, **found.row(),
            ))


def _wait(comm):
    """A barrier that leaves the cores to those who still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.02)


def _model(study, settings, overrides, comm, count):
    """Predict every count of strong scaling on which the city fits, and add rows for those that
    were not measured."""
    done = comm.bcast(sorted({ranks for _, _, ranks in study.measured}))
    if not done:
        return
    wanted = sorted(ranks for ranks in {*settings["ranks"], *settings["model"]}
                    if ranks >= done[0])
    counts = _count(settings, overrides, comm, count, wanted)
    if comm.rank:
        return
    base = [ranks for ranks in done if ranks <= BASE_RANKS] or done[:1]
    for kind in settings["kinds"]:
        for variant in VARIANTS:
            _model_variant(study, settings, overrides, counts[kind], (kind, variant), base, wanted)


def _model_variant(study, settings, overrides, counts, which, base, wanted):
    """Predictions of one variant and kind of views. counts: {ranks: list of ViewCount}; base:
    numbers of ranks to calibrate on; wanted: those to predict."""
    kind, variant = which
    total = study.rows[0]["gaussians"]

    def load(ranks):
        if ranks == 1:
            return alone(next(iter(counts.values())), total)
        return load_of(counts[ranks], make_config(overrides, variant, ranks), total)

    found = [study.measured[kind, variant.name, ranks] for ranks in base]
    model = CostModel.fit(found, [load(ranks) for ranks in base], 1e9 * settings["bandwidth"],
                          1e-6 * settings["latency"])
    measured = {row["ranks"]: row for row in study.rows
                if (row.get("kind"), row.get("variant")) == (kind, variant.name)}
    for ranks in wanted:
        predicted = model.predict(load(ranks), make_config(overrides, variant, ranks))
        if ranks in measured:
            measured[ranks]["modelled"] = predicted
            continue
        row = dict(scaling=study.scaling, kind=kind, gaussians=total, side=settings["side"],
                   variant=variant.name, source="modelled", **predicted)
        study.rows.append(dict(row, costs=model.costs.tolist()))


def _count(settings, overrides, comm, count, wanted):
    """{kind: {ranks: list of ViewCount}} for ranks of two and more, by all processes."""
    site = Site(make_config(overrides, OURS, comm.size), comm, count, settings["side"])
    out = {kind: {} for kind in settings["kinds"]}
    for ranks in [ranks for ranks in wanted if ranks > 1] or [2]:
        tree = site.cut(ranks)
        counter = Counter(site.state, tree, site.world.backend, site.world.exchange)
        for kind, found in out.items():
            views = site.views(kind, settings["count"], settings["size"])
            found[ranks] = [counter.count(view.camera) for view in views]
        del counter
    site.close()
    return out


def _compare(rows):
    """Fill speed-ups over one rank, of measured rows over measured ones; sort the rows."""
    one = {_series(row): row["images_per_second"] for row in rows
           if row["source"] == "measured" and row["ranks"] == 1}
    for row in rows:
        base = one.get(_series(row))
        if base and "images_per_second" in row:
            row["speedup"] = row["images_per_second"] / base
    variants = [variant.name for variant in VARIANTS]
    rows.sort(key=lambda row: (  # those that did not run, of no variant, last
        row["scaling"] == "weak", _series(row)[1], row.get("kind", "~"),
        variants.index(row["variant"]) if "variant" in row else len(variants), row["ranks"],
    ))


def _series(row):
    """What rows have in common that differ in ranks alone."""
    weak = row["scaling"] == "weak"
    return (row["scaling"], 0 if weak else row["gaussians"], row.get("kind", ""),
            row.get("variant", ""))


def _cells(row):
    """A row of the table."""
    first = (row["scaling"], row.get("kind", "-"), f"{row['gaussians']:,}",
             row.get("variant", "-"), row["ranks"], row["source"])
    if row["source"] == "not run":
        return (*first, *["-"] * (len(HEADER) - len(first)))
    shares = dict(row.get("shares", {}), **{name: row[name] for name in SHARES if name in row})
    guess = row.get("modelled", {}).get("images_per_second")
    return (
        *first, f"{row['images_per_second']:.2f}",
        f"{row['speedup']:.2f}" if "speedup" in row else "-",
        *(f"{shares[name]:.0%}" if name in shares else "-" for name in SHARES),
        f"{row['total_bytes'] / 1e6:.3f}", f"{row['active']:.2f}", f"{row['balance']:.2f}",
        f"{guess:.2f} ({guess / row['images_per_second'] - 1:+.0%})" if guess else "-",
    )
