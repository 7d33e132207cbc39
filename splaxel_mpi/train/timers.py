"""Seconds spent in each stage of a step on this rank."""

import time
from collections import defaultdict
from contextlib import contextmanager


class Timers:
    """Sums of wall time by stage name."""

    def __init__(self):
        self.seconds = defaultdict(float)

    @contextmanager
    def __call__(self, name):
        """Add the time of a with block to stage ``name``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - start

    def take(self):
        """Return the sums and start again from zero."""
        out, self.seconds = dict(self.seconds), defaultdict(float)
        return out
