"""The command group `splaxel-mpi bench`."""

import copy
import functools
import itertools

import click

from ...errors import UserError
from ..numbers import Number
from . import paper, scaling_command
from .options import (
    GAUSSIANS,
    KINDS,
    Size,
    check_report,
    compare_trainings,
    report_option,
    training_arguments,
)


@click.group()
def bench():
    """Measure parts on this machine, and reproduce the tables of the paper at any scale."""


for one in (*paper.COMMANDS, *scaling_command.COMMANDS):
    bench.add_command(one)


# Gaussians and metres of a side, for each backend: what takes a minute there.
CITY = {"cuda": (4_000_000, 1000.0), "host": (100_000, 200.0)}


@bench.command()
@click.option("--gaussians", type=GAUSSIANS, multiple=True, show_default="4M on GPUs, 100k on CPUs",
              help="Gaussians of the city; give it and --side again for another city.")
@click.option("--side", type=Number(148, 100_000), multiple=True,
              show_default="1000 on GPUs, 200 on CPUs", help="Side of the city in metres.")
@click.option("--views", type=click.Choice(KINDS), multiple=True,
              default=("street",), help="Kind of views; give it again for another kind.")
@click.option("--count", type=click.IntRange(1, 10_000), default=8, help="Views of each kind.")
@click.option("--size", type=Size(), default="1920x1080", help="Pixels of the city's views.")
@click.option("--model", metavar="FILE", help="A trained scene, .ply or .h5, in place of the "
              "city; needs --data.")
@click.option("--data", metavar="DIR", help="Data set whose cameras see the model.")
@click.option("--scale", type=Number(1), default=1.0,
              help="Reduction of the data set's images.")
@click.option("--order", type=click.Choice(["training", "given"]), default="training",
              help="Order of the Gaussians, for all programs: along a curve, as training keeps "
              "them, or as the city (random) or the model has them.")
@click.option("--half", is_flag=True, show_default=False,
              help="Also what ranks need that hold half of the scene each.")
@click.option("--chunk", type=click.IntRange(1, 1000), default=2,  # of train.chunk
              help="With --half: views that go through a stage together, train.chunk of a run.")
@click.option("--peer", type=click.Choice(["none", "gsplat"]), default="none",
              help="Another program, measured on the same views; must be installed.")
@click.option("--backend", type=click.Choice(["auto", "host", "cuda"]), default="auto",
              help="Where to compute.")
@report_option
@click.pass_context
def kernels(context, gaussians, side, views, count, size, model, data, scale, order, half, chunk,
            peer, backend, report):
    """Time every stage of a training step, beside the least time it could take.

    On a city of Gaussians, or on a trained scene. Stages are timed one by one, on a GPU by
    events behind other work, so that launching them does not count; forward, backward and whole
    steps as they are called. Floors are bytes over the bandwidth of a copy in the same run, or
    instructions over the rate at which the GPU issues them. One process, no mpirun.

    \b
    Examples:
      splaxel-mpi bench kernels --gaussians 4M --side 1000 --views street --views aerial
      splaxel-mpi bench kernels --model runs/fox/model.ply --data scenes/fox --count 16
      splaxel-mpi bench kernels --backend host --gaussians 100k --side 200 --size 640x360
    """
    from ...mpi import world
    from . import kernels as tool
    from . import scenes

    if (model is None) != (data is None):
        raise UserError("bench kernels: --model and --data belong together: give both or none")
    comm = world.init()
    if comm.size > 1:
        raise UserError("bench kernels: measures one process: start it without mpirun or srun")
    check_report(report, comm)
    where = make_backend(backend, comm)
    gaussians, side = gaussians or CITY[where.name][:1], side or CITY[where.name][1:]
    if len(gaussians) != len(side):
        raise UserError("bench kernels: give --side as often as --gaussians, one for each city")
    tool.find_peer(peer)
    if order == "training":
        arrange = functools.partial(scenes.along_curve, backend=where)
    else:
        arrange = copy.copy
    if model is None:
        found = itertools.chain.from_iterable(
            scenes.city(*one, views, count, size, where.threads, arrange)
            for one in zip(gaussians, side)
        )
    else:
        found = [scenes.trained(model, data, scale, count, arrange)]
    tool.run(found, where, comm, peer, chunk if half else 0, report, context.params, click.echo)


@bench.command()
@training_arguments
def boundaries(config, overrides, report):
    """Train a scene with each setting of boundary.

    As `splaxel-mpi train` does, three times from the start, to <run.folder>/<run.name>-exact,
    -filter and -none. The table has the PSNR that the setting itself renders and that of the same
    Gaussians in exact order, as viewers show them; bytes that ranks sent for a trained image; the
    ghosts' share of visible Gaussians and of those bytes.

    \b
    Example:
      mpirun -n 4 splaxel-mpi bench boundaries configs/city.yaml
    """
    from . import boundaries as tool

    compare_trainings(config, overrides, report, tool.run)


@bench.command()
@click.option("--gaussians", type=GAUSSIANS, default="10M", help="Gaussians of the city.")
@click.option("--side", type=Number(148, 100_000), default=1000.0,
              help="Side of the city in metres.")
@click.option("--cells", type=click.IntRange(2, 4096), default=8, help="Cells, one a rank.")
@click.option("--views", type=click.Choice(KINDS), multiple=True,
              default=("street", "aerial"), help="Kind of views; give it again for another kind.")
@click.option("--count", type=click.IntRange(1, 10_000), default=16, help="Views of each kind.")
@report_option
def ghosts(gaussians, side, cells, views, count, report):
    """Count the Gaussians that travel to other cells.

    On a city of Gaussians, by projecting it on the host; without masks, which let fewer travel.
    Bytes are those of ghosts and their gradients, against those of sending every visible Gaussian
    to the ranks whose rows of pixels it meets. One process, no mpirun.

    \b
    Example:
      splaxel-mpi bench ghosts --gaussians 10M --side 1000
    """
    from ...mpi import world
    from ...mpi.host import HostExchange
    from . import ghosts as tool

    comm = world.init()
    if comm.size > 1:
        raise UserError("bench ghosts: counts in one process: start it without mpirun or srun")
    check_report(report, comm)
    where = make_backend("host", comm)
    tool.run(gaussians, side, cells, count, views, where, HostExchange(comm), report, click.echo)


def make_backend(name, comm):
    """The backend of a name, with all cores of this process. Raises UserError."""
    from ...backends import choose_backend, make_backend
    from ...mpi.world import cores_per_rank
    from ...settings import BackendSection

    section = BackendSection(name=name)
    return make_backend(choose_backend(section)[0], section, cores_per_rank(comm))
