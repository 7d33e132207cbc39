"""Writing a checkpoint: the steps that all writers share."""

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from splaxel_mpi.checkpoint import schema
from splaxel_mpi.checkpoint.offset import Offset
from splaxel_mpi.checkpoint.parallel import Parallel
from splaxel_mpi.checkpoint.serial import Serial
from splaxel_mpi.errors import UserError
from splaxel_mpi.files import Alone, partial_name, put_in_place, write_on_root
from splaxel_mpi.mpi.world import on_one_node

WRITERS = {way.name: way for way in (Parallel, Serial, Offset)}


class Saved(NamedTuple):
    """Figures of one written checkpoint."""

    writer: str
    bytes: int  # size of the file
    seconds: float  # wall time on this rank


def choose_writer(name, comm):
    """The writer of that name. Collective. "auto" is offset for the ranks of one node, which see
    one another's bytes on any file system and are faster so; else parallel where h5py allows it.

    Raises UserError for an unknown name or one that this installation cannot use.
    """
    if name == "auto" and comm.size > 1 and on_one_node(comm):
        name = Offset.name
    elif name == "auto":
        name = Parallel.name if Parallel.usable(comm) else Serial.name
    if name not in WRITERS:
        raise UserError(f"checkpoint writer {name!r}: unknown; use auto, {', '.join(WRITERS)}")
    if name == Parallel.name and comm.size == 1:
        name = Serial.name  # the same bytes, and no MPI-IO to start for one rank
    if not WRITERS[name].usable(comm):
        raise UserError(
            f"checkpoint writer {name!r}: this h5py was built without MPI; use auto or serial"
        )
    return WRITERS[name]()


def save(path, state, comm=None, writer="auto"):
    """Write one checkpoint of all ranks' states; collective. Returns ``Saved``.

    path: final name, on a file system that all ranks see; its folder is made. state: this rank's
    ``Checkpoint``. comm: a communicator, None for one rank without MPI. writer: "auto",
    "parallel", "serial" or "offset", with equal bytes in every data set.

    The file grows under a hidden name and is renamed by rank 0 once everything is durable, so
    ``path`` is the old file or the whole new one. Raises UserError, the same on all ranks, when
    it cannot be written; ValueError where the arrays disagree.
    """
    comm, began = comm or Alone(), time.perf_counter()
    path, temporary = os.fspath(path), partial_name(path)
    way = choose_writer(writer, comm)
    slabs = schema.slabs_of(state, comm)
    facts = schema.facts_of(state, slabs, comm)
    try:
        write_on_root(comm, path, lambda: lay_out(temporary, facts, slabs))
        with ThreadPoolExecutor(1) as beside:  # zlib lets go of the interpreter lock
            checksums = beside.submit(schema.all_checksums, slabs)
            way.write(temporary, slabs, comm)
        parts = comm.gather(checksums.result())
        write_on_root(comm, path, lambda: finish(temporary, path, parts))
    finally:
        if comm.rank == 0:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    size = comm.bcast(os.path.getsize(path) if comm.rank == 0 else None)
    return Saved(way.name, size, time.perf_counter() - began)


def lay_out(temporary, facts, slabs):
    """Create the folder and the empty file."""
    os.makedirs(os.path.dirname(temporary), exist_ok=True)
    schema.create(temporary, facts, slabs)


def finish(temporary, path, parts):
    """Add the checksums that the ranks counted, in rank order, and give the file its name."""
    merged = {name: [value for part in parts for value in part[name]] for name in parts[0]}
    schema.seal(temporary, merged)
    put_in_place(temporary, path)
