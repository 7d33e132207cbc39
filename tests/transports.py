"""The transports of device arrays on numpy arrays: their logic without a GPU."""

import time

import numpy as np

from splaxel_mpi.mpi.cuda_aware import CudaAwareExchange
from splaxel_mpi.mpi.nccl import NcclExchange
from splaxel_mpi.mpi.staged import StagedExchange


class OnHost:
    """Mixed in before a transport: every array counts as device memory."""

    @staticmethod
    def _on_device(data):
        return True

    @staticmethod
    def _wait_for_stream():
        pass

    @staticmethod
    def _allocate(nbytes):
        return np.full(nbytes, 0xAB, np.uint8)

    _copy_in = staticmethod(lambda piece, part: np.copyto(part, piece))
    _copy_out = staticmethod(lambda part, place: np.copyto(place, part))


class HostStaged(OnHost, StagedExchange):
    pass


class HostCudaAware(OnHost, CudaAwareExchange):
    pass


class NcclOnMpi:
    """The calls of CuPy's NCCL module that are used, on host addresses."""

    NCCL_UINT8 = 1

    def __init__(self, comm):
        self.comm = comm
        self.requests = None

    def groupStart(self):
        self.requests = []

    def groupEnd(self):
        from mpi4py import MPI

        MPI.Request.Waitall(self.requests)
        self.requests = None

    def send(self, address, count, kind, peer, stream):
        self.requests.append(self.comm.Isend(self._memory(address, count), peer))

    def recv(self, address, count, kind, peer, stream):
        self.requests.append(self.comm.Irecv(self._memory(address, count), peer))

    def allGather(self, address, out, count, kind, stream):
        whole = self._memory(out, count * self.comm.size)
        self.comm.Allgather(self._memory(address, count), whole)

    @staticmethod
    def _memory(address, count):
        from mpi4py import MPI

        return MPI.memory.fromaddress(address, count)


class HostNccl(OnHost, NcclExchange):
    def __init__(self, comm, measure_wait=False):
        self._pending = []
        super(NcclExchange, self).__init__(comm, measure_wait)
        self._library = self._nccl = NcclOnMpi(comm)

    _mark = staticmethod(time.perf_counter)
    _elapsed = staticmethod(lambda before, after: after - before)
    _stream = staticmethod(lambda: 0)
    _address = staticmethod(lambda array: array.ctypes.data)
