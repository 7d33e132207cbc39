"""Options that commands of `splaxel-mpi bench` share."""

import re

import click

from ...errors import UserError
from ..numbers import Count, Number

# as data.gaussian_city has them, which help does not import
KINDS = ("street", "aerial", "mixed")
LEAST_SIDE = 148.0
# Gaussians, below what one rank may hold
GAUSSIANS = Count((1 << 31) - 1)


class Size(click.ParamType):
    """Pixels across and down, such as 1920x1080."""

    name = "size"

    def convert(self, value, param, context):
        """(width, height) from text. Fails in one line for anything else."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)
        size = tuple(map(int, match.groups())) if match else (0, 0)
        if not all(1 <= side <= 16384 for side in size):
            self.fail(f"{value!r} is not a size such as 1920x1080, at most 16384", param, context)
        return size


report_option = click.option(
    "--json", "report", metavar="FILE", help="Write all figures there, too."
)


def check_report(report, comm):
    """Raise UserError on all ranks where rank 0 could not write --json FILE (None: none is
    wanted): before what takes hours, not after it. Collective."""
    from ...files import check_writable
    from ...mpi import world

    if report:
        world.on_root(comm, check_writable, report)


def start_ranks(report):
    """Communicator of all ranks, with device and log set up and the report checked. Collective."""
    from ... import log
    from ...mpi import device, world

    device.bind_early()
    comm = world.init()
    log.setup(None, comm.rank, comm.size)
    check_report(report, comm)
    return comm


def check_figures(folder, comm):
    """Make the folder of --figures (None: none is wanted). Raises UserError on all ranks where
    rank 0 could not write there: before what takes hours, not after it. Collective."""
    from pathlib import Path

    from ...files import cannot_write, check_writable
    from ...mpi import world

    def check():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(cannot_write(f"--figures {folder}", error)) from None
        check_writable(Path(folder, "figure.png"))

    if folder:
        world.on_root(comm, check)


def city_options(gaussians, side, count, size):
    """Decorator: the options of a city of Gaussians and its views, with these defaults.

    gaussians: text, or a tuple of them for a command that takes several cities. The command gets
    gaussians, side, kinds (a tuple), count and size.
    """
    several = isinstance(gaussians, tuple)
    again = "; give it again for another city." if several else "."
    options = [
        click.option("--gaussians", type=GAUSSIANS, multiple=several, default=gaussians,
                     help="Gaussians of the city" + again),
        click.option("--side", type=Number(LEAST_SIDE, 100_000), default=side,
                     help="Side of the city in metres."),
        click.option("--views", "kinds", type=click.Choice(KINDS), multiple=True,
                     default=("street", "aerial"),
                     help="Kind of views; give it again for another kind."),
        click.option("--count", type=click.IntRange(1, 100_000), default=count,
                     help="Views of each kind."),
        click.option("--size", type=Size(), default=size, help="Pixels of the views."),
    ]

    def decorate(command):
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def training_arguments(command):
    """Decorator: the arguments of a command that trains a scene several times, which gets
    config, overrides and report."""
    command = report_option(command)
    command = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")(command)
    return click.argument("config")(command)


def compare_trainings(config, overrides, report, run, **more):
    """Read the settings, call run(config, ..., comm, tell) and write its rows. Collective.

    config: file; overrides: "section.key=value"; report: file for the figures or None; run:
    function that trains, prints a table and returns rows; more: its other arguments, or functions
    of comm that give them.
    """
    from ...config import load, parse
    from ...mpi import device, world
    from .base import write_report

    device.bind_early()
    comm = world.init()
    text = world.on_root(comm, lambda: load(config, overrides).to_yaml())
    check_report(report, comm)
    settings = parse(text, config)
    if settings.exchange.strategy == "gaussian":
        raise UserError("bench: exchange.strategy=gaussian has no cells, masks or boundaries to "
                        "compare, and is the baseline itself: set it to overlap or owner")
    more = {name: value(comm) if callable(value) else value for name, value in more.items()}
    rows = run(settings, comm=comm, tell=click.echo, **more)
    if report and comm.rank == 0:
        command = dict(config=config, overrides=overrides, **more)
        write_report(report, command, rows, settings=settings.model_dump(), ranks=comm.size)
