"""Throughput against ranks: measured as far as there are ranks, modelled beyond (figures 19, 20).
"""

import time
from dataclasses import dataclass, field

from ...errors import UserError
from ...mpi.world import on_root
from . import links
from .city_run import (
    CONSOLIDATION,
    GAUSSIAN,
    OURS,
    CityRun,
    Site,
    Variant,
    bring_kernels,
    make_config,
)
from .counting import Counter
from .scaling_model import BASE_RANKS, predict
from .scaling_table import report

PAPER = Variant("paper", CONSOLIDATION.settings)
VARIANTS = {variant.name: variant for variant in (OURS, PAPER, GAUSSIAN)}
LEFT = "not run"  # source of a row without figures, which has a reason
SMALLER = 2  # one rank also draws views of this part of the width and height: see Study.small


@dataclass
class Study:
    """What is known of one kind of scaling: rows, and what its model is made of."""

    scaling: str  # "strong", "weak"
    gaussians: int  # of the city; weak: of a rank
    side: float  # metres; weak: of the city of one rank
    rows: list = field(default_factory=list)
    # (kind, variant, transport, ranks) -> Measured; one rank has transport None
    measured: dict = field(default_factory=dict)
    counts: dict = field(default_factory=dict)  # ranks -> {kind: list of ViewCount}
    # (kind, variant) -> Measured, and kind -> list of ViewCount, of smaller views on one rank:
    # where all views have as many pixels, nothing tells what a pixel takes from what a view does
    small: dict = field(default_factory=dict)
    small_counts: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)  # (transport, ranks) -> Link

    def city(self, ranks):
        """(Gaussians, side) of the city on so many ranks; weak: larger ones of one density."""
        if self.scaling == "strong":
            return self.gaussians, self.side
        return self.gaussians * ranks, self.side * ranks**0.5

    def row(self, ranks, source, **more):
        """A new row."""
        count, side = self.city(ranks)
        self.rows.append(dict(scaling=self.scaling, gaussians=count, side=side, ranks=ranks,
                              source=source, **more))
        return self.rows[-1]


class Clock:
    """Time that a run may take. limit: seconds, None for no end."""

    def __init__(self, limit):
        self.limit, self.end = limit, time.monotonic() + (limit or float("inf"))

    def part(self, parts):
        """End of the first of so many equal parts of what is left."""
        now = time.monotonic()
        return now + (self.end - now) / parts

    @staticmethod
    def over(comm, end):
        """Whether a moment has passed, as the first rank of comm sees it. Collective."""
        return comm.bcast(time.monotonic() >= end)


