"""Memory that all ranks of one node see."""

import os

import numpy as np

from splaxel_mpi.errors import UserError

SHARED_FILES = "/dev/shm"  # where MPI libraries on Linux put shared windows


def free_shared_bytes():
    """Free bytes of the file system that backs shared windows; None where there is none."""
    try:
        status = os.statvfs(SHARED_FILES)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


class SharedBuffer:
    """One buffer of bytes for a node: an MPI shared window, or plain memory for one rank.

    node_comm: communicator of the ranks of one node, None for a single process. nbytes: size
    of the buffer, the same on every rank. ``array`` is the whole buffer, (nbytes,) uint8,
    uninitialised; every rank may write anywhere, ``sync`` orders writes and reads. Creation,
    ``sync``, ``first_of`` and ``free`` are collective. Raises UserError on every rank when the
    node's shared memory is too small: without the check the first write beyond it would kill
    the process with SIGBUS. ``setting`` names what the user should lower.
    """

    def __init__(self, node_comm, nbytes, setting="data.cache"):
        self.comm = node_comm if node_comm is not None and node_comm.size > 1 else None
        self.window = None
        if self.comm is None:
            self.array = np.empty(nbytes, np.uint8)
            return
        free = self.comm.bcast(free_shared_bytes(), root=0)
        if free is not None and nbytes > free:
            raise UserError(
                f"{SHARED_FILES}: {nbytes} bytes of shared memory are needed but {free} are free "
                f"on this node; lower {setting}"
            )
        from mpi4py import MPI

        mine = nbytes if self.comm.rank == 0 else 0
        self.window = MPI.Win.Allocate_shared(mine, 1, comm=self.comm)
        self.window.Lock_all()  # one epoch for the buffer's life; sync does the rest
        memory, _ = self.window.Shared_query(0)
        self.array = np.ndarray((nbytes,), np.uint8, buffer=memory)

    def sync(self):
        """What any rank wrote before is what every rank reads after."""
        if self.comm is not None:
            self.window.Sync()
            self.comm.Barrier()
            self.window.Sync()

    def first_of(self, text):
        """As sync; also returns the text (str or None) of the lowest rank that has one."""
        if self.comm is None:
            return text
        self.window.Sync()
        texts = self.comm.allgather(text)
        self.window.Sync()
        return next((found for found in texts if found is not None), None)

    def free(self):
        """Gives the memory back; views of ``array`` must not be used any more."""
        self.array = None
        if self.window is not None:
            self.window.Unlock_all()
            self.window.Free()
            self.window = None
