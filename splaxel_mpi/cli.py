"""The command `splaxel-mpi`. Each command imports what it needs: help is there at once, and on
login nodes without MPI."""

import os
import shlex
import sys
import time

import click

from . import __version__
from .errors import UserError
from .mpi import launcher
from .tools.bench.command import bench
from .tools.bench.picture_command import pictures
from .tools.doctor.command import doctor
from .tools.file_commands import info, upgrade, verify
from .tools.numbers import Number
from .tools.plan.command import plan
from .tools.report_command import run_report

# A run stopped with a checkpoint and can go on: EX_TEMPFAIL of sysexits.h.
STOPPED = 75
STATUSES = """\b
Exit status: 0 done; 1 failure (a traceback names the rank); 2 a mistake in the
command, the settings or the data (one line says which); 75 stopped early with
a checkpoint (a signal, --time-limit): start again with --resume; 130
interrupted (mpirun gives a status of its own to failures)."""

WIDE = {
    "max_content_width": 100,
    "help_option_names": ["-h", "--help"],
    "show_default": True,
}
# a group without a command shows its help: an error of its own from click 8.2 on
NO_COMMAND = getattr(click.exceptions, "NoArgsIsHelpError", ())


@click.group(context_settings=WIDE, epilog=STATUSES)
@click.version_option(__version__, prog_name="splaxel-mpi")
def cli():
    """Train 3D Gaussian Splatting of large scenes on MPI ranks.

    \b
    On a machine:   mpirun -n 4 splaxel-mpi train configs/city.yaml
    Under SLURM:    srun --mpi=pmix splaxel-mpi train configs/city.yaml
    One process:    splaxel-mpi train configs/city.yaml
    """


def _seconds(context, option, text):
    """Seconds of a time on the command line, None for none."""
    from .times import seconds_of

    try:
        return None if text is None else seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@cli.command(epilog=STATUSES)
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--resume", is_flag=True, show_default=False,
              help="Go on from the run's newest good checkpoint.")
@click.option("--continue", "go_on", is_flag=True, show_default=False,
              help="As --resume where the run has a checkpoint, else start it: for scripts that "
              "a scheduler may run again.")
@click.option("--time-limit", metavar="TIME", callback=_seconds,
              help="Stop in time, with a checkpoint, to end within TIME (H:MM:SS, D-HH:MM:SS or "
              "minutes) of the start.")
def train(config, overrides, resume, go_on, time_limit):
    """Train a scene as the YAML file CONFIG says.

    KEY=VALUE changes a setting for this run, the value in YAML; `splaxel-mpi config show`
    lists them all. Results go to <run.folder>/<run.name>. Any number of ranks works, and a
    run may be resumed on another number.

    \b
    Examples:
      mpirun -n 4 splaxel-mpi train configs/city.yaml
      mpirun -n 4 splaxel-mpi train configs/city.yaml train.images=6000 run.name=long
      srun --mpi=pmix splaxel-mpi train configs/photos.yaml data.path=/scratch/me/scan
      mpirun -n 2 splaxel-mpi train configs/city.yaml --resume
      srun --mpi=pmix splaxel-mpi train configs/city.yaml --continue --time-limit 2:00:00

    SIGTERM, SIGUSR1 and SIGUSR2 stop it at the end of a step, with a checkpoint, and exit status
    75; another one ends it at once. mpirun passes SIGUSR1 and SIGUSR2 on, but not SIGTERM: it
    leaves ranks one second then.
    """
    deadline = time.monotonic() + time_limit if time_limit else None
    from .mpi import world

    _bind_early(config, overrides)
    comm = world.init()
    settings = _load(comm, config, overrides)
    from .train import job

    if job.run(settings, job.IF_ANY if go_on else resume, comm, deadline):
        world.leave(STOPPED)


def _bind_early(path, overrides):
    """Bind the GPU before MPI starts, where the settings can be read here and want one."""
    from . import config
    from .mpi import device

    try:
        if config.load(path, overrides).backend.name == "host":
            return
    except UserError:
        return  # rank 0 reads them again and says what is wrong
    device.bind_early()


def _load(comm, path, overrides):
    """Settings, read by rank 0 alone: other nodes need not see the file."""
    from . import config
    from .mpi import world

    text = world.on_root(comm, lambda: config.load(path, overrides).to_yaml())
    return config.parse(text, path)


