"""Background threads that die with the process."""

import threading
from collections import deque
from concurrent.futures import Future


class Workers:
    """Runs functions on ``count`` threads. Unlike concurrent.futures' pool the threads are
    daemons: a rank that stops with an error must not first decode what is still queued."""

    def __init__(self, count):
        self.queue = deque()
        self.ready = threading.Condition()
        self.open = True
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def submit(self, function, *arguments, urgent=False):
        """Future of function(*arguments); urgent work goes before what is queued."""
        future = Future()
        with self.ready:
            (self.queue.appendleft if urgent else self.queue.append)((future, function, arguments))
            self.ready.notify()
        return future

    def close(self):
        """Drops queued work and waits for what runs."""
        with self.ready:
            self.open = False
            for future, *_ in self.queue:
                future.cancel()
            self.queue.clear()
            self.ready.notify_all()
        for thread in self.threads:
            thread.join()

    def _run(self):
        while True:
            with self.ready:
                self.ready.wait_for(lambda: self.queue or not self.open)
                if not self.queue:
                    return
                future, function, arguments = self.queue.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
