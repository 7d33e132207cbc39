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

    def over(self, name, work):
        """Generator that runs one (mpi.pipeline) and adds the time of its own to stage ``name``,
        not that in which others run. Returns its result."""
        while True:
            with self(name):
                try:
                    next(work)
                except StopIteration as end:
                    return end.value
            yield

    def take(self):
        """Return the sums and start again from zero."""
        out, self.seconds = dict(self.seconds), defaultdict(float)
        return out