@cli.command("job", epilog=STATUSES)
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--nodes", type=click.IntRange(1, 65536), default=1, help="Nodes.")
@click.option("--gpus-per-node", "gpus", type=click.IntRange(0, 64), default=0,
              help="GPUs of a node, a rank for each; 0: train on CPUs.")
@click.option("--ranks-per-node", "ranks", type=click.IntRange(1, 4096),
              help="Ranks of a node, where it is not one for each GPU (CPUs: 4).")
@click.option("--cpus-per-rank", "cores", type=click.IntRange(1, 4096),
              help="Cores of a rank [default: 8 beside a GPU, else 4].")
@click.option("--time", "time_", metavar="TIME", default="12:00:00",
              help="Limit of one start; the run goes on in the next.")
@click.option("--launcher", type=click.Choice(["pmix", "pmi2", "mpirun"]), default="pmix",
              help="srun --mpi=pmix, srun --mpi=pmi2, or mpirun.")
@click.option("--account", help="Who pays, where the site asks for it.")
@click.option("--partition", help="Queue, where it is not the site's default.")
@click.option("--requeue/--no-requeue", default=True,
              help="Whether the job starts again until the run is complete.")
@click.option("--shared", is_flag=True, help="Other jobs may use the nodes, too.")
@click.option("--lead", type=click.IntRange(10, 86400),
              help="Seconds before the limit at which the run stops [default: by the size of its "
              "checkpoint].")
@click.option("--vary", multiple=True, metavar="KEY=VALUE,VALUE...",
              help="A job array with a run for each value; may be given again.")
def make_job(config, overrides, time_, vary, **wanted):
    """Print a SLURM batch script that trains CONFIG.

    It stops in time with a checkpoint, starts itself again and goes on until the run is
    complete. Comments say what each line is for. Needs no MPI.

    \b
    Examples:
      splaxel-mpi job configs/district.yaml --nodes 4 --gpus-per-node 8 > train.sbatch
      splaxel-mpi job configs/city.yaml --nodes 2 --time 1:00:00 --vary boundary=exact,filter,none
    """
    from .tools.job import Job, script

    wanted = {name: value for name, value in wanted.items() if value is not None}
    command = shlex.join(["splaxel-mpi", *sys.argv[1:]])
    click.echo(script(config, list(overrides), Job(time=time_, command=command, **wanted), vary),
               nl=False)


@cli.group(epilog=STATUSES)
def synth():
    """Make a synthetic scene to learn and to test with."""


@synth.command(epilog=STATUSES)
@click.argument("folder", metavar="DIR")
@click.option("--extent", type=Number(10, 20000), default=80.0,
              help="Side of the city in metres.")
@click.option("--views", type=click.IntRange(1), default=120, help="Photographs.")
@click.option("--aerial", type=Number(0, 1), default=0.5,
              help="Fraction of them taken from the air; the others from the streets.")
@click.option("--width", type=click.IntRange(8, 16384), default=320, help="Pixels across.")
@click.option("--height", type=click.IntRange(8, 16384), default=180, help="Pixels down.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0,
              help="The same seed gives the same city.")
@click.option("--points", type=click.IntRange(1), default=20000,
              help="Points of the sparse cloud.")
@click.option("--samples", type=click.IntRange(1, 256), default=4,
              help="Rays of a pixel, a square number.")
