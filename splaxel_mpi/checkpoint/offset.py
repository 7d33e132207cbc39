"""Each rank writes its own rows at their byte offsets, without MPI."""

import os

import numpy as np

from splaxel_mpi.checkpoint.base import Writer
from splaxel_mpi.files import cannot_write, raise_together, write_on_root

# Bytes of one call; Linux writes less than 2 GiB in one.
CALL_BYTES = 64 << 20


class Offset(Writer):
    """Rank 0 asks HDF5 where each data set begins; then every rank writes by itself.

    Needs a file system on which several nodes may write different parts of a file at a time, as
    the parallel ones are. No rank waits for another, so it can be done on a thread.
    """

    name = "offset"

    @staticmethod
    def usable(comm):
        """Always."""
        return True

    def write(self, path, slabs, comm):
        """Write the rows of every slab to the file ``path`` and make them durable."""
        raise_together(comm, write_rows(path, slabs, find_places(path, slabs, comm), comm.rank))


def find_places(path, slabs, comm):
    """First byte of each slab's data set in the file, None where it is empty. Collective."""
    return write_on_root(comm, path, lambda: read_places(path, slabs))


def read_places(path, slabs):
    """First byte of each slab's data set, from HDF5."""
    import h5py

    with h5py.File(path, "r") as file:
        return [file[slab.path].id.get_offset() for slab in slabs]


def write_rows(path, slabs, places, rank):
    """Write this rank's rows and make them durable; a message where that failed, or None."""
    try:
        handle = os.open(path, os.O_WRONLY)
        try:
            for slab, place in zip(slabs, places):
                if len(slab.rows):
                    put(handle, slab.rows, place, int(slab.offsets[rank]))
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as failure:
        return cannot_write(path, failure)
    return None


def put(handle, rows, place, first):
    """Write C-contiguous rows to a data set at byte ``place``, from its row ``first`` on."""
    rows = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    content = memoryview(rows.reshape(-1).view(np.uint8))
    place += first * (rows.nbytes // len(rows))
    done = 0
    while done < len(content):
        done += os.pwrite(handle, content[done : done + CALL_BYTES], place + done)
