"""Memory that an exchange uses again and again."""

# Larger needs, as of a migration, are rare: keeping their memory would take it from the scene.
KEPT_BYTES = 256 * 2**20
# Sizes differ from view to view: room for half more spares most growths.
HEADROOM = 1.5
SMALLEST = 2**20
# Uses after which a buffer that none of them filled to a quarter is made smaller: some steps of
# a few exchanges each, so that a lean view between rich ones changes nothing.
WINDOW = 256


class Buffer:
    """One growing piece of memory.

    allocate: function (bytes) -> flat uint8 array of any array module. Allocation is what is to
    be spared: locking pages takes milliseconds, and peers map device memory once for each piece.
    It grows to HEADROOM times what is asked. When WINDOW uses in a row took less than a quarter
    of it, it is replaced by one for the largest of them. Above KEPT_BYTES nothing is kept.
    """

    def __init__(self, allocate):
        self._allocate = allocate
        self._memory = None
        self._uses = self._largest = 0

    @property
    def nbytes(self):
        """Bytes held between uses."""
        return 0 if self._memory is None else len(self._memory)

    def take(self, count, dtype):
        """(count,) array of dtype, uninitialised; valid until the next call."""
        nbytes = int(count) * dtype.itemsize
        if nbytes > KEPT_BYTES:
            return self._allocate(nbytes).view(dtype)
        self._uses += 1
        self._largest = max(self._largest, nbytes)
        if self._memory is None or nbytes > self.nbytes:
            self._replace(nbytes)
        elif self._uses >= WINDOW:
            if self.nbytes > SMALLEST and self._largest < self.nbytes // 4:
                self._replace(self._largest)
            self._uses = self._largest = 0
        return self._memory[:nbytes].view(dtype)

    def _replace(self, nbytes):
        self._memory = None  # first, so that both are never held
        size = max(SMALLEST, min(int(nbytes * HEADROOM), KEPT_BYTES))
        self._memory = self._allocate(-(-size // 16) * 16)
        self._uses = self._largest = 0


class Buffers:
    """Buffers of one kind of memory: every exchange under way has its own."""

    def __init__(self, allocate):
        """allocate: see Buffer."""
        self._allocate, self._free = allocate, []

    def take(self):
        """A Buffer that is nobody else's until it is given back."""
        return self._free.pop() if self._free else Buffer(self._allocate)

    def give_back(self, buffer):
        """Its exchange is over."""
        self._free.append(buffer)
