"""Finding, loading and clearing away checkpoints."""

import contextlib
import logging
import os
import re

from splaxel_mpi.checkpoint.read import Reader
from splaxel_mpi.errors import UserError
from splaxel_mpi.files import Alone, raise_together

log = logging.getLogger(__name__)

# Digits of the image count in file names: names sort like counts up to 10^12 images.
DIGITS = 12
NAME = re.compile(r"checkpoint_(\d+)\.h5")


def checkpoint_path(folder, images):
    """Name of the checkpoint after ``images`` training images."""
    return os.path.join(folder, f"checkpoint_{int(images):0{DIGITS}d}.h5")


def checkpoints(folder):
    """Paths of all checkpoints in a folder by name alone, newest (most images) first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [(int(match[1]), match[0]) for match in map(NAME.fullmatch, names) if match]
    return [os.path.join(folder, name) for _, name in sorted(found, reverse=True)]


def load(path, comm=None):
    """Read a checkpoint; collective. Returns this rank's ``Checkpoint``.

    As many ranks as wrote it: each gets its own rows in the same order, and ``extra``. Another
    rank count: when the file's rows are grouped by cell and there are at least as many cells as
    ranks, cell c goes to rank floor(c ranks / cells); else rows are split evenly. ``cell`` and
    ``tree`` come back as written: the caller migrates or partitions anew; ``extra`` is empty.

    Every block that a rank needs is verified against its checksum, so together the ranks verify
    all rows; rank 0 verifies all that is not rows. A bit that flipped anywhere is found. Raises
    UserError, the same on all ranks, for a file that is missing, damaged, of another version or
    inconsistent.
    """
    comm = comm or Alone()
    state, error = None, None
    try:
        with Reader(path, sealed=comm.rank == 0) as reader:
            state = reader.state(comm.rank, comm.size)
    except UserError as failure:
        error = str(failure)
    raise_together(comm, error)
    return state


def sound(path):
    """Whether the file opens, is complete, matches its seal and its shapes agree; logs a warning
    where not.

    Takes milliseconds: rows are not read.
    """
    try:
        with Reader(path):
            return True
    except UserError as error:
        log.warning("%s", error)
        return False


def latest(folder, comm=None):
    """Path of the newest sound checkpoint of a folder, None when there is none; collective.

    Newer files that are damaged are passed over with a warning.
    """
    comm = comm or Alone()
    found = None
    if comm.rank == 0:
        found = next((path for path in checkpoints(folder) if sound(path)), None)
    return comm.bcast(found)


def load_latest(folder, comm=None):
    """(path, ``Checkpoint``) of the newest checkpoint whose rows verify too; collective.

    Returns (None, None) when the folder has no checkpoints. A damaged one is passed over with a
    warning. Raises UserError when there are checkpoints and none can be used: a run must not
    start from nothing in silence.
    """
    comm = comm or Alone()
    paths = comm.bcast(checkpoints(folder) if comm.rank == 0 else None)
    reasons = []
    for path in paths:
        try:
            return path, load(path, comm)
        except UserError as error:
            reasons.append(str(error))
            if comm.rank == 0:
                log.warning("%s", error)
    if paths:
        raise UserError(
            f"{folder}: none of its {len(paths)} checkpoints can be read; move them away to "
            f"start anew, or mend the newest: {reasons[0]}"
        )
    return None, None


def prune(folder, keep, every=0):
    """Remove all but the newest ``keep`` sound checkpoints, and of each stretch of ``every``
    images (0: none) from every on the first; one rank calls it.

    Damaged ones do not count, and go only when they are older than those kept. What a killed
    job left half-written goes too: one job writes to a folder at a time. Returns the paths
    removed. Raises ValueError for keep below 1.
    """
    if keep < 1:
        raise ValueError("keep must be at least 1")
    kept, removed, stays = 0, [], milestones(checkpoints(folder), every)
    for path in checkpoints(folder):
        if kept >= keep:
            removed += [] if path in stays else [path]
        elif sound(path):
            kept += 1
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.endswith(".partial") and NAME.fullmatch(name[1 : -len(".partial")]):
            removed.append(os.path.join(folder, name))
    for path in removed:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return removed


def images_of(path):
    """Image count in the name of a checkpoint."""
    return int(NAME.fullmatch(os.path.basename(path))[1])


def milestones(paths, every):
    """Of each stretch [k every, (k + 1) every) of images, k > 0, the first of these checkpoints
    (newest first), as a set."""
    if not every:
        return set()
    firsts = {images_of(path) // every: path for path in paths}
    return {path for stretch, path in firsts.items() if stretch}
