"""Collectives that are under way while their rank computes.

A transport describes one as a generator ("steps") that does what can be done at once and yields a
gate where it must wait: for its own device, for MPI requests, for slower ranks. Whoever looks at
the Pending passes the gates that are open.
"""

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

    local: no other rank has a part in it; travels: waiting for it is communication.
    """

    local, travels, meets = False, True, False

    def test(self):
        """Whether it is open."""
        raise NotImplementedError

    def wait(self):
        """Return once it is open."""
        raise NotImplementedError


class Requests(Gate):
    """MPI requests; meets: they are those of ranks that tell each other that they have begun."""

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


class Pending:
    """One collective under way; see Exchange.start_alltoallv.

    exchange: whose figures it adds to; kind: under which; steps: generator of gates; result:
    what wait returns.
    """

    def __init__(self, exchange, kind, steps, result):
        self._exchange, self._kind, self._steps = exchange, kind, steps
        self._result = result
        start = time.perf_counter()
        self._gate = next(steps, None)
        travels = self._gate is None or self._gate.travels
        self._began = start if travels else None  # since when the data are on their way
        if travels:
            self._spend(start)
        self._number = exchange.watch.begin()
        self._land()

    @property
    def over(self):
        """Whether the data are there."""
        return self._gate is None

    def test(self):
        """Go on as far as is possible without waiting."""
        while self._gate is not None:
            start = time.perf_counter()
            is_open = self._gate.test()
            self._spend(start)
            if not is_open:
                return
            self._pass()

    def post(self):
        """Wait for this rank's part: from then on only others can delay it."""
        while self._gate is not None and self._gate.local:
            self._wait_for_gate()

    def wait(self):
        """Return the result once it is there. May be called again."""
        if self._gate is not None:
            self._exchange.post()
        while self._gate is not None:
            self._wait_for_gate()
        return self._result

    def _wait_for_gate(self):
        start = time.perf_counter()
        with self._held_up() if self._gate.travels else nullcontext():
            self._gate.wait()
        self._spend(start)
        self._pass()

    def _held_up(self):
        """Context in which this rank does nothing else."""
        return self._exchange.watch.blocked(self._number)

    def _pass(self):
        """The gate is open: go on to the next."""
        start = time.perf_counter()
        if self._began is None:
            self._began = start
        with self._held_up():
            self._gate = next(self._steps, None)
        self._exchange.count(self._kind, time.perf_counter() - start)
        self._land()

    def _spend(self, start):
        """Count what has passed since ``start``, in which this rank did nothing else."""
        if self._gate is not None and not self._gate.travels:
            return
        spent = time.perf_counter() - start
        meets = self._gate is not None and self._gate.meets
        self._exchange.count(self._kind, spent, waited=spent if meets else 0.0)

    def _land(self):
        if self._gate is None:
            self._exchange.count(self._kind, 0.0, flight=time.perf_counter() - self._began)
