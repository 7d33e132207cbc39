"""What a transport carries between the ranks at hand: a bare all-to-all, as steps call it."""

import time
from dataclasses import dataclass

import numpy as np

KIND = "link"  # under which an exchange counts the traffic
SMALL = 16  # floats to each peer: what such a message takes is latency
# Bytes to each peer that are long against latencies: on links between GPUs they take some tenths
# of a millisecond, through memory some hundredths of a second.
LARGE = 16 << 20
ROUNDS = 9  # of which the first third does not count: buffers are made and pages touched


@dataclass(frozen=True)
class Link:
    """bandwidth: GB/s that a rank sends while it receives as many; latency: microseconds of a
    collective of few bytes; source: "measured", "given" or "assumed"."""

    bandwidth: float
    latency: float
    source: str

    def __str__(self):
        return f"{self.bandwidth:.3g} GB/s a rank, {self.latency:.3g} us a message ({self.source})"


# PCIe 4 x16 or a network of 200 Gb/s, where there is nothing to measure
ASSUMED = Link(25.0, 50.0, "assumed")


def measure(exchange, backend):
    """Link of an exchange object of two ranks or more, the slowest rank's. Collective."""
    short, long = (_seconds(exchange, backend, items)
                   for items in (SMALL, LARGE // np.dtype(np.float32).itemsize))
    for figures in (exchange.bytes, exchange.seconds, exchange.waited, exchange.flight):
        figures.pop(KIND, None)
    sent = LARGE * (exchange.ranks - 1)
    return Link(1e-9 * sent / max(long - short, 1e-9), 1e6 * short, "measured")


def _seconds(exchange, backend, items):
    """Median over rounds of the slowest rank's time for so many floats to each peer."""
    counts = np.full(exchange.ranks, items)
    counts[exchange.rank] = 0
    data, times = backend.zeros(int(counts.sum()), np.float32), []
    for _ in range(ROUNDS):
        _finish(backend)
        exchange.comm.Barrier()
        start = time.perf_counter()
        exchange.alltoallv(KIND, data, counts, counts)
        _finish(backend)
        times.append(time.perf_counter() - start)
    slowest = np.max(exchange.comm.allgather(times), axis=0)
    return float(np.median(slowest[ROUNDS // 3 :]))


def _finish(backend):
    """Wait for this rank's device."""
    if backend.xp is not np:
        backend.xp.cuda.get_current_stream().synchronize()
