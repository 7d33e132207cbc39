"""Metrics of a run as time series in HDF5, readable while the job runs and after a kill."""

import contextlib
import logging
import os
import shutil
import time

import numpy as np

from splaxel_mpi.errors import UserError
from splaxel_mpi.files import (
    HDF5_DAMAGE,
    cannot_write,
    open_hdf5,
    partial_name,
    probe_space,
    put_in_place,
)

log = logging.getLogger(__name__)

FORMAT, FORMAT_VERSION = "splaxel_mpi metrics", 1
# Seconds between writes: what a kill can lose.
SECONDS = 10.0
# A write copies the file, so it costs more as the file grows; waiting 50 times as long as the last
# one took bounds it to 2 % of rank 0's time.
PATIENCE = 50
# Rows of a chunk: 8 KiB a series, small for a short run and few chunks for a long one.
CHUNK = 1024
# A series may be this many times larger than the file: chunks that hold only NaN are not stored.
LOOSE = 64
# Exact in 64 bits and in every row; everything else is float64.
COUNTS = ("images_seen", "step")


class Series:
    """The file ``path`` of rank 0; on other ranks every method does nothing.

    Rows are kept in memory and added every ten seconds or so, and by ``flush``. The file is
    never changed in place: a copy grows by the rows and takes its name. So a reader may open it
    at any time and needs no locks, and a kill at any moment leaves all rows written before.

    comm_rank: this rank. resume_images: None starts a new file (one that is there is renamed,
    not lost); a count continues the file and drops the rows of images beyond it, which the
    resumed run will train again. Use as a context manager, or call ``close``.
    """

    def __init__(self, path, comm_rank, resume_images=None, seconds=SECONDS):
        self.path, self.active = os.fspath(path), comm_rank == 0
        self.seconds, self.pause = seconds, seconds
        self.waiting, self.shapes, self.groups = [], {}, set()
        self.written = time.monotonic()
        if not self.active or not os.path.exists(self.path):
            return
        if resume_images is None:
            set_aside(self.path)
            return
        try:
            for name, array in read_series(self.path).items():
                self.note(name, array.ndim)
        except UserError as error:
            log.warning("%s; a new one is begun", error)
            set_aside(self.path)
            return
        self.write(lambda file: cut(file, resume_images))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def append(self, row):
        """Add a row.

        row: name -> number, or 1-D array (a value for each rank), or dict of such ("min",
        "mean", "max"), which becomes a group; "images_seen" must be there. A new name starts a
        series whose earlier values are NaN; a name that is left out gets NaN. Raises ValueError
        for a name that was a group or had another number of dimensions before.
        """
        if not self.active:
            return
        values = dict(flatten(row))
        if "images_seen" not in values:
            raise ValueError("a row of metrics needs images_seen")
        for name, value in values.items():
            self.check(name, value)
        for name, value in values.items():
            self.note(name, value.ndim + 1)
        self.waiting.append(values)
        if time.monotonic() - self.written >= self.pause:
            self.try_flush()

    def check(self, name, value):
        """ValueError where a value cannot stand in the series of this name."""
        if value.ndim > 1 or not value.size or value.dtype.kind not in "biuf":
            raise ValueError(f"metric {name} is neither a number nor a row of numbers")
        if self.shapes.get(name) == value.ndim + 1:
            return
        if name in self.shapes or name in self.groups or parents(name) & self.shapes.keys():
            raise ValueError(f"metric {name} changed its form")

    def note(self, name, ndim):
        """Remember a series and the groups that it stands in."""
        if name not in self.shapes:
            self.shapes[name] = ndim
            self.groups |= parents(name)

    def try_flush(self):
        """``flush``; where that fails, a warning: training is worth more, and close tries again."""
        try:
            self.flush()
        except UserError as error:
            self.written = time.monotonic()
            log.warning("%s; its rows are kept in memory", error)

    def flush(self):
        """Write all waiting rows. Raises UserError, and keeps them, when that fails."""
        if not self.active or not self.waiting:
            return
        began = time.monotonic()
        self.write(lambda file: extend(file, self.waiting))
        self.waiting, self.written = [], time.monotonic()
        self.pause = max(self.seconds, PATIENCE * (self.written - began))

    def close(self):
        """Write what is waiting."""
        self.flush()

    def write(self, work):
        """``change`` with one line for what may go wrong."""
        try:
            self.change(work)
        except (OSError, RuntimeError) as error:
            raise UserError(cannot_write(self.path, error)) from error

    def change(self, work):
        """Replace the file by a copy on which ``work`` (file -> None) was done."""
        import h5py

        temporary = partial_name(self.path)
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        try:
            probe_space(temporary, size + added_bytes(self.waiting))
            if size:
                shutil.copyfile(self.path, temporary)
            with h5py.File(temporary, "r+" if size else "w", libver=("v110", "v110")) as file:
                file.attrs["format"], file.attrs["version"] = np.bytes_(FORMAT), FORMAT_VERSION
                work(file)
            put_in_place(temporary, self.path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def flatten(row, prefix=""):
    """Pairs (path, array of 0 or 1 dimensions) of a row with nested dicts."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, np.asarray(value)


def parents(name):
    """The groups that a series "a/b/c" stands in: {"a", "a/b"}."""
    parts = name.split("/")
    return {"/".join(parts[:k]) for k in range(1, len(parts))}


def data_sets(file):
    """Pairs (path, data set) of all series in a file."""
    import h5py

    found = []
    file.visititems(
        lambda name, item: found.append((name, item)) if isinstance(item, h5py.Dataset) else None
    )
    return found


def cut(file, images):
    """Drop the rows from the first on that is beyond an image count."""
    beyond = np.flatnonzero(file["images_seen"][()] > images)
    rows = int(beyond[0]) if len(beyond) else len(file["images_seen"])
    for _, item in data_sets(file):
        item.resize(rows, axis=0)


def extend(file, rows):
    """Add rows to every series of a file."""
    begin = len(file["images_seen"]) if "images_seen" in file else 0
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in file:
            news = [row[name] for row in rows if name in row]
            start(file, name, max(value.size for value in news), news[0].ndim == 1)
    for name, item in data_sets(file):
        item.resize(begin + len(rows), axis=0)  # new values are the fill value
        fill = item.fillvalue
        values = [row.get(name, fill) for row in rows]
        if item.ndim == 1:
            item[begin:] = np.array(values, item.dtype)
            continue
        item.resize(max(item.shape[1], *(np.size(value) for value in values)), axis=1)
        for k, value in enumerate(values):
            item[begin + k, : np.size(value)] = value


def start(file, name, wide, by_rank):
    """Create an empty series."""
    whole = name in COUNTS
    file.create_dataset(
        name,
        shape=(0, wide) if by_rank else (0,),
        maxshape=(None, None) if by_rank else (None,),
        chunks=(max(1, CHUNK // wide), wide) if by_rank else (CHUNK,),
        dtype=np.int64 if whole else np.float64,
        fillvalue=-1 if whole else np.nan,
    )


def added_bytes(rows):
    """Upper bound of what rows add to a file: a chunk and its metadata for each new series."""
    series = {name for row in rows for name in row}
    values = sum(value.size for row in rows for value in row.values())
    return 8 * values + (8 * CHUNK + 4096) * (len(series) + 1)


def set_aside(path):
    """Rename a file to the first free name of the form metrics.old-1.h5."""
    stem, ending = os.path.splitext(path)
    number = 1
    while os.path.exists(f"{stem}.old-{number}{ending}"):
        number += 1
    os.replace(path, f"{stem}.old-{number}{ending}")


def read_series(path):
    """All series of a metrics file: path -> array of (rows,) or (rows, ranks).

    Works while the job that writes it runs. Raises UserError for a file that is missing or not a
    readable metrics file.
    """
    file, series = open_series(path)
    with file, damage(path):
        return {name: item[()] for name, item in series.items()}


def open_series(path):
    """(open h5py file, path -> data set of (rows,) or (rows, ranks)), all checked and none read.

    The caller closes the file. Raises UserError as ``read_series`` does.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such metrics file; name an existing one")
    size = os.path.getsize(path)
    with damage(path):
        file = open_hdf5(path)
        try:
            if file.attrs["format"] != np.bytes_(FORMAT) or file.attrs["version"] != FORMAT_VERSION:
                raise ValueError("another format or version")
            rows = len(file["images_seen"])
            return file, {
                name: checked(item, rows, LOOSE * size) for name, item in data_sets(file)
            }
        except BaseException:
            file.close()
            raise


@contextlib.contextmanager
def damage(path):
    """Turn what h5py raises on a damaged file into one line."""
    try:
        yield
    except HDF5_DAMAGE as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}: not a readable metrics file ({reason})") from error


def checked(item, rows, most):
    """A series; ValueError where it is not one of ``rows`` rows or takes > most bytes."""
    if item.dtype.kind not in "if" or item.ndim not in (1, 2) or len(item) != rows:
        raise ValueError(f"{item.name} is no series of {rows} rows")
    if item.nbytes > most or item.is_virtual or item.external:
        raise ValueError(f"{item.name} is larger than the file")
    return item
