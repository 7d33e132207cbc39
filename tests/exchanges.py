"""Exchanges for tests: one rank alone, ranks as threads of one process, ranks under mpirun."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np

from splaxel_mpi.mpi.base import Exchange


class ThreadExchange(Exchange):
    """Rank ``rank`` of threads that meet at a board; see run_ranks."""

    def __init__(self, rank, ranks, board, barrier):
        self.comm = SimpleNamespace(rank=rank, size=ranks)
        self.board, self.barrier = board, barrier
        self.calls = {}  # (method, kind) -> number of calls
        self.bytes = {}  # kind -> bytes sent to others by alltoallv
        self.largest = 0  # most items that this rank passed at once

    def _meet(self, method, kind, value, items):
        """What every rank brought, in rank order; all must be in the same call."""
        self.calls[method, kind] = self.calls.get((method, kind), 0) + 1
        self.largest = max(self.largest, items)
        self.board[self.rank] = (method, kind, value)
        self.barrier.wait(30)
        met = list(self.board)
        self.barrier.wait(30)
        assert {entry[:2] for entry in met} == {(method, kind)}
        return [entry[2] for entry in met]

    def allgather(self, kind, data):
        return np.stack(self._meet("allgather", kind, np.array(data), np.size(data)))

    def allgatherv(self, kind, data):
        parts = self._meet("allgatherv", kind, np.array(data), np.size(data))
        return np.concatenate(parts), np.array([len(part) for part in parts], np.int64)

    def allreduce(self, kind, data, op="sum"):
        parts = np.stack(self._meet("allreduce", kind, np.array(data), np.size(data)))
        return {"sum": np.sum, "min": np.min, "max": np.max}[op](parts, axis=0)

    def alltoallv(self, kind, data, counts, received=None):
        assert data.ndim == 1 and len(data) == counts.sum() and len(counts) == self.ranks
        sent = int(counts.sum() - counts[self.rank]) * data.itemsize
        self.bytes[kind] = self.bytes.get(kind, 0) + sent
        parts = np.split(np.array(data), np.cumsum(counts)[:-1])
        parts = [part[self.rank] for part in self._meet("alltoallv", kind, parts, len(data))]
        found = np.array([len(part) for part in parts], np.int64)
        assert received is None or (found == received).all()
        return np.concatenate(parts), found


class SelfExchange(ThreadExchange):
    """One rank, without MPI."""

    def __init__(self):
        super().__init__(0, 1, [None], threading.Barrier(1))


def run_ranks(ranks, function):
    """Results of function(exchange) on each of some ranks, run as threads."""
    board, barrier = [None] * ranks, threading.Barrier(ranks)

    def run(rank):
        try:
            return function(ThreadExchange(rank, ranks, board, barrier))
        except threading.BrokenBarrierError:
            raise
        except BaseException:
            # a rank that fails alone must not leave the others waiting
            threading.Timer(1.0, barrier.abort).start()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(ranks)]
    return [future.result() for future in futures]


def exchange_of(comm):
    """The host transport on a communicator."""
    from splaxel_mpi.mpi.host import HostExchange

    return HostExchange(comm)
