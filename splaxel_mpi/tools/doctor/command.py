"""The command `splaxel-mpi doctor`."""

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from ...errors import UserError

DEFAULTS = "data: {path: .}"  # stands for a configuration where none is given


@click.command()
@click.argument("config", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, show_default=False,
              help="Print findings and the facts of every rank as JSON.")
def doctor(config, overrides, as_json):
    """Say whether training would start here, and what to mend.

    Start it as you would start training, on any number of ranks: it looks at MPI and its
    launcher, GPUs, HDF5, the folder of runs, threads and the places of ranks, and with CONFIG at
    its settings. Each finding says what to do. Exit status: 0 where training would start, else 2.

    \b
    Examples:
      splaxel-mpi doctor
      mpirun -n 4 splaxel-mpi doctor configs/city.yaml
      srun --mpi=pmix splaxel-mpi doctor configs/city.yaml --json
    """
    if config is not None and "=" in config and not os.path.exists(config):
        config, overrides = None, (config, *overrides)
    settings, found = _settings(config, overrides)
    comm, problem = _start(settings)
    findings, ranks = examine(comm, settings, problem, found, config is not None)
    stops = [finding for finding in findings if finding.level == "STOP"]
    if comm.rank == 0 and as_json:
        click.echo(json.dumps(dict(
            starts=not stops, findings=[asdict(one) for one in findings],
            ranks=[asdict(one) for one in ranks]), indent=1))
    elif comm.rank == 0:
        for finding in findings:
            click.echo(finding.line())
        click.echo("training would start" if not stops else "training would not start")
    if stops:
        raise UserError(f"training would not start: {stops[0].name}: {stops[0].text}")


def _settings(config, overrides):
    """(Config, Finding on it or None); each rank reads for itself, since ranks may be strangers
    to one another where the launcher is wrong."""
    from ... import config as files
    from .findings import GOOD, STOP, Finding

    try:
        if config is None:
            return files.parse(DEFAULTS, "defaults", overrides), None
        return files.load(config, overrides), Finding("settings", GOOD, config)
    except UserError as error:
        return files.parse(DEFAULTS, "defaults"), Finding("settings", STOP, str(error))


def _start(settings):
    """(communicator, why MPI cannot be used or None)."""
    from ...files import Alone
    from ...mpi import device, world

    try:
        if settings.backend.name != "host":
            device.bind_early()
        return world.init(), None
    except UserError as error:
        return Alone(), str(error)


def examine(comm, settings, problem, found, with_data):
    """(list of Finding, list of Facts of the ranks), the same on every rank. Collective.

    problem: why MPI cannot be used, else None; found: Finding on the settings or None;
    with_data: whether the settings' data set is to be looked at.
    """
    from . import facts, mpi_findings, storage
    from .findings import judge

    union, node_ranks = _node(comm)
    library = mpi_findings.library()
    mine = facts.gather(settings, node_ranks, library, union)
    ranks = comm.allgather(mine)
    there = comm.bcast(storage.look(settings) if comm.rank == 0 else None)
    seen = comm.allgather(_sees(comm, there))
    cuda = all(one.backend == "cuda" and one.gpu for one in ranks)
    findings = mpi_findings.judge(
        comm, problem, mine.gpu.index if cuda else None, settings.mpi.transport
    )
    findings += [found] * (found is not None)
    if with_data and (found is None or found.level != "STOP"):
        findings += comm.bcast([_data(settings)] if comm.rank == 0 else None)
    findings += judge(ranks, settings, there, seen)
    return comm.bcast((findings, ranks))


def _node(comm):
    """(cores that the ranks of this node may use together, number of these ranks)."""
    from ...files import Alone
    from ...mpi.world import node_comm

    if isinstance(comm, Alone):
        return len(os.sched_getaffinity(0)), 1
    node = node_comm(comm)
    cores, size = set().union(*node.allgather(os.sched_getaffinity(0))), node.size
    node.Free()
    return len(cores), size


def _sees(comm, there):
    """Whether this rank sees a file that rank 0 makes in the folder of runs. Collective."""
    from .storage import existing

    file = name = None
    if comm.rank == 0 and not there.refused:
        file = tempfile.NamedTemporaryFile(prefix=".doctor-", dir=existing(there.folder))
        name = file.name
    name = comm.bcast(name)
    found = name is None or Path(name).exists()
    comm.Barrier()
    if file:
        file.close()
    return found


def _data(settings):
    """Finding on the data set: there, and of a format that can be read."""
    from ...data.dataset import find_reader
    from .findings import GOOD, STOP, Finding

    path = Path(settings.data.path)
    try:
        if not path.exists():
            raise UserError(f"{path}: data set not found")
        return Finding("data", GOOD, f"{path}: {find_reader(path, settings.data.format).name}")
    except UserError as error:
        return Finding("data", STOP, str(error), "set data.path to the folder of the scene")
