"""The folder of a run: runs/<name>."""

import os
from pathlib import Path

from ..errors import UserError
from ..mpi.world import on_root


def open_folder(config, resume, world):
    """Folder of the run, made by the root. Collective; returns its Path.

    A new run never writes over an earlier one of the same name: that is moved aside to
    <name>.1, <name>.2, ... first. With resume the folder must exist.
    """
    folder = Path(config.run.folder) / config.run.name
    on_root(world.comm, _make, folder, resume)
    return folder


def _make(folder, resume):
    if resume and not folder.is_dir():
        raise UserError(f"{folder}: no run to resume; start it without --resume")
    try:
        if not resume and folder.exists() and any(folder.iterdir()):
            os.rename(folder, _aside(folder))
        for part in ("checkpoints", "pictures"):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from error


def _aside(folder):
    """First free name <name>.k beside the folder."""
    k = 1
    while folder.with_name(f"{folder.name}.{k}").exists():
        k += 1
    return folder.with_name(f"{folder.name}.{k}")
