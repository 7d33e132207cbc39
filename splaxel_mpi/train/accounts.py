"""What a run is told of its time, its bytes and the pixels of its views."""

from contextlib import contextmanager

import numpy as np

from ..visibility.counts import per_view
from .shares import NAMES, Waiting, in_words, shares

# Kinds of traffic that training views cause; the others come now and then.
VIEW_KINDS = (
    "masks", "ghosts", "ghosts back", "bitmaps", "streams", "streams back", "halo",
    "gaussians", "gaussians back", "strips",
)


class Accounts:
    """Of one rank, from one report to the next.

    renderer: whose timers are followed, and which the exchange tells of its collectives; counts:
    visibility.counts.ViewCounts; node: communicator of the ranks of this node.
    """

    def __init__(self, renderer, counts, node):
        self.renderer, self.timers, self.exchange = renderer, renderer.timers, renderer.exchange
        self.exchange.watch = self.timers
        self.counts, self.waiting = counts, Waiting(self.exchange, node)
        self.start()

    def start(self):
        """Leave out everything up to now."""
        self.timers.take()
        self.before, self.elsewhere = self._bytes(), 0

    @contextmanager
    def apart(self, name):
        """A with block that is not training: its stages and collectives are charged to stage
        ``name``, its bytes and splats to no view."""
        before, renderer = self._view_bytes(), self.renderer
        counts = renderer.visible_count, renderer.ghost_count
        with self.timers(name, whole=True):
            yield
        renderer.visible_count, renderer.ghost_count = counts
        self.elsewhere += self._view_bytes() - before

    def take(self, views):
        """Figures since the last call or start. Collective.

        views: training views that all ranks together have done. Returns (this rank's by name, for
        figures over ranks; those of the job by name).
        """
        spent = self.timers.take()
        found = shares(spent, self.waiting.seconds(spent))
        now = self._bytes()
        kinds = {kind: count - self.before.get(kind, 0) for kind, count in now.items()}
        of_views = sum(kinds.get(kind, 0) for kind in VIEW_KINDS) - self.elsewhere
        self.before, self.elsewhere = now, 0
        sums = dict(self.counts.take(), bytes=of_views)
        total = self.exchange.allreduce("figures", np.array(list(sums.values()), np.float64))
        sums = dict(zip(sums, total.tolist()))
        ranks = {
            **{f"shares/{name}": seconds for name, seconds in found.items()},
            **{f"seconds/{name}": seconds for name, seconds in sorted(spent.seconds.items())},
            **{f"bytes/{kind}": count for kind, count in sorted(kinds.items())},
        }
        job = per_view(sums, self.exchange.ranks)
        if self.exchange.ranks > 1:
            job["view_bytes"] = sums["bytes"] / max(views, 1)
        return ranks, job

    def _bytes(self):
        """Bytes sent so far, by kind."""
        return dict(self.exchange.bytes)

    def _view_bytes(self):
        return sum(self.exchange.bytes.get(kind, 0) for kind in VIEW_KINDS)


def line(means, job):
    """One line of the log on where time and bytes went.

    means: {name: mean over ranks} and job: of what Accounts.take gives.
    """
    parts = [in_words({name: means.get(f"shares/{name}", 0.0) for name in NAMES})]
    if "view_bytes" in job:
        parts.append(f"{job['view_bytes'] / 1e6:.3g} MB a view")
        if "utilisation" in job:
            parts.append(f"utilisation {job['utilisation']:.0%}")
    return "  ".join(parts)
