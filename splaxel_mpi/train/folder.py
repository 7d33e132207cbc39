"""The folder of a run: runs/<name>."""

import contextlib
import fcntl
import os
from pathlib import Path

from ..errors import UserError
from ..mpi.world import on_root


@contextlib.contextmanager
def open_folder(config, resume, world):
    """Context manager: the folder of the run, made and locked by the root. Collective.

    Yields (Path of the folder, Path that an earlier run got or None). A new run never writes
    over an earlier one of the same name: that is moved aside to <name>.1, <name>.2, ... first.
    With resume the folder must exist. Raises UserError when another job has it open: two would
    mix their files.
    """
    folder = Path(config.run.folder) / config.run.name
    lock = None

    def make():
        nonlocal lock
        with _told(folder):
            aside = _make(folder, resume)
            lock = _lock(folder)
        return aside

    try:
        yield folder, on_root(world.comm, make)
    finally:
        if lock is not None:
            os.close(lock)


@contextlib.contextmanager
def _told(folder):
    """Turn what the system refuses into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror}); set run.folder or run.name to "
            "another place"
        ) from error


def _make(folder, resume):
    """Make the folder and those in it; returns where an earlier run went, or None."""
    aside = None
    if resume and not folder.is_dir():
        raise UserError(f"{folder}: no run to resume; start it without --resume")
    if not resume and folder.exists() and any(folder.iterdir()):
        lock, aside = _lock(folder), _aside(folder)
        os.rename(folder, aside)
        if lock is not None:
            os.close(lock)
    for part in ("checkpoints", "pictures"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return aside


def _lock(folder):
    """Open folder that no other job may lock while this process lives; None where the file
    system knows no locks. Nothing is left of it after a kill."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return handle
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            f"{folder}: another job is writing this run; wait for it, end it, or set run.name "
            "to another name"
        ) from None
    except OSError:
        os.close(handle)
        return None


def _aside(folder):
    """First free name <name>.k beside the folder."""
    k = 1
    while folder.with_name(f"{folder.name}.{k}").exists():
        k += 1
    return folder.with_name(f"{folder.name}.{k}")
