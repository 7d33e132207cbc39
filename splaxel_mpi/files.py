"""Files that are either whole or not there, and errors that all ranks raise together."""

import contextlib
import errno
import json
import os
import secrets
import shutil

from splaxel_mpi.errors import UserError

# Really allocated for a moment, to meet a quota before HDF5 does: more than all metadata, and
# little enough where the C library must emulate the call by writing.
PROBE_BYTES = 8 << 20
# What h5py raises on a file whose inside contradicts itself.
HDF5_DAMAGE = (
    OSError,
    KeyError,
    ValueError,
    TypeError,
    RuntimeError,
    OverflowError,
    AttributeError,
)


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


def partial_name(path):
    """The hidden name under which a large or often written file grows. It is fixed, so the next
    attempt after a kill overwrites what the killed one left; one job at a time may use it."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(folder, f".{name}.partial")


@contextlib.contextmanager
def replacing(path, temporary):
    """Context manager: the block makes ``path`` by way of a file ``temporary``, which is gone at
    the end. Raises UserError in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


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
    with replacing(path, temporary):
        with open(temporary, **mode) as handle:
            yield handle
        put_in_place(temporary, path)


def cannot_write(path, error):
    """The one line that says why a file could not be written."""
    # h5py's OSErrors carry a paragraph as text but the system's number.
    number = getattr(error, "errno", None)
    text = getattr(error, "strerror", None) or str(error)
    reason = os.strerror(number) if number else text.strip().split("\n")[0]
    return f"{path}: cannot be written: {reason}; check the folder, its rights and free space"


def check_writable(path):
    """Raise UserError where atomic_write could not make the file. What stands there stays."""
    path = os.fspath(path)
    temporary = temporary_name(path)
    with replacing(path, temporary):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        open(temporary, "xb").close()


def write_text(path, text):
    """Write a UTF-8 text file, whole or not at all."""
    with atomic_write(path, text=True) as handle:
        handle.write(text)


def write_json(path, value):
    """Write a JSON file (2 spaces, keys in the order given), whole or not at all.

    Raises ValueError for NaN and infinities, which JSON has no word for.
    """
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def probe_space(path, needed):
    """Raise OSError where a file of that many bytes finds no room; leaves an empty file.

    HDF5 1.10 crashes when it closes a file whose metadata finds no room, so one looks before.
    """
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free
    if free < needed:
        raise OSError(0, f"needs {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free")
    with open(path, "wb") as file:
        os.ftruncate(file.fileno(), needed)  # limits of file size
        os.ftruncate(file.fileno(), 0)
        os.posix_fallocate(file.fileno(), 0, PROBE_BYTES)  # quotas
        os.ftruncate(file.fileno(), 0)


def open_hdf5(path):
    """Open an HDF5 file that nobody writes to any more, to read.

    Without file locks where h5py can switch them off: some parallel file systems have none, and a
    finished file is only ever replaced, not changed.
    """
    import h5py  # loads MPI's library where h5py has it, so not when this module is imported

    try:
        return h5py.File(path, "r", locking=False)
    except (ValueError, TypeError):  # this HDF5 or h5py cannot switch locks off
        return h5py.File(path, "r")


def write_on_root(comm, path, work):
    """Result of work(), called on rank 0 alone, on every rank. Collective. Raises the same
    UserError on all where ``path`` could not be written."""
    found = error = None
    if comm.rank == 0:
        try:
            found = work()
        except (OSError, RuntimeError) as failure:
            error = cannot_write(path, failure)
    raise_together(comm, error)
    return comm.bcast(found)


def raise_together(comm, message):
    """Raise UserError on every rank when any rank has a message (text, or None when all is well).

    All ranks call it and raise the same line, that of the lowest rank, so none is left waiting in
    a collective.
    """
    for found in comm.allgather(message):
        if found:
            raise UserError(found)
