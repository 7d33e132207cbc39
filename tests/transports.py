"""The transports of device arrays on numpy arrays: their logic without a GPU."""

import time
from types import SimpleNamespace

import numpy as np

from splaxel_mpi.mpi.cuda_aware import CudaAwareExchange
from splaxel_mpi.mpi.nccl import NcclExchange
from splaxel_mpi.mpi.pending import Reached
from splaxel_mpi.mpi.staged import StagedExchange


class OnHost:
    """Mixed in before a transport: every array counts as device memory."""

    @staticmethod
    def _on_device(data):
        return True

    @staticmethod
    def _mark():
        """An event of a device that is always done with everything."""
        return SimpleNamespace(done=True, synchronize=lambda: None, time=time.perf_counter())

    @staticmethod
    def _allocate(nbytes):
        return np.full(nbytes, 0xAB, np.uint8)



class HostStaged(OnHost, StagedExchange):
    def _bring_in(self, pairs):
        for piece, part in pairs:
            np.copyto(part, piece)
        yield Reached(self._mark(), travels=False)
        yield Reached(self._mark(), travels=True)

    def _bring_out(self, pairs):
        for place, part in pairs:
            np.copyto(place, part)
        yield Reached(self._mark(), travels=True)


class HostCudaAware(OnHost, CudaAwareExchange):
    pass


class NcclOnMpi:
    """The calls of CuPy's NCCL module that are used, on host addresses. Calls that were given to
    a stream are made when somebody waits for an event behind them."""

    NCCL_UINT8 = 1

    def __init__(self, comm):
        self.comm = comm
        self.group, self.stream = None, []  # functions to be called

    def groupStart(self):
        self.group = []

    def groupEnd(self):
        calls, self.group = self.group, None
        self.stream.append(lambda: self._all(calls))

    @staticmethod
    def _all(calls):
        from mpi4py import MPI

        MPI.Request.Waitall([call() for call in calls])

    def send(self, address, count, kind, peer, stream):
        self.group.append(lambda: self.comm.Isend(self._memory(address, count), peer))

    def recv(self, address, count, kind, peer, stream):
        self.group.append(lambda: self.comm.Irecv(self._memory(address, count), peer))

    def allGather(self, address, out, count, kind, stream):
        whole = self._memory(out, count * self.comm.size)
        part = self._memory(address, count)
        self.stream.append(lambda: self.comm.Allgather(part, whole))

    def mark(self):
        """An event behind all calls so far; its time is None until it is reached."""
        event = SimpleNamespace(time=None)
        self.stream.append(lambda: setattr(event, "time", time.perf_counter()))
        return event

    def run_until(self, event):
        while event.time is None:
            self.stream.pop(0)()

    @staticmethod
    def _memory(address, count):
        from mpi4py import MPI

        return MPI.memory.fromaddress(address, count)


class HostNccl(OnHost, NcclExchange):
    def __init__(self, comm, measure_wait=False):
        self._timings, self._tokens = [], None
        super(NcclExchange, self).__init__(comm, measure_wait)
        self._library = self._nccl = NcclOnMpi(comm)

    _hold = staticmethod(lambda event: None)
    _elapsed = staticmethod(lambda before, after: after.time - before.time)
    _stream = staticmethod(lambda: 0)
    _address = staticmethod(lambda array: array.ctypes.data)

    def _mark_there(self):
        return self._nccl.mark()

    def _release(self, event):
        self._nccl.run_until(event)
