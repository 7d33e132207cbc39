"""All ranks write at once through parallel HDF5."""

import numpy as np

from splaxel_mpi.checkpoint.base import Writer
from splaxel_mpi.files import cannot_write, raise_together

# Bytes a rank hands over in one call. HDF5 1.10 fails from 2 GiB; half a GiB keeps the
# buffers of MPI-IO small too.
CALL_BYTES = 1 << 29


class Parallel(Writer):
    """Collective transfers of each rank's own rows (driver mpio)."""

    name = "parallel"

    @staticmethod
    def usable(comm):
        """True when h5py was built with MPI and more than one rank runs."""
        import h5py

        return comm.size > 1 and h5py.get_config().mpi

    def write(self, path, slabs, comm):
        """Write the rows of every slab to the file ``path`` and make them durable.

        A rank whose transfer fails goes on taking part, else the others would wait forever.
        """
        import h5py

        file, error = None, None
        try:
            file = h5py.File(path, "r+", driver="mpio", comm=comm)
        except OSError as failure:
            error = cannot_write(path, failure)
        raise_together(comm, error)
        # Opened before any write, since after a failed one HDF5 opens nothing more.
        for slab, item in [(slab, file[slab.path].id) for slab in slabs]:
            error = write_slab(path, item, slab, comm.rank) or error
        for finish in (file.flush, file.close):  # flush is MPI_File_sync on every rank
            try:
                finish()
            except (OSError, RuntimeError) as failure:
                error = error or cannot_write(path, OSError(str(failure)))
        raise_together(comm, error)


def write_slab(path, item, slab, rank):
    """Bring one data set's rows into the file; returns a message where that failed, or None."""
    rows, offsets = slab.rows, slab.offsets
    row_bytes = max(1, rows.dtype.itemsize * int(np.prod(rows.shape[1:])))
    step = max(1, CALL_BYTES // row_bytes)
    error = None
    # Every rank makes as many calls as the one with most rows needs.
    for begin in range(0, int(np.diff(offsets).max()), step):
        try:
            write_part(item, rows[begin : begin + step], int(offsets[rank]) + begin)
        except (OSError, RuntimeError) as failure:  # RuntimeError where MPI-IO gives no number
            error = error or cannot_write(path, failure)
    return error


def write_part(item, part, start):
    """One collective transfer of rows to data set rows start...; part may be empty.

    The low-level call, because the high-level form returns early on an empty selection and
    leaves the other ranks waiting.
    """
    from h5py import h5fd, h5p, h5s

    transfer = h5p.create(h5p.DATASET_XFER)
    transfer.set_dxpl_mpio(h5fd.MPIO_COLLECTIVE)
    there = item.get_space()
    if len(part):
        here = h5s.create_simple(part.shape)
        there.select_hyperslab((start,) + (0,) * (part.ndim - 1), part.shape)
    else:
        part = np.zeros((1,) + part.shape[1:], part.dtype)
        here = h5s.create_simple(part.shape)
        here.select_none()
        there.select_none()
    item.write(here, there, part, dxpl=transfer)
