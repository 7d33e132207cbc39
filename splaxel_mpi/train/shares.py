"""The time of a rank in the shares of the paper's figure 20."""

import time

import numpy as np

from .timers import COLLECTIVES

# Local rendering: from parameters to partial pixels. Back-propagation: from dL/dC of the composed
# pixels to gradients of parameters. All that is neither, nor inside a collective, is other:
# composition, the loss with its gradient, masks, Adam, photographs, growth, and the host between
# stages.
STAGES = {
    "rendering": ("project", "ghosts", "sort", "rasterize"),
    "back_propagation": ("compose back", "rasterize back", "ghosts back", "project back"),
    # a rank alone on a GPU, whose steps run ahead of the host: these and the update undivided
    "step": ("step",),
    "apart": ("evaluate", "checkpoint"),  # no part of training
}
NAMES = ("rendering", "back_propagation", "step", "communication", "waiting", "other", "apart")
WORDS = {"back_propagation": "back-propagation", "apart": "evaluation and checkpoints"}
# Barriers whose ends tell how far apart clocks of two nodes are: the median leaves out those
# that a process was late to leave.
ROUNDS = 5


def shares(spent, waiting):
    """Seconds by NAMES, which add up to the time spent.

    spent: timers.Spent; waiting: seconds in collectives before the last rank had come. A name
    without any of its stages is left out but for communication, waiting and other.
    """
    found = {
        share: sum(spent.seconds[name] for name in stages if name in spent.seconds)
        for share, stages in STAGES.items()
        if any(name in spent.seconds for name in stages)
    }
    inside = spent.seconds.get(COLLECTIVES, 0.0)
    total = sum(spent.seconds.values())
    other = total - inside - sum(found.values())
    return dict(found, communication=inside - waiting, waiting=waiting, other=other)


class Waiting:
    """Tells how long this rank was held up in collectives by ranks that came later.

    What each rank measures anyway is compared afterwards, so it costs no barrier: clocks of a
    node are one, those of several are compared at each call.
    """

    def __init__(self, exchange, node):
        """node: communicator of the ranks of this node."""
        self.exchange = exchange
        self.one_clock = node.size == exchange.ranks

    def seconds(self, spent):
        """Seconds of a timers.Spent in which collectives held this rank up while another one was
        not ready. Collective; all ranks have been in the same ones."""
        if self.exchange.ranks == 1:
            return 0.0
        ahead = self._ahead()
        last = self.exchange.allreduce("figures", spent.ready - ahead, "max") + ahead
        return float(np.clip(last[spent.number] - spent.start, 0, spent.blocked).sum())

    def _ahead(self):
        """Seconds by which this rank's clock is ahead of rank 0's."""
        if self.one_clock:
            return 0.0
        moments = np.empty(ROUNDS)
        for k in range(ROUNDS):
            self.exchange.comm.Barrier()
            moments[k] = time.perf_counter()
        everyone = self.exchange.allgather("figures", moments)
        return float(np.median(moments - everyone[0]))


def in_words(means):
    """Shares in percent, text. means: seconds by NAMES."""
    total = max(sum(means.values()), 1e-9)
    percent = {name: round(100 * means.get(name, 0.0) / total) for name in NAMES}
    shown = [f"{WORDS.get(name, name)} {percent[name]}%" for name in NAMES if percent[name]]
    return "time: " + ", ".join(shown)
