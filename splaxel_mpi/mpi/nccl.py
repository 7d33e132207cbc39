"""Exchange of device arrays by NCCL, for clusters whose MPI takes no device memory."""

import warnings
from contextlib import contextmanager

from .device import identity
from .device_arrays import DeviceExchange
from .host import nothing, starts
from .world import first_of

INSTALL = "install it (pip install 'splaxel-mpi[nccl]')"
# timings of calls that are kept before they are summed up; by then all but the last are over
PENDING = 256


class NcclExchange(DeviceExchange):
    """Device arrays by NCCL on the current CuPy stream; counts and numpy arrays by MPI.

    A call returns once it is in the stream: what uses the result comes after it there. Its
    ``seconds`` are those of the device, from the moment at which the stream reached it.
    """

    name = "nccl"

    def __init__(self, comm, measure_wait=False):
        self._pending = []  # (kind, event before, event after)
        super().__init__(comm, measure_wait)
        self._library = library = _load()
        key = comm.bcast(library.get_unique_id() if comm.rank == 0 else None)
        self._nccl = library.NcclCommunicator(comm.size, key, comm.rank)

    @classmethod
    def unfit(cls, comm, backend):
        """See DeviceExchange: no NCCL, or ranks that share a GPU, which it refuses."""
        try:
            reason = _load() and None
        except ImportError as error:
            reason = f"CuPy finds no NCCL ({' '.join(str(error).split())}): {INSTALL}"
        reason = first_of(comm, reason)
        if reason:
            return reason
        names = comm.allgather(identity(backend.device.id)[0])
        for rank, name in enumerate(names):
            first = names.index(name)
            if first < rank:
                return f"it needs a GPU for each rank, but ranks {first} and {rank} share {name}"
        return None

    @property
    def seconds(self):
        """See Exchange. Waits for what is still in the stream."""
        self._settle()
        return self._seconds

    @seconds.setter
    def seconds(self, value):
        self._seconds = value

    def _settle(self):
        pending, self._pending = self._pending, []
        for kind, before, after in pending:
            self._seconds[kind] += self._elapsed(before, after)

    @contextmanager
    def _timed(self, kind, data):
        if not self._on_device(data):
            with super()._timed(kind, data):
                yield
            return
        if self.measure_wait:
            with super()._timed(kind, data):
                pass
        if len(self._pending) >= PENDING:
            self._settle()
        before = self._mark()
        with self.watch.blocked(self.watch.begin()):
            yield
        self._pending.append((kind, before, self._mark()))

    @staticmethod
    def _mark():
        """An event in the current stream."""
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    @staticmethod
    def _elapsed(before, after):
        """Seconds between two events."""
        import cupy

        after.synchronize()
        return cupy.cuda.get_elapsed_time(before, after) / 1e3

    @staticmethod
    def _stream():
        """Address of the current stream."""
        import cupy

        return cupy.cuda.get_current_stream().ptr

    @staticmethod
    def _address(array):
        return array.data.ptr

    def _sending(self, data, counts, out, received):
        if not self._on_device(data):
            return super()._sending(data, counts, out, received)
        size = data.itemsize
        return self._exchanging(
            self._address(data), starts(counts) * size, counts * size,
            self._address(out), starts(received) * size, received * size,
        )

    def _exchanging(self, data, sent_at, sent, out, received_at, received):
        """As _sending: bytes to and from every other rank at these offsets of two addresses."""
        kind, stream, calls = self._library.NCCL_UINT8, self._stream(), []
        for peer in range(self.comm.size):
            if peer != self.comm.rank and sent[peer]:
                place = int(data + sent_at[peer]), int(sent[peer])
                calls.append((self._nccl.send, (*place, kind, peer, stream)))
            if peer != self.comm.rank and received[peer]:
                place = int(out + received_at[peer]), int(received[peer])
                calls.append((self._nccl.recv, (*place, kind, peer, stream)))

        def move():
            self._library.groupStart()
            for function, arguments in calls:
                function(*arguments)
            self._library.groupEnd()

        return move, nothing

    def _gathering(self, data, out):
        if not self._on_device(data):
            return super()._gathering(data, out)
        if not data.nbytes:
            return nothing, nothing
        arguments = self._address(data), self._address(out), data.nbytes
        kind, stream = self._library.NCCL_UINT8, self._stream()
        return lambda: self._nccl.allGather(*arguments, kind, stream), nothing

    def _gathering_all(self, data, out, counts):
        if not self._on_device(data):
            return super()._gathering_all(data, out, counts)
        begin, size, rank = starts(counts), data.itemsize, self.comm.rank
        out[begin[rank] : begin[rank] + len(data)] = data
        own = counts * 0 + data.nbytes  # the same to everybody
        return self._exchanging(
            self._address(data), counts * 0, own, self._address(out), begin * size, counts * size
        )


def _load():
    """CuPy's NCCL module. Raises ImportError when its library is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy prints a page of advice
        try:
            from cupy.cuda import nccl
        except ImportError:
            raise
        except Exception as error:  # a library that is too old has an error of its own
            raise ImportError(str(error)) from None
    if not nccl.available:
        raise ImportError("libnccl.so.2 cannot be loaded")
    return nccl
