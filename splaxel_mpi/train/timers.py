"""Where the time of a rank goes: at every moment to one stage."""

import time
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

OUTSIDE = "outside"  # of all stages: the host between them
COLLECTIVES = "collectives"
# Marks that are kept before they are summed up, and those that are still kept then: a device may
# not have come to the newest, and waiting for it would hold up the host.
MOST_MARKS, NEWEST = 4096, 256


class HostClock:
    """Marks are moments of the host: for stages that return when they are done."""

    mark = staticmethod(time.perf_counter)

    def seconds(self, marks):
        """Moments of marks in order, (n,) float64."""
        return np.array(marks)

    def reached(self, mark):
        """Moment of a mark; waits for it."""
        return mark

    def anchor(self, moment):
        """Tell the marks after the last one summed up from its moment."""


class DeviceClock:
    """Marks are events of the current CuPy stream: the moment at which the device comes to them,
    on the clock of the host. Stages that only launch work are charged for that work."""

    def __init__(self):
        self.free = []

    def mark(self):
        """An event behind all that was launched."""
        import cupy

        event = self.free.pop() if self.free else cupy.cuda.Event()
        event.record()
        return event

    def seconds(self, marks):
        """Moments of marks in order, (n,) float64; the first is the last of the call before.
        Waits for the last."""
        import cupy

        marks[-1].synchronize()
        elapsed = [cupy.cuda.get_elapsed_time(*pair) for pair in zip(marks, marks[1:])]
        found = self.start + np.cumsum([0.0, *elapsed]) / 1e3
        self.start = found[-1]
        self.free += marks[:-1]
        return found

    def reached(self, mark):
        """Moment of a mark; waits for it."""
        mark.synchronize()
        return time.perf_counter()

    def anchor(self, moment):
        """Tell the marks after the last one summed up from its moment: two clocks drift."""
        self.start = moment


@dataclass
class Spent:
    """What Timers.take returns; moments are seconds on the host's clock."""

    seconds: dict  # by stage, OUTSIDE and COLLECTIVES; they add up to the time since the last call
    ready: np.ndarray  # (collectives,) float64: when this rank had its part of each ready
    # of the times in which it was held up, (n,) each:
    number: np.ndarray  # int64, in which collective
    start: np.ndarray  # float64
    blocked: np.ndarray  # float64, seconds


class Timers:
    """Exclusive times of stages that may contain one another: while an inner one runs the outer
    one stands still. For the thread that trains alone. An Exchange's ``watch``."""

    def __init__(self, clock=None):
        """clock: HostClock (the default) or DeviceClock."""
        self.clock = clock or HostClock()
        self._whole = False
        self.moves = 0  # stages and collectives entered: changes as long as this rank gets on
        self._stages = [OUTSIDE]
        self._marks = [self.clock.mark()]
        # of each mark: what goes on from there, in which collective, which is ready there
        self._follow = [(OUTSIDE, None, None)]
        self.clock.anchor(self.clock.reached(self._marks[0]))
        self._clear()

    @contextmanager
    def __call__(self, name, whole=False):
        """Charge the time of a with block to stage ``name``. whole: with all stages and
        collectives inside."""
        self.moves += 1
        if self._whole:
            yield
            return
        self._enter(name)
        self._whole = whole
        try:
            yield
        finally:
            self._whole = False
            self._leave()

    def begin(self):
        """This rank has its part of a collective ready. Returns its number, for blocked; None
        where its time is not told apart."""
        self.moves += 1
        if self._whole:
            return None
        number = self._begun
        self._begun += 1
        self._mark(self._stages[-1], ready=number)
        return number

    @contextmanager
    def blocked(self, number):
        """A with block in which collective ``number`` holds this rank up."""
        if self._whole:
            yield
            return
        self._enter(COLLECTIVES, number)
        try:
            yield
        finally:
            self._leave()

    @property
    def place(self):
        """Stages that this rank is in, the innermost last. Other threads may ask."""
        return ", ".join(self._stages[1:]) or OUTSIDE

    @property
    def seconds(self):
        """Seconds since the last take by stage, OUTSIDE and COLLECTIVES. Waits for a device."""
        self._sum_up(1)
        return dict(self._seconds)

    def computed(self):
        """Seconds of stages since the last take, collectives and the time outside left out."""
        return sum(s for name, s in self.seconds.items() if name not in (OUTSIDE, COLLECTIVES))

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
        """Spent since the last call, or since this object was made. Not inside a stage, and with
        no collective under way."""
        self._mark(OUTSIDE)
        now = self.clock.reached(self._marks[-1])
        self._sum_up(1)
        self.clock.anchor(now)
        number, start, blocked = np.array(self._held_up, np.float64).reshape(-1, 3).T
        ready = np.array(self._ready, np.float64)
        spent = Spent(self._seconds, ready, number.astype(np.int64), start, blocked)
        self._clear()
        return spent

    def _clear(self):
        self._seconds, self._ready, self._held_up, self._begun = {}, [], [], 0

    def _enter(self, name, number=None):
        self._stages.append(name)
        self._mark(name, number)

    def _leave(self):
        self._stages.pop()
        self._mark(self._stages[-1])

    def _mark(self, name, number=None, ready=None):
        """From now on time goes to a name, or to collective ``number``."""
        self._marks.append(self.clock.mark())
        self._follow.append((name, number, ready))
        if len(self._marks) > MOST_MARKS:
            self._sum_up(NEWEST)

    def _sum_up(self, kept):
        """Charge the time between marks but for the newest ones."""
        count = len(self._marks) - kept
        times = self.clock.seconds(self._marks[: count + 1])
        for (name, number, ready), start, spent in zip(self._follow, times, np.diff(times)):
            self._seconds[name] = self._seconds.get(name, 0.0) + float(spent)
            if number is not None:
                self._held_up.append((number, start, spent))
            if ready is not None:
                self._ready.append(start)
        del self._marks[:count], self._follow[:count]


def make_timers(backend):
    """Timers for stages that a backend computes."""
    return Timers(HostClock() if backend.xp is np else DeviceClock())
