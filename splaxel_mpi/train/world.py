"""What a rank has at hand: communicators, the exchange object and the backend."""

from dataclasses import dataclass

import numpy as np

from ..backends.host import HostBackend
from ..mpi.transport import make_exchange
from ..mpi.world import cores_per_rank, node_comm


@dataclass
class World:
    """The ranks of a run as one of them sees it."""

    comm: object  # communicator of all ranks
    node: object  # communicator of the ranks of this node
    exchange: object  # mpi.base.Exchange
    backend: object  # backends.base.Backend
    root: int = 0

    @property
    def rank(self):
        """Number of this rank."""
        return self.comm.rank

    @property
    def ranks(self):
        """Number of ranks."""
        return self.comm.size

    @property
    def is_root(self):
        """True on the rank that reads, reports and lays out files."""
        return self.rank == self.root


def make_world(config, comm):
    """World of a communicator under the settings mpi and backend. Collective."""
    threads = config.backend.threads or cores_per_rank(comm)
    backend = HostBackend(np.dtype(config.backend.precision), threads)
    return World(comm, node_comm(comm), make_exchange(config.mpi.transport, backend, comm), backend)

