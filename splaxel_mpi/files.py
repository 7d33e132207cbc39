"""Files that are either whole or not there, and errors that all ranks raise together."""

import contextlib
import json
import os
import secrets

from splaxel_mpi.errors import UserError


class Alone:
    """Stands in for a communicator of one rank where no MPI is running."""

    rank, size = 0, 1

    def allgather(self, value):
        return [value]

    def gather(self, value, root=0):
        return [value]

    def bcast(self, value, root=0):
        return value

    def Barrier(self):
        pass


def fsync_folder(folder):
    """Make a rename in the folder survive a crash of the node."""
    handle = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        # Some network file systems refuse fsync of folders; their servers do it themselves.
        pass
    finally:
        os.close(handle)


def put_in_place(temporary, path):
    """Make a file's content durable, then give it its final name."""
    with open(temporary, "rb+") as handle:
        os.fsync(handle.fileno())
    os.replace(temporary, path)
    fsync_folder(os.path.dirname(os.path.abspath(path)))


def temporary_name(path):
    """A new hidden name ending in .partial in the folder of path."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}.partial")


@contextlib.contextmanager
def atomic_write(path, text=False):
    """Context manager: a new file that takes the name ``path`` when the block ends.

    Yields a file object (binary, or UTF-8 text) under a temporary name in the same folder. At the
    end it is flushed, fsynced, renamed, and the folder fsynced; after an exception the
    temporary is removed and what stood under ``path`` stays as it was. Raises UserError when the
    folder cannot be written or the disk is full.
    """
    path = os.fspath(path)
    temporary = temporary_name(path)
    mode = {"mode": "x", "encoding": "utf-8", "newline": "\n"} if text else {"mode": "xb"}
    try:
        with open(temporary, **mode) as handle:
            yield handle
        put_in_place(temporary, path)
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def cannot_write(path, error):
    """The one line that says why a file could not be written."""
    # h5py's OSErrors carry a paragraph as text but the system's number.
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error)
    reason = os.strerror(number) if number else text.strip().split("\n")[0]
    return f"{path}: cannot be written: {reason}; check the folder, its rights and free space"


def write_text(path, text):
    """Write a UTF-8 text file, whole or not at all."""
    with atomic_write(path, text=True) as handle:
        handle.write(text)


def write_json(path, value):
    """Write a JSON file (2 spaces, keys in the order given), whole or not at all.

    Raises ValueError for NaN and infinities, which JSON has no word for.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def raise_together(comm, message):
    """Raise UserError on every rank when any rank has a message (text, or None when all is well).

    All ranks call it and raise the same line, that of the lowest rank, so none is left waiting in
    a collective.
    """
    for found in comm.allgather(message):
        if found:
            raise UserError(found)
