"""A checkpoint as arrays, by slices of rows where it is large."""

from collections.abc import Mapping

import numpy as np

from ..checkpoint.read import Reader
from .frames import data_frame

# Groups whose data sets have rows under checksums: those of Gaussians, and those of ranks.
OF_GAUSSIANS = ("gaussians/", "adam/", "densify/")
OF_RANKS = "extra/"
# Rows read at a time: 47 MB of the widest data set in float32.
PIECE = 1 << 18


class Checkpoint(Mapping):
    """An open checkpoint: data set -> numpy array, text, or ``Rows``. Use as a context manager.

    Everything that is read is verified against its checksum. Raises UserError, one line, for a
    file that is missing, damaged, unfinished or of another format version.
    """

    def __init__(self, path):
        self.reader = Reader(path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.reader.file.close()

    @property
    def gaussians(self):
        """Gaussians of the whole scene."""
        return self.reader.count

    @property
    def ranks(self):
        """Ranks that wrote the file."""
        return self.reader.ranks

    def __len__(self):
        return len(self.reader.contents)

    def __iter__(self):
        return iter(self.reader.contents)

    def __contains__(self, name):
        return name in self.reader.contents

    def __getitem__(self, name):
        """A data set by its path: ``Rows``, from which slices are taken, in groups gaussians,
        adam, densify and extra; else an array of its shape, or text. KeyError for others."""
        if name not in self:
            raise KeyError(name)
        with self.reader.damage():
            if name.startswith(OF_GAUSSIANS):
                return Rows(self.reader, name, self.reader.rank_offsets)
            if name.startswith(OF_RANKS):
                return Rows(self.reader, name, self.reader.read_offsets(f"layout/{name}"))
            return self.reader.fact(name)

    def frame(self, names=("gaussians/means", "gaussians/scales", "gaussians/opacities"),
              rows=slice(None)):
        """Gaussians as a pandas.DataFrame with their ids as index, a column "<name>/<k>" for each
        of a data set's columns. Raises UserError where pandas is not installed."""
        return data_frame({name: self[name][rows] for name in names},
                          self["gaussians/ids"][rows], "id")


class Rows:
    """A data set with rows of an open checkpoint: rows[a:b] reads and verifies these rows alone.

    shape, dtype: as of an array; offsets: (ranks + 1,) int64, first row of each writing rank.
    numpy.asarray(rows) reads all of them.
    """

    def __init__(self, reader, path, offsets):
        item = reader.data_set(path)
        if not item.shape or item.shape[0] != offsets[-1]:
            raise reader.broken(f"{path} does not fit its offsets")
        self.reader, self.path, self.offsets = reader, path, offsets
        self.shape, self.dtype = item.shape, item.dtype.newbyteorder("=")

    @property
    def ndim(self):
        """Dimensions."""
        return len(self.shape)

    def __len__(self):
        return self.shape[0]

    def __array__(self, dtype=None, copy=None):
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key):
        """The array of some rows. key: a slice or the number of a row; further ones after a comma
        are as of numpy. TypeError for lists and masks: they would hide how much is read."""
        rows, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            found = self._forward(range(start, stop, step))
            return found[(slice(None), *rest)]
        if not isinstance(rows, (int, np.integer)):
            raise TypeError(f"{self.path}: rows are chosen by a slice or a number")
        row = range(len(self))[rows]
        return self._read(row, row + 1)[(0, *rest)]

    def blocks(self, rows=PIECE):
        """Pairs (number of the first row, array of at most ``rows`` rows), in order: all of the
        data set in little memory. Raises ValueError for rows below 1."""
        if rows < 1:
            raise ValueError("rows must be at least 1")
        for start in range(0, len(self), rows):
            yield start, self._read(start, min(start + rows, len(self)))

    def _forward(self, chosen):
        """Rows of a range, piece by piece, so that a long step takes no more than its result."""
        if chosen.step < 0:
            return self._forward(chosen[::-1])[::-1]
        out = np.empty((len(chosen), *self.shape[1:]), self.dtype)
        each = max(1, PIECE // chosen.step)
        for first in range(0, len(chosen), each):
            part = chosen[first : first + each]
            out[first : first + len(part)] = self._read(part[0], part[-1] + 1)[:: chosen.step]
        return out

    def _read(self, start, stop):
        with self.reader.damage():
            return self.reader.rows(self.path, start, stop, self.offsets)
