"""When a run stops before its end: ranks agree on it at the end of a step."""

import signal
import time

import numpy as np

from ..mpi.world import load_mpi

TIME = 1000  # code of the time limit among those of signals
# Bytes a second that a file system is trusted with before the first checkpoint was timed.
TRUSTED_RATE = 200e6


class Stop:
    """Agreement of ranks to stop early.

    comm: communicator of all ranks; signals: mpi.signals.StopSignals; deadline: moment of
    time.monotonic() by which the run is to have ended, None for none: root's clock and root's
    deadline decide. One small reduction a step, on a communicator of its own, travels while
    parameters are updated; a rank that is alone looks at its flag.
    reason: why the run stops, once it is agreed; None before.
    """

    def __init__(self, comm, signals, deadline=None):
        self.comm = comm.Dup() if comm.size > 1 else comm
        self.signals, self.deadline = signals, deadline
        self.reason = None
        self._mine, self._worst = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._request = None
        self._write, self._step = 0.0, 0.0  # longest seconds so far
        self._last = None

    def expect(self, nbytes):
        """A checkpoint of so many bytes will have to be written."""
        self.wrote(nbytes / TRUSTED_RATE)

    def wrote(self, seconds):
        """A checkpoint took so long."""
        self._write = max(self._write, seconds)

    def _code(self):
        """What this rank has to say."""
        if self.signals.asked:
            return int(self.signals.asked)
        if self.deadline is None or self.comm.rank:
            return 0
        # twice the write: the scene may have grown since, and others use the file system too
        return TIME * (time.monotonic() + 2 * self._write + self._step >= self.deadline)

    def begin(self):
        """Tell the others what this rank has to say. On all ranks, in every step."""
        if self.comm.size > 1 and self._request is None and self.reason is None:
            self._mine[0] = self._code()
            self._request = self.comm.Iallreduce(self._mine, self._worst, load_mpi().MAX)

    def agreed(self):
        """Whether the run stops here: the same on all ranks. Begins where begin was not called."""
        if self.reason is None:
            self.begin()
            if self._request is None:
                self._decide(self._code())
            else:
                self._request.Wait()
                self._request = None
                self._decide(int(self._worst[0]))
        return self.reason is not None

    def step_ended(self):
        """As agreed, at the end of a step: its time is what the next one may take."""
        now = time.monotonic()
        if self._last is not None:
            self._step = max(self._step, now - self._last)
        stop = self.agreed()
        self._last = now
        return stop

    def paused(self):
        """What comes before the next end of a step is not a step alone."""
        self._last = None

    def _decide(self, code):
        if code == TIME:
            self.reason = "the time limit is near"
        elif code:
            self.reason = signal.Signals(code).name

    def close(self):
        """Give the communicator back. Collective."""
        if self.comm.size > 1:
            if self._request is not None:
                self._request.Wait()
            self.comm.Free()
