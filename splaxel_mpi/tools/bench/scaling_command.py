"""Commands of `splaxel-mpi bench` about more ranks and larger scenes."""

from pathlib import Path

import click

from ...errors import UserError
from ..numbers import Number
from .options import (
    GAUSSIANS,
    LEAST_SIDE,
    Size,
    check_figures,
    city_options,
    report_option,
    start_ranks,
)

VARIANTS = ("ours", "paper", "gaussian")  # as scaling has them, which help does not import
TRANSPORTS = ("cuda-aware", "nccl", "staged")
figures_option = click.option(
    "--figures", metavar="FOLDER", help="Draw images/s, speed-up, shares of time, waiting, bytes "
    "and utilisation against ranks there, a PNG for each city and kind of views.")


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@city_options(("100k",), 300.0, 8, "320x180")
@click.option("--no-strong", is_flag=True, show_default=False, help="Weak scaling alone.")
@click.option("--per-rank", type=GAUSSIANS, help="Gaussians of each rank: weak scaling, too, in "
              "cities that grow with the ranks from --side on.")
@click.option("--ranks", type=click.IntRange(1, 4096), multiple=True,
              help="Ranks to measure on, at most those at hand; give it again for another "
              "number. Default: 1, 2, 4, ... and all.")
@click.option("--model", type=click.IntRange(1, 4096), multiple=True,
              help="Ranks to model besides; give it again for another number. Default: twice and "
              "four times those at hand.")
@click.option("--variant", "variants", type=click.Choice(VARIANTS), multiple=True,
              default=VARIANTS, help="What to measure; give it again for another one.")
@click.option("--transport", "transports", type=click.Choice(TRANSPORTS), multiple=True,
              help="How data of GPUs travel; give it again for another one, the most important "
              "first. Default: as mpi.transport says.")
@click.option("--bandwidth", type=Number(0, min_open=True), default=None,
              help="GB/s of a rank, for the model. Default: measured on the fewest ranks that "
              "exchange; 25 where there are none.")
@click.option("--latency", type=Number(0), default=None,
              help="Microseconds of a message, for the model. Default: likewise; 50.")
@click.option("--limit", type=Number(0, min_open=True),
              help="Seconds after which nothing more is begun; what is left out is said.")
@figures_option
@report_option
@click.pass_context
def scaling(context, overrides, report, figures, ranks, model, no_strong, **settings):
    """Images a second against ranks (figures 19, 20), measured and modelled.

    On a city of Gaussians: ours (balanced, exact), the paper's settings (overlap, filter,
    conflict-free) and the exchange of Gaussians, on 1, 2, 4, ... of the ranks at hand. KEY=VALUE
    changes a setting for all of them. Parameters stay as they are; a batch has as many views as
    ranks.

    The time of each rank is modelled from what its cell draws and sends, counted exactly, with
    costs fitted to the runs on one and two ranks and a link measured there: for more ranks, and
    for those that were measured, beside what they took. The file of --json is written anew
    after every run, so that it holds what was done until a time limit or a failure.

    \b
    Examples:
      mpirun -n 4 splaxel-mpi bench scaling
      mpirun -n 8 splaxel-mpi bench scaling --gaussians 10M --gaussians 40M --per-rank 15M \\
        --side 1600 --count 64 --size 1920x1080 --transport nccl --transport staged \\
        --json scaling.json --figures scaling
    """
    from . import scaling as tool
    from .base import write_report

    comm = start_ranks(report)
    check_figures(figures, comm)
    settings["ranks"] = sorted(set(ranks)) or tool.counts_up_to(comm.size)
    settings["model"] = sorted(set(model)) or [2 * comm.size, 4 * comm.size]
    if no_strong:
        settings["gaussians"] = ()
        if not settings["per_rank"]:
            raise UserError("bench scaling: --no-strong leaves nothing without --per-rank")
    if settings["ranks"][-1] > comm.size:
        raise UserError(f"bench scaling: --ranks {settings['ranks'][-1]} of {comm.size} at hand: "
                        "start more with mpirun -n, or put it into --model")

    def save(rows):
        if report:
            write_report(report, dict(context.params, **settings), rows, processes=comm.size)

    rows = tool.run(settings, overrides, comm, click.echo, save)
    if comm.rank == 0:
        save(rows)
        _draw(rows, figures)


@click.command("scaling-table")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@figures_option
@report_option
def scaling_table(files, figures, report):
    """Print one table of what several runs of `bench scaling` wrote by --json.

    --json FILE writes the rows of all of them. One process, no mpirun.

    \b
    Example:
      splaxel-mpi bench scaling-table strong.json weak.json --figures scaling --json all.json
    """
    from . import scaling_table as tool
    from .base import write_report
    from .scaling_rows import read

    rows = [row for file in files for row in read(file)]
    tool.report(rows, click.echo)
    if report:
        write_report(report, dict(files=files), rows)
    _draw(rows, figures)


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--gaussians", type=GAUSSIANS, default="120M",
              help="The scene for which the fewest ranks are looked for.")
@click.option("--side", type=Number(LEAST_SIDE, 100_000), default=2800.0,
              help="Side of its city in metres; larger scenes are larger cities.")
@click.option("--count", type=click.IntRange(1, 100_000), default=8,
              help="Views of each kind, street and aerial.")
@click.option("--size", type=Size(), default="1920x1080", help="Pixels of the views.")
@click.option("--share", "shares", type=Number(0, 1, min_open=True), multiple=True,
              default=(0.7, 0.85, 0.95),
              help="Part of the free memory, or of backend.memory, that Gaussians may take; give "
              "it again for another one. 0.7 is what training takes by default. On the host "
              "backend.memory must be given.")
@click.option("--limit", type=Number(0, min_open=True),
              help="Seconds after which nothing more is begun; what is left out is said.")
@report_option
@click.pass_context
def fit(context, overrides, report, **settings):
    """Try the largest scene that fits, and what a Gaussian takes.

    Training steps on cities of Gaussians, ours: first the scene of --gaussians on 1, 2, 4, ...
    ranks until it fits, then as many Gaussians as all ranks hold by each --share. The table has
    the bytes of a Gaussian's rows, moments and gradients beside the 965 that are budgeted for,
    and the peak of all that a rank's memory held. A try that fails may end the command: the file
    of --json holds those before it, and its beginning.

    \b
    Examples:
      mpirun -n 8 splaxel-mpi bench fit --json fit.json
      mpirun -n 2 splaxel-mpi bench fit --gaussians 20k --side 150 --size 160x90 --share 1 \\
        backend.name=host backend.memory=20M
    """
    from . import fit as tool
    from .base import write_report

    comm = start_ranks(report)

    def save(rows):
        if report:
            write_report(report, dict(context.params), rows, processes=comm.size)

    tool.run(settings, overrides, comm, click.echo, save)


def _draw(rows, folder):
    """Figures of rows, if a folder (None: none) is wanted. Raises UserError."""
    from . import scaling_table as tool

    if folder:
        try:
            files = tool.draw(rows, Path(folder))
        except OSError as error:
            raise UserError(f"--figures {folder}: {error.strerror}") from None
        click.echo(f"figures: {', '.join(map(str, files))}")


COMMANDS = (scaling, scaling_table, fit)
