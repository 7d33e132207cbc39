"""Commands of `splaxel-mpi bench` that reproduce tables and figures of the method's paper."""

import click

from ..numbers import Number
from .options import (
    check_report,
    city_options,
    compare_trainings,
    report_option,
    start_ranks,
    training_arguments,
)


@click.command("bytes")
@city_options(("200k", "800k"), 300.0, 4, "640x360")
@click.option("--ranks", type=click.IntRange(2, 4096), multiple=True, default=(2, 4, 8),
              help="Ranks to count for, with one cell each; give it again for another number.")
@click.option("--threshold", type=Number(0, 0.1), default=1e-4,
              help="saturation.threshold.")
@click.option("--stop", type=Number(0, 0.01), default=1e-4, help="render.stop.")
@report_option
@click.pass_context
def traffic(context, report, **settings):
    """Count bytes a view against Gaussians and ranks (figures 3, 4).

    On a city of Gaussians: what ranks send with strategies overlap and owner, boundary exact, and
    with the exchange of Gaussians. Counted from what cells draw; training on so many ranks sends
    the same bytes. The second table tells what each reduction of redundancy leaves. Processes
    share the work, whatever the ranks that are counted for. Host backend.

    \b
    Examples:
      splaxel-mpi bench bytes
      mpirun -n 2 splaxel-mpi bench bytes --gaussians 1M --gaussians 10M --side 1000 \\
        --ranks 8 --count 16 --size 1920x1080 --json bytes.json
    """
    from ... import log
    from ...backends import make_backend
    from ...mpi import world
    from ...mpi.host import HostExchange
    from ...settings import BackendSection
    from . import traffic as tool
    from .base import write_report

    comm = world.init()
    log.setup(None, comm.rank, comm.size)
    check_report(report, comm)
    backend = make_backend("host", BackendSection(name="host"), world.cores_per_rank(comm))
    rows = tool.run(settings, backend, HostExchange(comm), click.echo)
    if report and comm.rank == 0:
        write_report(report, context.params, rows, backend, processes=comm.size)


@click.command()
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@city_options("100k", 300.0, 8, "320x180")
@report_option
@click.pass_context
def ablation(context, overrides, report, **settings):
    """Time the parts of the method, one after the other (figure 22).

    On a city of Gaussians and the ranks at hand: whole images of all ranks (pixel-level); the
    reductions of redundancy; conflict-free consolidation of views; ours, balanced and exact; and
    the exchange of Gaussians. KEY=VALUE changes a setting for all of them. Parameters stay as they
    are. An epoch is timed as it runs; shares of the step, ranks a view, the paper's utilisation U
    and the balance of the ranks' work are of another one. MB: 10^6 bytes that all ranks send.

    \b
    Examples:
      mpirun -n 4 splaxel-mpi bench ablation
      mpirun -n 2 splaxel-mpi bench ablation --gaussians 4M --side 1000 --count 32 \\
        --size 1920x1080 exchange.strategy=owner --json ablation.json
    """
    from . import ablation as tool
    from .base import write_report

    comm = start_ranks(report)
    rows, backend = tool.run(settings, overrides, comm, click.echo)
    if report and comm.rank == 0:
        write_report(report, context.params, rows, backend, processes=comm.size)


@click.command()
@training_arguments
@click.option("--threshold", type=Number(0, 0.1, min_open=True), multiple=True,
              default=(1e-4, 1e-3, 1e-2, 1e-1), help="saturation.threshold; give it again for "
              "another one.")
def threshold(config, overrides, report, threshold):
    """Train a scene with thresholds of saturation (table 4).

    As `splaxel-mpi train` does, from the start, to <run.folder>/<run.name>-off and -<threshold>.
    Tiles are those that cells drew for a trained image, x off: of those that they would have drawn
    without masks.

    \b
    Example:
      mpirun -n 2 splaxel-mpi bench threshold configs/city.yaml data.scale=2 train.images=600
    """
    from . import threshold as tool

    compare_trainings(config, overrides, report, tool.run, thresholds=threshold)


@click.command()
@training_arguments
@click.option("--batch", type=click.IntRange(1, 65536), multiple=True,
              help="train.batch; give it again for another one. Default: as many as ranks, twice "
              "and four times as many.")
def batch(config, overrides, report, batch):
    """Train a scene with several batches, in two ways (table 3).

    As the settings say and by the exchange of Gaussians, to <run.folder>/<run.name>-batch-<size>
    and -batch-<size>-gaussian.

    \b
    Example:
      mpirun -n 2 splaxel-mpi bench batch configs/city.yaml data.scale=2 train.images=400
    """
    from . import batch as tool

    def sizes(comm):
        return sorted(set(batch)) or [comm.size, 2 * comm.size, 4 * comm.size]

    compare_trainings(config, overrides, report, tool.run, sizes=sizes)


@click.command()
@training_arguments
@click.option("--seeds", type=click.IntRange(1, 1000), default=1,
              help="Trainings of each kind, with run.seed and those that follow.")
def quality(config, overrides, report, seeds):
    """Time and quality against the exchange of Gaussians (table 1).

    Trains a scene as the settings say and by the exchange of Gaussians, to
    <run.folder>/<run.name>-ours-<seed> and -gaussian-<seed>.

    \b
    Examples:
      mpirun -n 2 splaxel-mpi bench quality configs/city.yaml data.scale=2 train.images=800
      mpirun -n 4 splaxel-mpi bench quality configs/photos.yaml data.path=scan --seeds 3
    """
    from . import versus as tool

    compare_trainings(config, overrides, report, tool.run, seeds=seeds)


COMMANDS = (traffic, ablation, threshold, batch, quality)
