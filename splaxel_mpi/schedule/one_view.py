"""Scheduler one-view: the paper's starting point (section 4.4, figure 15a)."""

from .windows import Windowed


class OneView(Windowed):
    """One view at a time on all ranks, in the order of ``fixed``; a batch is still one update."""

    name = "one-view"
    predicts = True  # for the figures: the order needs nothing

    def chunks(self, images_seen, size):
        """See Scheduler.chunks."""
        return [1] * size

    def waits(self, start, opens):
        """See Windowed.waits: after every view."""
        return [1] * len(opens)
