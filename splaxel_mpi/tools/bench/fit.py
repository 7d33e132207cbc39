"""The largest scene that ranks hold, tried by training steps, and what a Gaussian takes."""

import resource
import time

import numpy as np

from ...errors import UserError
from ...train.budget import bytes_per_gaussian, fits
from ...train.world import make_world
from .base import table
from .city_run import OURS, CityRun, Site, bring_kernels, make_config
from .scaling import Clock, counts_up_to, wait

KINDS = ("street", "aerial")
HEADER = ("Gaussians", "ranks", "share", "result", "of the fullest rank", "budget, bytes each",
          "rows and gradients", "peak of the rank", "free, GB", "s to make", *(
              f"ms a view, {kind}" for kind in KINDS))
FITS = "fits"
PLANNED = "begun, and not ended"  # what a row says until there is a result
WHOLE = 1.0  # share for the fewest ranks: what runs, runs


def run(settings, overrides, comm, tell, save=lambda rows: None):
    """Try scenes, and print a table. Collective.

    settings: dict of gaussians, side, count, size, shares, limit, as the command has them;
    overrides: "section.key=value"; comm: of the ranks; tell: prints a line; save: function of
    the rows so far, called on rank 0 before and after every try. Returns the rows.
    """
    config = make_config(overrides, OURS, comm.size)
    bring_kernels(config, comm)
    memory, real = _memory(config, comm)
    if not fits(min(settings["shares"]) * memory, real):
        raise UserError(f"bench fit: --share {min(settings['shares']):g} of {memory:.3g} bytes "
                        "holds no Gaussian: raise it or backend.memory")
    rows, clock = [], Clock(settings["limit"])

    def attempt(gaussians, ranks, share):
        rows.append(dict(gaussians=gaussians, ranks=ranks, share=share, result=PLANNED,
                         budget=bytes_per_gaussian(real)))
        if comm.rank == 0:
            save(rows)
        if clock.over(comm, clock.end):
            rows[-1]["result"] = f"not run: no time was left (--limit {settings['limit']:g})"
        else:
            rows[-1].update(_try(settings, overrides, comm, rows[-1], memory))
        if comm.rank == 0:
            save(rows)
            tell(f"{gaussians:,} Gaussians on {ranks} ranks: {rows[-1]['result']}")
        return rows[-1]["result"] == FITS

    for ranks in counts_up_to(comm.size):
        if attempt(settings["gaussians"], ranks, WHOLE):
            break
    for share in sorted(settings["shares"]):
        if not attempt(comm.size * fits(share * memory, real), comm.size, share):
            break  # a larger one does not, either
    if comm.rank == 0:
        for line in table(map(_cells, rows), HEADER):
            tell(line)
    return rows


def _memory(config, comm):
    """(bytes that are free for one rank, real type). Collective. Raises UserError on the host
    backend where backend.memory is not given: other programs live there, too."""
    world = make_world(config, comm)
    free = min(comm.allgather(world.backend.memory.available()))
    on_host, real = world.backend.xp is np, world.backend.real
    world.node.Free()
    given = config.backend.memory
    if on_host and given is None:
        raise UserError("bench fit: on the host backend say what a rank may take for Gaussians: "
                        "backend.memory=1G")
    return given if given is not None else free, real


def _try(settings, overrides, comm, row, memory):
    """What a try has found, on every rank."""
    group = comm.Split(int(comm.rank >= row["ranks"]), comm.rank)
    found = None
    if comm.rank < row["ranks"]:
        given = [*overrides, f"backend.memory={int(row['share'] * memory)}"]
        found = _steps(settings, make_config(given, OURS, row["ranks"]), group, row["gaussians"])
    wait(comm)
    group.Free()
    return comm.bcast(found)


def _steps(settings, config, group, gaussians):
    """Make a city and show its views twice; figures by name, "result" among them."""
    side = settings["side"] * max(1.0, gaussians / settings["gaussians"]) ** 0.5
    start, site = time.perf_counter(), None
    try:
        site = Site(config, group, gaussians, side)
        made = time.perf_counter() - start
        return dict(_shown(settings, config, site), seconds=made)
    except UserError as error:
        return dict(result=f"refused: {error}")
    except MemoryError as error:
        if group.size > 1:  # the others are in a collective
            raise
        return dict(result=f"out of memory: {error}")
    finally:
        if site:
            site.close()


def _shown(settings, config, site):
    """Steps on a site, and what they took of its memory."""
    memory, world = site.world.backend.memory, site.world
    views, times = {}, {}
    for kind in KINDS:
        views[kind] = site.views(kind, settings["count"], settings["size"])
        run = CityRun(site, config, OURS, views[kind])
        run.epoch()  # makes masks; kernels are compiled
        times[kind] = 1e3 * run.epoch() / len(views[kind])
    held = np.array([len(site.state.gaussians), site.state.nbytes, _peak(memory),
                     memory.figures().get("device/free", 0), memory.spent])
    ranks = np.array(world.comm.allgather(held))
    rows, store, peak, _, _ = ranks[ranks[:, 2].argmax()].tolist()
    return dict(
        result="the reserve was needed" if ranks[:, 4].any() else FITS,
        fullest=int(ranks[:, 0].max()), rows=store / rows, peak=peak / rows,
        peak_bytes=int(peak), free=int(ranks[:, 3].min()), milliseconds=times)


def _peak(memory):
    """Bytes that a rank's memory has held at most: CuPy's pool keeps what it was given; on the
    host of the whole process."""
    figures = memory.figures()
    if "device/pool" in figures:
        return figures["device/pool"]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cells(row):
    """A row of the table; a reason was said when it was found."""
    result = row["result"].split(":")[0]
    first = f"{row['gaussians']:,}", row["ranks"], f"{row['share']:g}", result
    if "peak" not in row:
        return (*first, "-", row["budget"], *["-"] * (len(HEADER) - 6))
    return (*first, f"{row['fullest']:,}", row["budget"], f"{row['rows']:.0f}",
            f"{row['peak']:.0f}", f"{row['free'] / 1e9:.1f}" if row["free"] else "-",
            f"{row['seconds']:.1f}", *(f"{row['milliseconds'][kind]:.2f}" for kind in KINDS))
