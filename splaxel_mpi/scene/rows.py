"""Arrays that belong to the same Gaussians row for row, changed in place."""

import numpy as np

from ..arrays import module_of, release

# Capacity grows by this factor, so that a growing scene moves only a few times.
GROWTH = 1.5
# Bytes of the copies that compaction holds at a time.
CHUNK_BYTES = 32 << 20
# Bytes of a row that reordering holds at a time: a cache line or two of scattered reads, and
# little beside the hundreds of bytes of a Gaussian.
BLOCK_BYTES = 64


class Rows:
    """Named arrays of ``capacity`` rows, of which the first ``count`` are in use.

    arrays: name -> (n, ...) array of numpy or cupy, C-contiguous, taken over without a copy.
    ``rows[name]`` is a view of the rows in use. Whoever keeps such a view over a change keeps
    the memory of the array alive too.
    """

    def __init__(self, arrays):
        self.arrays, self.count = dict(arrays), len(next(iter(arrays.values())))
        for name, array in self.arrays.items():
            if len(array) != self.count:
                raise ValueError(f"{name} has {len(array)} rows for {self.count} Gaussians")
            self.arrays[name] = self.xp.ascontiguousarray(array)

    def __len__(self):
        return self.count

    def __getitem__(self, name):
        return self.arrays[name][: self.count]

    @property
    def xp(self):
        """numpy or cupy, whose arrays these are."""
        return module_of(next(iter(self.arrays.values())))

    @property
    def capacity(self):
        """Rows that the arrays have."""
        return len(next(iter(self.arrays.values())))

    @property
    def nbytes(self):
        """Bytes of all arrays, rows that are not in use included."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def row_bytes(self):
        """Bytes of one row of all arrays."""
        return sum(row_bytes(array) for array in self.arrays.values())

    def add(self, name, width, dtype):
        """A new array of zeros, (capacity, width), or (capacity,) for width None."""
        shape = (self.capacity,) if width is None else (self.capacity, width)
        self.arrays[name] = self.xp.zeros(shape, dtype)

    def reserve(self, rows, limit=0):
        """Make room for so many rows; capacity grows by half, but not beyond limit (0: none)
        unless ``rows`` is.

        Moves one array after the other, the largest first: at no time is more taken than the
        new arrays and one old one.
        """
        if rows <= self.capacity:
            return
        capacity = max(rows, int(GROWTH * self.capacity))
        if limit:
            capacity = max(rows, min(capacity, limit))
        xp = self.xp
        for name in sorted(self.arrays, key=lambda name: -row_bytes(self.arrays[name])):
            new = xp.empty((capacity, *self.arrays[name].shape[1:]), self.arrays[name].dtype)
            new[: self.count] = self[name]
            self.arrays[name] = new  # the old one is free now
            release(xp)

    def keep(self, mask):
        """Drop the rows where mask (n,) bool is false; the others keep their order."""
        xp = self.xp
        rows = xp.flatnonzero(mask)
        kept = len(rows)
        gone = xp.flatnonzero(~mask[:kept])
        first = int(gone[0]) if len(gone) else kept  # rows before it stay where they are
        for array in self.arrays.values():
            # a row moves to a smaller index: what a chunk overwrites was read before
            step = max(1, CHUNK_BYTES // max(row_bytes(array), 1))
            for start in range(first, kept, step):
                stop = min(start + step, kept)
                array[start:stop] = array[rows[start:stop]]
        self.count = kept

    def append(self, count, values):
        """Add rows, for which there must be room: values has (count, ...) arrays by name; arrays
        it lacks get zeros."""
        start, stop = self.count, self.count + count
        for name, array in self.arrays.items():
            array[start:stop] = values.get(name, 0)
        self.count = stop

    def reorder(self, order):
        """Row i becomes what was row order[i] of the arrays (rows beyond count may be named);
        order: (m,) integers, each once. Holds BLOCK_BYTES of a row at a time."""
        for array in self.arrays.values():
            if not row_bytes(array):
                continue
            flat = array.reshape(len(array), row_bytes(array) // array.itemsize)
            step = max(1, BLOCK_BYTES // array.itemsize)
            for start in range(0, flat.shape[1], step):
                block = flat[:, start : start + step]
                block[: len(order)] = block[order]
        self.count = len(order)

    def map(self, function):
        """Replace every array by function of its rows in use, one after the other."""
        for name in self.arrays:
            self.arrays[name] = function(self[name])


def row_bytes(array):
    """Bytes of one row of an array."""
    return array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
