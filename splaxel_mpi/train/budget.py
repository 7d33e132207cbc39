"""How many Gaussians a scene and a rank may have."""

import logging
from dataclasses import dataclass, field

import numpy as np

log = logging.getLogger(__name__)

KIND = "densify"  # under which an exchange counts the traffic


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
            self._warn("scene", "the scene reached densify.limit = %d: no more Gaussians are "
                       "added; raise it for a finer scene", self.scene)
        if min(most, left) > fit:
            self._warn("rank", "a rank's memory is full with %d Gaussians: growth is cut short; "
                       "use more ranks, raise backend.memory or set densify.limit", total)
        return min(most, left, fit)

    def _warn(self, limit, *message):
        if limit not in self.warned:
            self.warned.add(limit)
            log.warning(*message)
