"""How many Gaussians a scene and a rank may have."""

import logging
from dataclasses import dataclass, field

import numpy as np

from ..errors import UserError
from ..scene.gaussians import GROUPS

log = logging.getLogger(__name__)

KIND = "densify"  # under which an exchange counts the traffic
# Part of the free memory that Gaussians may take. The rest is for what a view needs (measured:
# see docs/performance.md), exchange buffers and the copies that reordering makes.
STORE_SHARE = 0.7
# Part of the free memory of a GPU that is held back for the moment when there is none left.
RESERVE_SHARE = 1 / 64


def bytes_per_gaussian(real):
    """Bytes that a Gaussian takes on its rank: parameters, two moments and gradients in the
    float type ``real``, id, densification statistics, count of views, mark of being seen."""
    size = np.dtype(real).itemsize
    return 4 * sum(GROUPS.values()) * size + 8 + size + 4 + 4 + 1


def fits(memory, real):
    """Gaussians that ``memory`` bytes hold."""
    return int(memory) // bytes_per_gaussian(real)


@dataclass
class Budget:
    """Limits on the number of Gaussians; 0 stands for none.

    scene: of all ranks together (setting densify.limit), which does not depend on the rank
    count; rank: what the memory of this rank holds.
    """

    scene: int = 0
    rank: int = 0
    warned: set = field(default_factory=set)

    def allowed(self, exchange, rows, wanted):
        """Gaussians that all ranks together may add now. Collective, equal on all ranks.

        rows: Gaussians of this rank once those that go have gone; wanted: the most that this
        rank would add. Whichever of the wanted ones are taken, no more than the result, every
        rank can hold its share. Refused growth is said once for each limit.
        """
        room = max(0, self.rank - rows) if self.rank else wanted
        # a rank that has room for all it wants sets no bound
        bound = room if wanted > room else np.iinfo(np.int64).max
        total, most = exchange.allreduce(KIND, np.array([rows, wanted], np.int64)).tolist()
        fit = int(exchange.allreduce(KIND, np.array([bound], np.int64), "min")[0])
        left = max(0, self.scene - total) if self.scene else most
        if most > left:
            self._warn(exchange, "scene", "the scene reached densify.limit = %d: no more "
                       "Gaussians are added; raise it for a finer scene", self.scene)
        if min(most, left) > fit:
            self._warn(exchange, "rank", "a rank's memory is full with %d Gaussians in the "
                       "scene: growth is cut short; use more ranks, raise backend.memory or set "
                       "densify.limit", total)
        return min(most, left, fit)

    def check(self, exchange, rows):
        """Raise UserError on all ranks where one cannot hold its rows. Collective."""
        limit = self.rank or np.iinfo(np.int64).max
        ranks = exchange.allgather(KIND, np.array([rows, limit], np.int64))
        worst = int(np.argmax(ranks[:, 0] - ranks[:, 1]))
        rows, limit = ranks[worst].tolist()
        if rows > limit:
            raise UserError(
                f"rank {worst} would hold {rows} of {ranks[:, 0].sum()} Gaussians, but its memory "
                f"holds {limit}: use more ranks or raise backend.memory, which is for Gaussians "
                "alone"
            )

    def describe(self, exchange, rows, real):
        """One line on what there is and what fits. Collective."""
        ranks = exchange.allgather(KIND, np.array([rows, self.rank], np.int64))
        fullest, least = ranks[:, 0].max(), ranks[:, 1].min()
        fit = f"{least:,} fit in its memory" if least else "no limit is set by its memory"
        scene = f", {self.scene:,} may be in the scene" if self.scene else ""
        return (f"Gaussians: {ranks[:, 0].sum():,}, at most {fullest:,} on a rank at "
                f"{bytes_per_gaussian(real)} bytes each; {fit}{scene}")

    def _warn(self, exchange, limit, *message):
        """Once, by the first rank: all know the same."""
        if limit not in self.warned and exchange.rank == 0:
            log.warning(*message)
        self.warned.add(limit)


def make_budget(setting, world, beside, share_gpu):
    """The Budget of this rank, and memory held back on a GPU. Collective over the node.

    setting: bytes for Gaussians (backend.memory), None for a share of what is free; beside:
    bytes of host memory that the node's image cache will take; share_gpu: several ranks may
    use a GPU.
    """
    memory = world.backend.memory
    on_host = world.backend.xp is np
    # all look before any takes something
    free = min(world.node.allgather(memory.available()))
    if on_host:
        free = max(0, free - beside)
    free //= world.node.size if on_host or share_gpu else 1
    memory.hold(int(RESERVE_SHARE * free))
    bytes_held = int(STORE_SHARE * free) if setting is None else setting
    return Budget(rank=max(1, fits(bytes_held, world.backend.real)))
