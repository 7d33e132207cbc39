"""Exchange of device arrays by NCCL, for clusters whose MPI takes no device memory."""

import warnings

from .device import identity
from .device_arrays import DeviceExchange
from .host import starts
from .world import first_of

INSTALL = "install it (pip install -e '.[nccl]')"
# timings of calls that are kept before they are summed up; by then all but the last are over
PENDING = 256


class InStream:
    """An exchange in NCCL's stream: what Pending is for MPI."""

    def __init__(self, exchange, kind, move, result, held):
        """move: function that gives the calls to the stream; held: arrays that they use, whose
        memory must not become another array's before they are over."""
        self._exchange, self._kind, self._result, self._held = exchange, kind, result, held
        exchange._hold(exchange._mark())
        self._number = exchange.watch.begin()
        began = exchange._mark_there()
        exchange._meet()
        met = exchange._mark_there()
        move()
        self._events = began, met, exchange._mark_there()

    def wait(self):
        """The result. The host does not wait: the current stream does, for what comes next."""
        if self._held is not None:
            reached = self._exchange._mark()
            with self._exchange.watch.blocked(self._number):
                self._exchange._release(self._events[-1])
            self._exchange._remember(self._kind, reached, *self._events)
            self._held = None
        return self._result


class NcclExchange(DeviceExchange):
    """Device arrays by NCCL in a stream of their own, counts and numpy arrays by MPI.

    Events order that stream and the current one, so no call waits on the host. Figures are those
    of the device: ``seconds`` is how long the current stream stood still.
    """

    name = "nccl"

    def __init__(self, comm, measure_wait=False):
        self._timings = []  # (kind, where the stream began to wait, began, met, done)
        super().__init__(comm, measure_wait)
        self._library = library = _load()
        key = comm.bcast(library.get_unique_id() if comm.rank == 0 else None)
        self._nccl = library.NcclCommunicator(comm.size, key, comm.rank)
        self._made = self._tokens = None  # the stream; a byte of this rank and of all

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

    def _remember(self, *timing):
        if len(self._timings) >= PENDING:
            self._settle()
        self._timings.append(timing)

    def _settle(self):
        """See HostExchange. Waits for what is still in the stream."""
        timings, self._timings = self._timings, []
        for kind, reached, began, met, done in timings:
            still, unmet = (max(0.0, self._elapsed(reached, end)) for end in (done, met))
            way = self._elapsed(met if self.measure_wait else began, done)
            self.count(kind, still, way, unmet)

    def _begin(self, kind, data, steps, result):
        if not self._on_device(data):
            return super()._begin(kind, data, steps, result)
        return InStream(self, kind, steps, result, (data, result))

    def _meet(self):
        """Let the stream wait for all ranks, where such waiting is measured."""
        if self.measure_wait:
            own, all_ranks = (self._address(token) for token in self._own_tokens())
            self._nccl.allGather(own, all_ranks, 1, self._library.NCCL_UINT8, self._stream())

    def _own_tokens(self):
        """What ranks send when they meet: (1,) and (ranks,) bytes."""
        self._tokens = self._tokens or (self._allocate(1), self._allocate(self.comm.size))
        return self._tokens

    @staticmethod
    def _allocate(nbytes):
        import cupy

        return cupy.empty(nbytes, cupy.uint8)

    @staticmethod
    def _elapsed(before, after):
        """Seconds between two events, negative where the second came first."""
        import cupy

        before.synchronize()
        after.synchronize()
        return cupy.cuda.get_elapsed_time(before, after) / 1e3

    def _own(self):
        """The stream of NCCL's calls, made at the first, when the device is chosen."""
        import cupy

        self._made = self._made or cupy.cuda.Stream(non_blocking=True)
        return self._made

    def _stream(self):
        """Its address."""
        return self._own().ptr

    def _hold(self, event):
        """Let NCCL's stream wait for an event of the current one."""
        self._own().wait_event(event)

    def _mark_there(self):
        """An event in NCCL's stream."""
        return self._own().record()

    @staticmethod
    def _release(event):
        """Let the current stream wait for an event of NCCL's."""
        import cupy

        cupy.cuda.get_current_stream().wait_event(event)

    @staticmethod
    def _address(array):
        return array.data.ptr

    def _sending(self, data, counts, out, received, tag):
        """Of device arrays: a function that gives the calls to the stream. So do the others."""
        if not self._on_device(data):
            return super()._sending(data, counts, out, received, tag)
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

        return move

    def _gathering(self, data, out, tag):
        if not self._on_device(data):
            return super()._gathering(data, out, tag)
        arguments = self._address(data), self._address(out), data.nbytes
        kind, stream = self._library.NCCL_UINT8, self._stream()
        return lambda: data.nbytes and self._nccl.allGather(*arguments, kind, stream)

    def _gathering_all(self, data, out, counts, tag):
        if not self._on_device(data):
            return super()._gathering_all(data, out, counts, tag)
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
