"""The commands about files of a run: info, verify and upgrade. None needs MPI or a GPU."""

import click


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--config", is_flag=True, show_default=False,
              help="Print the configuration of the run instead, as YAML.")
def info(file, config):
    """Say what is inside a checkpoint or a metrics file.

    All of a checkpoint but its rows is verified on the way; `splaxel-mpi verify` reads all.

    \b
    Examples:
      splaxel-mpi info runs/city/checkpoints/checkpoint_000000030000.h5
      splaxel-mpi info --config FILE > again.yaml
    """
    from . import describe

    if config:
        click.echo(describe.configuration(file), nl=False)
    else:
        click.echo("\n".join(describe.describe(file)))


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def verify(files):
    """Prove that checkpoints are whole: every byte against a checksum.

    Prints a line for each file and goes on after a bad one. The exit status is 0 only if all of
    them are whole.

    \b
    Example:
      splaxel-mpi verify runs/city/checkpoints/*.h5
    """
    from ..checkpoint.read import Reader
    from ..errors import UserError

    bad = []
    for file in files:
        try:
            with Reader(file) as reader:
                reader.verify()
            click.echo(f"{file}: whole, {reader.count:,} Gaussians")
        except UserError as error:
            bad.append(str(error))
            click.echo(f"{file}: BAD")
    if bad:
        raise UserError(bad[0] if len(bad) == 1 else f"{len(bad)} bad files: {'; '.join(bad)}")


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def upgrade(files):
    """Bring checkpoints of older versions of splaxel-mpi up to date.

    A file is verified, changed in a copy that takes its place once it is verified too, and left
    alone where it is up to date. The folder needs room for the copy.

    \b
    Example:
      splaxel-mpi upgrade runs/city/checkpoints/*.h5
    """
    from ..checkpoint.base import FORMAT_VERSION
    from ..checkpoint.upgrade import upgrade as bring

    for file in files:
        found = bring(file)
        done = "is up to date" if found == FORMAT_VERSION else f"was version {found}"
        click.echo(f"{file}: {done}, version {FORMAT_VERSION}, whole")
