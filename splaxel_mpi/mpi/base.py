"""Contract of a transport: the one object through which data leaves a rank."""

from contextlib import nullcontext

from .pending import Done


class Unwatched:
    """Nobody asks where the time of collectives goes; train.timers.Timers does."""

    def begin(self):
        """This rank has its part of the next collective ready; a number for blocked."""

    def blocked(self, number):
        """Context in which that collective holds this rank up."""
        return nullcontext()


class Exchange:
    """Collectives of one communicator, with bytes and seconds counted by kind.

    Every rank calls the same methods in the same order. ``kind`` names what travels ("ghosts",
    "streams", "bitmaps", ...). By kind,
    - ``bytes`` counts what this rank sends to others (nothing it sends to itself);
    - ``seconds`` the time that this rank lost to exchanges: from when its data are ready until
      those of the others are there, less that in which it did something else;
    - ``waited`` the part of seconds spent waiting for ranks that had not begun, where
      ``measure_wait`` asks for it;
    - ``flight`` the time that the data were on their way, whatever this rank did: from when those
      of all ranks are ready (without measure_wait: its own) until this rank saw that they are
      there. 1 - (seconds - waited) / flight of it is hidden behind computing.
    ``comm`` is the communicator; ``watch`` is told when this rank is ready and when it is held up.
    """

    name = ""
    comm = None
    watch = Unwatched()

    @property
    def rank(self):
        """This rank in the communicator."""
        return self.comm.rank

    @property
    def ranks(self):
        """Number of ranks in the communicator."""
        return self.comm.size

    def start_alltoallv(self, kind, data, counts, received=None):
        """Begin alltoallv; the result has a method wait() that returns what alltoallv does.

        The rank may compute and begin other collectives before it waits. Until then it must not
        change ``data``. Other collectives that it calls meanwhile come after this one.
        """
        return Done(self.alltoallv(kind, data, counts, received))

    def start_allgather(self, kind, data):
        """Begin allgather, as start_alltoallv."""
        return Done(self.allgather(kind, data))

    def start_allgatherv(self, kind, data, counts):
        """Begin allgatherv of arrays of known lengths, (ranks,) int64; its result has no counts.
        As start_alltoallv."""
        return Done(self.allgatherv(kind, data)[0])

    def progress(self):
        """Let collectives that have begun go on, without waiting."""

    def alltoallv(self, kind, data, counts, received=None):
        """Variable all-to-all of a flat contiguous array.

        data: (sum counts,) any basic type, segments in rank order; counts: (ranks,) int64
        items for each rank; received: (ranks,) int64 when known, else they are exchanged first.
        Returns (flat array, received counts). Raises OverflowError when a count does not fit
        the library's 32-bit counts.
        """
        raise NotImplementedError

    def allgather(self, kind, data):
        """Equal-sized array of every rank, stacked: (ranks, *data.shape)."""
        raise NotImplementedError

    def allgatherv(self, kind, data):
        """Flat arrays of different lengths: (concatenation, counts (ranks,) int64)."""
        raise NotImplementedError

    def allreduce(self, kind, data, op="sum"):
        """Elementwise "sum", "min" or "max" over ranks of an array; the order of summation is
        fixed for a rank count (gather, then add in rank order), so runs repeat."""
        raise NotImplementedError
