"""File systems: what they are, whether they can be written and whether they know locks."""

import fcntl
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

MOUNTS = "/proc/self/mountinfo"
# types that several nodes see; on these, locking depends on how they are mounted
NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "ceph", "fuse.ceph", "panfs",
           "fuse.glusterfs", "pvfs2", "wekafs", "9p")


@dataclass
class FileSystem:
    """Where a folder lies."""

    kind: str  # as mount names it: ext4, nfs4, lustre, ...
    mount: str

    @property
    def network(self):
        """Whether several nodes may see it."""
        return self.kind in NETWORK


@dataclass
class Storage:
    """The folder of runs, as rank 0 finds it."""

    folder: str
    kind: str
    network: bool
    free: int  # bytes
    refused: Optional[str]  # why it cannot be written
    locks: Optional[str]  # why files cannot be locked
    busy: bool  # another job has the run open


def existing(path):
    """The folder itself or the nearest above it that exists."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def file_system(path, mounts=MOUNTS):
    """FileSystem of a path, existing or not: the longest mount point above it."""
    path, best = os.path.realpath(existing(path)), FileSystem("unknown", "")
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return best
    for line in lines:
        left, _, right = line.partition(" - ")
        # spaces and the like are written in octal
        point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), left.split()[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.mount):  # a later mount hides an earlier one
            best = FileSystem(right.split()[0], point)
    return best


def writable(path):
    """Why no file can be made at a path (or where its folder would be made), or None."""
    try:
        with tempfile.TemporaryFile(dir=existing(path)) as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def lockable(path):
    """Why a file cannot be locked there, as HDF5 and runs do, or None."""
    try:
        with tempfile.TemporaryFile(dir=existing(path)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.strerror or str(error)
    return None


def busy(folder):
    """Whether another job has the folder of a run open (train.folder locks it)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def look(settings):
    """Storage of a configuration's runs."""
    folder = Path(settings.run.folder)
    system, refused = file_system(folder), writable(folder)
    free = shutil.disk_usage(existing(folder)).free
    return Storage(str(folder), system.kind, system.network, free, refused,
                   None if refused else lockable(folder), busy(folder / settings.run.name))
