"""Commands of `splaxel-mpi bench` that reproduce tables and figures of the method's paper."""

import click

from .options import city_options, report_option


@click.command("bytes")
@city_options(("200k", "800k"), 300.0, 4, "640x360")
@click.option("--ranks", type=click.IntRange(2, 4096), multiple=True, default=(2, 4, 8),
              help="Ranks to count for, with one cell each; give it again for another number.")
@click.option("--threshold", type=click.FloatRange(0, 0.1), default=1e-4,
              help="saturation.threshold.")
@click.option("--stop", type=click.FloatRange(0, 0.01), default=1e-4, help="render.stop.")
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
    from ...backends import make_backend
    from ...mpi import world
    from ...mpi.host import HostExchange
    from ...settings import BackendSection
    from .base import write_report
    from . import traffic as tool

    comm = world.init()
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
    from ...mpi import world
    from . import ablation as tool
    from .base import write_report

    comm = world.init()
    rows, backend = tool.run(settings, overrides, comm, click.echo)
    if report and comm.rank == 0:
        write_report(report, context.params, rows, backend, processes=comm.size)


COMMANDS = (traffic, ablation)
