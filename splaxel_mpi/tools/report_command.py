"""The command `splaxel-mpi report`. It needs neither MPI nor a GPU."""

import click


@click.command("report")
@click.argument("folder", metavar="RUN")
@click.option("--out", metavar="FILE", show_default="RUN/report.html", help="The page.")
@click.option("--pictures", type=click.IntRange(0), default=12,
              help="Most held-out views on the page, spread evenly over those of the run.")
def run_report(folder, out, pictures):
    """Make one HTML page of a run: its figures over the training, and its pictures.

    RUN is the folder of a run: finished, under way or interrupted. Everything is inside the page,
    so that it can be sent to others; it loads nothing and runs no script.

    \b
    Examples:
      splaxel-mpi report runs/city
      splaxel-mpi report runs/city --out city.html
    """
    from ..analysis import Run
    from ..analysis.page import write_page

    run = Run(folder)
    out = out or run.folder / "report.html"
    write_page(run, out, pictures)
    click.echo(f"the page is {out}")
