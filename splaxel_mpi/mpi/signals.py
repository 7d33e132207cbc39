"""Signals that ask a run to stop: noticed at once, whatever the rank waits for."""

import os
import signal
import socket
import threading
import time

from . import world

# What launchers and schedulers send ahead of the end of a job: TERM by scancel, at preemption and
# at the time limit, USR1 and USR2 by --signal and by hand.
ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
# Seconds in which a signal is the same as the one before: a scheduler signals a rank and the
# launcher, which forwards it.
SAME = 2.0
# Seconds for MPI to end all ranks; then this one ends by itself, and its launcher the others.
ABORT = 5.0


class StopSignals:
    """Context manager: the first of ASKING is kept, another one ends all ranks at once.

    asked: number of the first signal, 0 while there was none. A rank that waits inside MPI gets
    to no handler of Python's, so a thread that never calls MPI reads what arrives; only the
    end at once is an MPI call of that thread. On threads but the main one nothing is listened to.
    """

    def __init__(self):
        self.asked, self._last = 0, 0.0
        self._before = {}

    def __enter__(self):
        if threading.current_thread() is not threading.main_thread():
            return self
        self._in, self._out = socket.socketpair()
        self._out.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._out.fileno(), warn_on_full_buffer=False)
        # the wake-up file gets the number of each signal that has a handler
        self._before = {one: signal.signal(one, lambda *_: None) for one in ASKING}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()
        return self

    def __exit__(self, *error):
        if self._before:
            for one, handler in self._before.items():
                signal.signal(one, handler)
            signal.set_wakeup_fd(self._wakeup)
            self._out.close()

    def _listen(self):
        with self._in:
            while numbers := self._in.recv(64):
                for number in numbers:
                    if number in ASKING:
                        self._hear(number)

    def _hear(self, number):
        now, before = time.monotonic(), self._last
        self._last = now
        if not self.asked:
            self.asked = number
        elif now - before > SAME:
            name = signal.Signals(number).name
            world.tell(f"splaxel-mpi: error: {name}, the second signal: stopped at once")
            end_now(128 + number)


def end_now(status):
    """End all ranks from a thread, even where MPI itself is stuck; does not return."""
    last = threading.Timer(ABORT, os._exit, [status])
    last.daemon = True
    last.start()
    world.abort(status)