def city(folder, views, **options):
    """Make a synthetic city as a data set.

    DIR, a new or empty folder, gets photographs, exact poses and a sparse cloud: as a COLMAP model
    (sparse/0) and as MatrixCity-style transforms (transforms/). Ranks share the work; the files
    do not depend on their number.

    \b
    Examples:
      splaxel-mpi synth city scenes/city
      mpirun -n 4 splaxel-mpi synth city scenes/large --extent 400 --views 2000
    """
    from . import log
    from .data.city import make_city
    from .mpi import world
    from .progress import Progress

    comm = world.init()
    log.setup(None, comm.rank, comm.size)
    every = max(1, views // 10)
    with Progress(views, 0, True, comm.rank == 0, every, "photographs") as progress:
        # rank 0 speaks for all: the others are about as far with their equal shares
        make_city(folder, views=views, comm=comm, threads=world.cores_per_rank(comm),
                  progress=lambda done, _: progress.update(min(done * comm.size, views)),
                  **options)
        progress.message(f"the city is in {folder}; train it with: splaxel-mpi train "
                         f"configs/city.yaml data.path={folder}")


class Settings(click.Group):
    """Group whose help lists every setting."""

    def format_epilog(self, context, formatter):
        """The settings below the commands."""
        from .config import describe

        formatter.write("\nSettings of a YAML file, with their defaults:\n\n")
        formatter.write(describe())
        super().format_epilog(context, formatter)


@cli.group(cls=Settings, epilog=STATUSES)
def config():
    """Explain the settings."""


@config.command(epilog=STATUSES)
@click.argument("path", metavar="[CONFIG]", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def show(path, overrides):
    """Print all settings with their meanings.

    YAML that a run of CONFIG would have. Without CONFIG: all settings with their defaults. Needs
    no MPI.

    \b
    Examples:
      splaxel-mpi config show > mine.yaml
      splaxel-mpi config show configs/city.yaml train.images=6000
    """
    from .config import describe, load, parse

    if path is not None and "=" in path and not os.path.exists(path):
        path, overrides = None, (path, *overrides)
    if path is not None:
        click.echo(describe(load(path, overrides)), nl=False)
    elif overrides:
        click.echo(describe(parse("", "defaults", overrides)), nl=False)
    else:
        click.echo(describe(), nl=False)


@cli.group(epilog=STATUSES)
def kernels():
    """Build GPU kernels ahead of time, and see what they take. Neither needs a GPU or MPI."""


@kernels.command(epilog=STATUSES)
@click.option("--arch", metavar="LIST", default="sm_80,sm_90,sm_100,sm_120",
              help="GPU architectures, comma separated (A100: sm_80, H100 and H200: sm_90, "
              "B200: sm_100, RTX 50: sm_120).")
@click.option("--out", metavar="DIR", required=True, help="Folder for the binaries.")
def build(arch, out):
    """Compile the kernels into DIR, for GPU nodes that have no compiler.

    nvcc compiles, or NVRTC where CuPy is installed. A run takes the binaries with
    backend.kernels=DIR, or with SPLAXEL_KERNELS=DIR in its environment. They belong to this
    version of splaxel-mpi: build again after an update; what is up to date stays.

    \b
    Examples:
      splaxel-mpi kernels build --arch sm_90 --out kernels
      mpirun -n 4 splaxel-mpi train configs/city.yaml backend.kernels=kernels
    """
    from .tools import kernels as tool

    tool.build(tool.architectures(arch), out, click.echo)


@kernels.command(epilog=STATUSES)
@click.option("--arch", metavar="LIST", default="sm_80,sm_90,sm_100,sm_120",
              help="GPU architectures, comma separated.")
def report(arch):
    """Print what each kernel takes on each architecture.

    Registers, stack and spills are of a thread (spills: bytes stored and loaded), shared
    memory is of a block, in bytes, without what is chosen at the launch. Where PyCUDA is
    installed and there is a GPU, also how many blocks and warps of it one multiprocessor holds.

    \b
    Example:
      splaxel-mpi kernels report --arch sm_80,sm_90
    """
    from .tools import kernels as tool

    tool.report(tool.architectures(arch), click.echo)


bench.add_command(pictures)
for one in (bench, doctor, plan, info, verify, upgrade, run_report):
    cli.add_command(one)
for one in (bench, *bench.commands.values(), doctor, plan, info, verify, upgrade, run_report):
    one.epilog = STATUSES


def main(arguments=None):
    """Run a command and end the process, and with it all ranks, with its exit status."""
    if launcher.rank():
        sys.stdout = open(os.devnull, "w")  # help and settings are told once, by rank 0
    from .mpi import world

    try:
        cli.main(arguments, "splaxel-mpi", standalone_mode=False)
    except NO_COMMAND as help_text:
        click.echo(help_text.format_message())
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        world.fail(error.format_message().rstrip(".") + hint)
    except UserError as error:
        world.fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        world.abort(130)
    except SystemExit as end:
        if end.code and end.code != STOPPED:
            world.abort(end.code if isinstance(end.code, int) else 1)
        raise
