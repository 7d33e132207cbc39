"""What a rank has at hand: communicators, the exchange object and the backend."""

import logging
from dataclasses import dataclass

from ..backends import choose_backend, make_backend
from ..mpi import device
from ..mpi.transport import make_exchange
from ..mpi.world import cores_per_rank, node_comm

log = logging.getLogger(__name__)


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
    """World of a communicator under the settings mpi and backend. Collective.

    Raises UserError when the backend that is asked for is not to be had, or two ranks would
    share a GPU that they may not share.
    """
    threads = config.backend.threads or cores_per_rank(comm)
    name, reason = device.agree(comm, *choose_backend(config.backend))
    notes = [f"backend: {name} ({reason})"]
    if name == "cuda":
        notes += device.bind(comm, config.mpi.share_gpu) or []
    for note in notes if comm.rank == 0 else ():
        log.info(note)
    backend = make_backend(name, config.backend, threads)
    exchange = make_exchange(config.mpi.transport, backend, comm)
    return World(comm, node_comm(comm), exchange, backend)
