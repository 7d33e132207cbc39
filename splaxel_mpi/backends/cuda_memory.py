"""Memory of the GPU, as CuPy's pool hands it out, with a reserve for when there is none left."""

import logging

log = logging.getLogger(__name__)


class DeviceMemory:
    """The pool of the current device.

    A rank that ends a step halfway leaves the others waiting in a collective. So some memory is
    held back (hold): when an array finds none, it is given up, the step goes on to its end on
    all ranks, and ``spent`` tells that the next ones must need less.
    """

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.pool = cupy.get_default_memory_pool()
        self.reserve, self.size, self.spent = None, 0, False

    def available(self):
        """Bytes that arrays of this process may still take."""
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        free += self.pool.total_bytes() - self.pool.used_bytes()
        limit = self.pool.get_limit()
        return min(free, limit - self.pool.used_bytes()) if limit else free

    def figures(self):
        """Bytes by name, for the metrics: arrays in use, what the pool keeps, free on the
        device."""
        free, _ = self.cupy.cuda.runtime.memGetInfo()
        return {
            "device/used": self.pool.used_bytes(),
            "device/pool": self.pool.total_bytes(),
            "device/free": free,
        }

    def hold(self, size):
        """Hold ``size`` bytes back from now on; as much as there is when there is less."""
        self.size = min(size, self.available() // 2)
        self.reserve = self.pool.malloc(self.size)
        self.cupy.cuda.set_allocator(self.allocate)

    def allocate(self, size):
        """CuPy's allocator: from the pool, else with unused blocks of other sizes given back to
        the device, else from the reserve. Raises CuPy's OutOfMemoryError, a MemoryError."""
        full = self.cupy.cuda.memory.OutOfMemoryError
        try:
            return self.pool.malloc(size)
        except full:
            self.pool.free_all_blocks()
        try:
            return self.pool.malloc(size)
        except full:
            if self.reserve is None:
                raise
        log.warning("the GPU's memory is full (%d bytes more were asked for): the reserve of %d "
                    "bytes is used", size, self.size)
        self.reserve, self.spent = None, True
        self.pool.free_all_blocks()
        return self.pool.malloc(size)

    def renew(self):
        """Hold back again what was given up, if there is room for it now."""
        self.spent = False
        if self.size and self.reserve is None:
            self.pool.free_all_blocks()
            try:
                self.reserve = self.pool.malloc(self.size)
            except self.cupy.cuda.memory.OutOfMemoryError:
                log.debug("no room for the reserve yet")
