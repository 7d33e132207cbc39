"""Rank 0 writes for all, with an h5py that knows no MPI."""

import os

import numpy as np

from splaxel_mpi.checkpoint.base import Writer
from splaxel_mpi.files import cannot_write, raise_together

# Bytes of one message to rank 0, which holds one of them at a time.
MESSAGE_BYTES = 64 << 20
# Apart from the tags of training traffic on the same communicator.
TAG = 7801


class Serial(Writer):
    """Rank after rank sends its rows to rank 0, which alone has the file open.

    One opener is safer than opening in turn: it needs no agreement of node caches on the
    file's size, and no file locks change hands.
    """

    name = "serial"

    @staticmethod
    def usable(comm):
        """Always."""
        return True

    def write(self, path, slabs, comm):
        """Write the rows of every slab to the file ``path`` and make them durable."""
        error = None
        if comm.rank:
            for slab in slabs:
                send_rows(slab.rows, comm)
        else:
            error = write_all(path, slabs, comm)
        raise_together(comm, error)


def message_rows(rows):
    """Rows that fit one message."""
    return max(1, MESSAGE_BYTES // max(1, rows.dtype.itemsize * int(np.prod(rows.shape[1:]))))


def send_rows(rows, comm):
    """Send this rank's rows to rank 0, bounded messages one after the other."""
    step = message_rows(rows)
    for begin in range(0, len(rows), step):
        # As bytes: mpi4py then needs no MPI type for the element.
        comm.Send(rows[begin : begin + step].reshape(-1).view(np.uint8), dest=0, tag=TAG)


def write_all(path, slabs, comm):
    """Rank 0's side; returns a message where writing failed, or None.

    After a failure it goes on receiving, else the senders would wait forever.
    """
    import h5py

    file, error = None, None
    try:
        file = h5py.File(path, "r+")
    except OSError as failure:
        error = cannot_write(path, failure)
    for slab in slabs:
        for start, part in parts_of(slab, comm):
            if error or not part.size:
                continue
            try:
                file[slab.path].write_direct(part, dest_sel=np.s_[start : start + len(part)])
            except OSError as failure:
                error = cannot_write(path, failure)
    try:
        if file is not None:
            file.close()
            with open(path, "rb+") as handle:
                os.fsync(handle.fileno())
    except (OSError, RuntimeError) as failure:
        error = error or cannot_write(path, OSError(str(failure)))
    return error


def parts_of(slab, comm):
    """Pairs (first row in the data set, rows) of all ranks in order, own rows first."""
    rows, offsets = slab.rows, slab.offsets
    step = message_rows(rows)
    for rank in range(comm.size):
        first, end = int(offsets[rank]), int(offsets[rank + 1])
        for start in range(first, end, step):
            stop = min(start + step, end)
            if rank == 0:
                yield start, rows[start:stop]
                continue
            part = np.empty((stop - start,) + rows.shape[1:], rows.dtype)
            comm.Recv(part.reshape(-1).view(np.uint8), source=rank, tag=TAG)
            yield start, part
