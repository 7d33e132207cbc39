"""Collectives that are under way while their rank computes.

A transport describes one as a generator ("steps") that does what can be done at once and yields a
gate where it must wait: for its own device, for MPI requests, for slower ranks. Whoever looks at
the Pending passes the gates that are open; where there is a Carrier, a thread of its own does.
"""

import queue
import threading
import time
from contextlib import nullcontext


class Done:
    """A collective that was over when it began."""

    def __init__(self, result):
        self._result = result

    def wait(self):
        """See Pending."""
        return self._result


class Gate:
    """What must be over before a collective goes on.

    local: no other rank has a part in it; travels: waiting for it is communication; meets: it is
    open once all ranks have begun.
    """

    local, travels, meets = False, True, False

    def test(self):
        """Whether it is open."""
        raise NotImplementedError

    def wait(self):
        """Return once it is open."""
        raise NotImplementedError


class Requests(Gate):
    """MPI requests."""

    def __init__(self, requests, meets=False):
        self._requests, self.meets = requests, meets

    def test(self):
        """See Gate. MPI makes progress."""
        return not self._requests or self._requests[0].Testall(self._requests)

    def wait(self):
        """See Gate."""
        if self._requests:
            self._requests[0].Waitall(self._requests)


class Reached(Gate):
    """An event of this rank's device.

    travels: a copy on the way to others ends there; else it says that the data are ready.
    """

    local = True

    def __init__(self, event, travels):
        self._event, self.travels = event, travels

    def test(self):
        """See Gate."""
        return self._event.done

    def wait(self):
        """See Gate."""
        self._event.synchronize()


class Job:
    """What a Carrier was given. over: threading.Event; error: what it ended with, or None."""

    def __init__(self, function):
        self._function, self.over, self.error = function, threading.Event(), None

    def run(self):
        """Do it; never raises."""
        try:
            self._function()
        except Exception as error:  # raised again where the result is waited for
            self.error = error
        self.over.set()


class Carrier:
    """A thread that waits for exchanges while its rank computes: most MPI libraries move data
    only while somebody calls them. It takes a core, MPI must allow calls of several threads, and
    steps must not care which thread goes on with them.
    """

    def __init__(self, prepare):
        """prepare: function that the thread calls first."""
        self._jobs = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(prepare,), daemon=True).start()

    def take(self, function):
        """Job that calls a function after those that were taken before."""
        job = Job(function)
        self._jobs.put(job)
        return job

    def _run(self, prepare):
        prepare()
        while True:
            self._jobs.get().run()


class Pending:
    """One collective under way; see Exchange.start_alltoallv.

    exchange: whose figures it adds to; kind: under which; steps: generator of gates; result:
    what wait returns; carrier: Carrier that takes it when the rank turns to something else, or
    None.
    """

    def __init__(self, exchange, kind, steps, result, carrier=None):
        self._exchange, self._kind, self._steps = exchange, kind, steps
        self._result, self._carrier, self._job = result, carrier, None
        start = time.perf_counter()
        self._gate = next(steps, None)
        # since when the data are on their way, those of all ranks are, and are there
        self._began = self._met = self._landed = None
        self._counted, self._number = False, exchange.watch.begin()
        if self._gate is None or self._gate.travels:
            self._began = self._met = start
            self._count(start)
        self._finish()

    @property
    def over(self):
        """Whether the data are there."""
        return self._gate is None and self._job is None

    def test(self):
        """Go on as far as is possible without waiting, or let the carrier do it."""
        if self._job:
            if not self._job.over.is_set():
                return
            self._take_back()
        while self._gate is not None:
            if self._carrier:
                self._job, self._carrier = self._carrier.take(self._carry), None
                return
            start, gate = time.perf_counter(), self._gate
            is_open = gate.test()
            if gate.travels:
                self._count(start)
            if not is_open:
                return
            self._go_on()
        self._finish()

    def post(self):
        """Wait for this rank's part: from then on only others can delay it."""
        while not self._job and self._gate is not None and self._gate.local:
            self._wait_for_gate()
        self._finish()

    def wait(self):
        """Return the result once it is there. May be called again."""
        if not self.over:
            self._exchange.post()
        if self._job:
            start = time.perf_counter()
            with self._held_up():
                self._job.over.wait()
            self._take_back()
            start = max(start, self._began)
            self._count(start, max(0.0, self._met - start))
        while self._gate is not None:
            self._wait_for_gate()
        self._finish()
        return self._result

    def _carry(self):
        """In the carrier's thread."""
        while self._gate is not None:
            self._gate.wait()
            self._pass()

    def _take_back(self):
        """The carrier has done its part."""
        job, self._job = self._job, None
        if job.error:
            raise job.error

    def _wait_for_gate(self):
        start, gate = time.perf_counter(), self._gate
        with self._held_up() if gate.travels else nullcontext():
            gate.wait()
        if gate.travels:
            self._count(start, time.perf_counter() - start if gate.meets else 0.0)
        self._go_on()

    def _go_on(self):
        """Pass a gate in the rank's own thread."""
        start = time.perf_counter()
        with self._held_up():
            self._pass()
        self._count(start)

    def _held_up(self):
        """Context in which this rank does nothing else."""
        return self._exchange.watch.blocked(self._number)

    def _pass(self):
        """The gate is open: go on to the next."""
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        self._met = now if self._gate.meets or self._met is None else self._met
        self._gate = next(self._steps, None)
        if self._gate is None:
            self._landed = time.perf_counter()

    def _count(self, start, waited=0.0):
        """This rank has done nothing else since ``start``."""
        self._exchange.count(self._kind, time.perf_counter() - start, waited=waited)

    def _finish(self):
        """Count the way, once, when it is over."""
        if self.over and not self._counted:
            landed = time.perf_counter() if self._landed is None else self._landed
            self._exchange.count(self._kind, 0.0, flight=landed - self._met)
            self._counted = True