class Scaling:
    """A run of the command. settings, overrides, comm: as for ``run``; save: function of the
    rows so far, called on rank 0 whenever there are more."""

    def __init__(self, settings, overrides, comm, save):
        self.settings, self.overrides, self.comm, self.save = settings, overrides, comm, save
        self.variants = [variant for name, variant in VARIANTS.items()
                         if name in settings["variants"]]
        for variant in self.variants:
            self.config(variant, comm.size)  # a mistake is none of a count of ranks
        bring_kernels(self.config(OURS, comm.size), comm)
        self.clock = Clock(settings["limit"])
        self.studies = [Study("strong", count, settings["side"])
                        for count in settings["gaussians"]]
        if settings["per_rank"]:
            self.studies.append(Study("weak", settings["per_rank"], settings["side"]))

    @property
    def rows(self):
        """Rows of all studies."""
        return [row for study in self.studies for row in study.rows]

    @property
    def late(self):
        """Reason of a row for which there was no time."""
        return f"no time was left (--limit {self.settings['limit']:g})"

    def config(self, variant, ranks):
        """Config of a variant on so many ranks."""
        # what always works makes the city; --transport comes later, one after the other
        first = ["mpi.transport=staged"] if self.settings["transports"] else []
        return make_config([*first, *self.overrides], variant, ranks)

    def measure(self):
        """Every count of ranks of every study. Each has an equal part of the time that is left:
        beyond it, nothing but the first transport is measured."""
        counts = self.settings["ranks"]  # first those that calibrate, and the largest
        counts = sorted(counts, key=lambda n: (BASE_RANKS < n < max(counts), n))
        todo = [(study, ranks) for study in self.studies for ranks in counts]
        for done, (study, ranks) in enumerate(todo):
            end = self.clock.part(len(todo) - done + len(self.studies))  # models take as much
            if self.clock.over(self.comm, self.clock.end):
                study.row(ranks, LEFT, reason=self.late)
            else:
                self._measure(study, ranks, end)

    def _measure(self, study, ranks, end):
        """Rows of all variants and views on the first ranks of comm; the others sleep."""
        group = self.comm.Split(int(self.comm.rank >= ranks), self.comm.rank)
        if self.comm.rank < ranks:
            try:
                self._measure_on(group, study, ranks, end)
            except MemoryError as error:
                if ranks > 1:  # the others are in a collective
                    raise
                study.row(ranks, LEFT, reason=f"out of memory: {error}")
        wait(self.comm)
        group.Free()
        self._saved()

    def _measure_on(self, group, study, ranks, end):
        try:
            site = Site(self.config(OURS, ranks), group, *study.city(ranks))
        except UserError as error:
            study.row(ranks, LEFT, reason=str(error))
            return
        self._measure_site(study, site, ranks, end)
        site.close()

    def _views(self, site, kind, smaller=1):
        size = [max(1, side // smaller) for side in self.settings["size"]]
        return site.views(kind, self.settings["count"], size)

    def _measure_site(self, study, site, ranks, end):
        several = self.settings["transports"] if ranks > 1 else ()
        for place, transport in enumerate(several or (None,)):
            until = end if place else self.clock.end
            if transport:
                try:
                    site.connect(transport)
                except UserError as error:
                    study.row(ranks, LEFT, reason=str(error), transport=transport)
                    continue
            if ranks > 1:
                found = links.measure(site.world.exchange, site.world.backend)
                study.links[site.world.exchange.name, ranks] = found
            for variant in self.variants:  # in the order that moves Gaussians once
                for kind in self.settings["kinds"]:
                    self._measure_one(study, site, variant, kind, until)

    def _measure_one(self, study, site, variant, kind, until):
        """A row of one variant and one kind of views."""
        ranks, name = site.world.ranks, site.world.exchange.name
        what = dict(kind=kind, variant=variant.name, transport=name)
        if self.clock.over(site.world.comm, until):
            study.row(ranks, LEFT, reason=self.late, **what)
            return
        config = self.config(variant, ranks)
        found = CityRun(site, config, variant, self._views(site, kind)).measure()
        study.measured[kind, variant.name, name if ranks > 1 else None, ranks] = found
        row = study.row(ranks, "measured", backend=site.world.backend.name, **what)
        row.update(found.row())
        if ranks > 1:
            row["link"] = vars(study.links[name, ranks])
        elif not self.clock.over(site.world.comm, until):
            small = CityRun(site, config, variant, self._views(site, kind, SMALLER))
            study.small[kind, variant.name] = small.measure()
        self._saved()

    def _saved(self):
        if self.comm.rank == 0:
            self.save(self.rows)

    def model(self):
        """Predict what was measured, and, of strong scaling, counts that were not."""
        for study in self.studies:
            self._count(study)
        if self.comm.rank == 0:
            for study in self.studies:
                self._predict(study)
            self._saved()

    def _count(self, study):
        """Find what the views make ranks draw and send, with a cell for each, by all processes:
        after all that is measured, which is worth more."""
        measured = self.comm.bcast(sorted({ranks for *_, ranks in study.measured}))
        wanted = {*measured}
        if study.scaling == "strong" and measured:
            wanted |= {ranks for ranks in self.settings["model"] if ranks > measured[0]}
            wanted |= {ranks for ranks in self.settings["ranks"] if ranks > measured[0]}
        site, found = None, {}
        for ranks in sorted(wanted):
            city, cells = study.city(ranks), max(2, ranks)
            if (city, cells) not in found:
                if self.clock.over(self.comm, self.clock.end):
                    if ranks not in measured:
                        study.row(ranks, LEFT, reason=self.late)
                    continue
                if site and site.count != city[0]:
                    site = site.close()
                site = site or Site(self.config(OURS, self.comm.size), self.comm, *city)
                found[city, cells] = self._counted(site, cells)
            study.counts[ranks] = found[city, cells]
            if self.comm.bcast(ranks == 1 and bool(study.small)):
                study.small_counts = self._counted(site, cells, SMALLER)
        if site:
            site.close()

    def _counted(self, site, cells, smaller=1):
        """{kind: list of ViewCount} of a site in so many cells."""
        tree = site.cut(cells)
        counter = Counter(site.state, tree, site.world.backend, site.world.exchange)
        return {kind: [counter.count(view.camera) for view in self._views(site, kind, smaller)]
                for kind in self.settings["kinds"]}

    def _predict(self, study):
        """Fill "modelled" of measured rows, and add rows of counts that were not measured."""
        pool = [one for one in self.studies if one.scaling == "strong" and one is not study]
        for kind in self.settings["kinds"]:
            for variant in self.variants:
                for found in predict(study, pool, kind, variant.name, self.settings,
                                     lambda n, one=variant: self.config(one, n)):
                    self._place(study, found, kind=kind, variant=variant.name)

    @staticmethod
    def _place(study, found, **what):
        """Put a prediction into the row of what it predicts, or into a new one. found:
        scaling_model.Prediction."""
        figures, ranks = found.figures, found.figures["ranks"]
        transports = (None, found.transport) if ranks > 1 else (None,)
        for row in study.rows:
            same = row["ranks"] == ranks and row["source"] == "measured"
            if same and all(row[name] == value for name, value in what.items()):
                if ranks == 1 or row["transport"] in transports:
                    row["modelled"] = figures
                    return
        if ranks > 1:
            more = dict(what, transport=found.transport, link=vars(found.link),
                        costs=found.costs)
            study.row(ranks, "modelled", **more).update(figures)


def run(settings, overrides, comm, tell, save=lambda rows: None):
    """Measure and model every count of ranks, and print a table. Collective.

    settings: dict of gaussians (counts of strong scaling), per_rank (Gaussians a rank of weak
    scaling, or None), side, kinds, count, size, ranks (counts to measure), model (counts to
    model), variants (names), transports (names; none: as the settings say), bandwidth (GB/s) and
    latency (microseconds; None: measured), limit (seconds after which nothing begins, or None);
    overrides: "section.key=value" for all variants; comm: of the ranks; tell: prints a line;
    save: see Scaling. Returns the list of a dict for each row, on rank 0.
    """
    bench = Scaling(settings, overrides, comm, save)
    bench.measure()
    on_root(comm, _check_some_ran, bench.rows)
    bench.model()
    return report(bench.rows, tell) if comm.rank == 0 else bench.rows


def _check_some_ran(rows):
    """Raise UserError where no row was measured."""
    if not any(row["source"] == "measured" for row in rows):
        raise UserError(rows[0]["reason"])


def counts_up_to(ranks):
    """1, 2, 4, ... and the number itself."""
    return sorted({1 << k for k in range(ranks.bit_length())} | {ranks})


def wait(comm):
    """A barrier that leaves the cores to those who still work."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.02)
