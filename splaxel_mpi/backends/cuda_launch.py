"""Kernel launches, and recordings of them that are repeated without most of the host's work.

A launch through CuPy costs the host several microseconds, twice that with the arrays it needs: a
view of a small scene takes the GPU no longer. A Recording keeps the launches of a view with their
arguments, and repeats them on the same arrays.
"""

from collections import defaultdict

import numpy as np

_recording = None


def run(function, grid, threads, arguments, shared=0):
    """Start a kernel on the current stream.

    function: of cuda_module.kernel; grid: blocks, (x,) or (x, y); threads: of a block;
    arguments: cupy arrays, numpy scalars, structures as arrays of one element, ints (64 bits) or
    None (null); shared: bytes of dynamic shared memory.
    """
    function(grid, (threads,), arguments, shared_mem=shared)
    if _recording is not None:
        _recording.add_kernel(function, grid, threads, arguments, shared)


def fill(array, byte):
    """Set every byte of a cupy array."""
    array.data.memset_async(byte, array.nbytes)
    if _recording is not None:
        _recording.add_fill(array, byte)


def zeros(shape, dtype):
    """A zeroed cupy array."""
    import cupy

    array = cupy.empty(shape, dtype)
    fill(array, 0)
    return array


def note_call(function, *arguments):
    """Have a recording repeat a call that has just been made, None: one that cannot be."""
    if _recording is not None:
        _recording.add_call(function, arguments)


class Recording:
    """The launches within a with block; replay repeats them on the stream they were made on.

    Arrays that the launches use live as long as the recording, so only one replay may be under
    way where their contents matter. All launches must go through this module.
    """

    def __init__(self):
        import cupy

        self._driver, self._runtime = cupy.cuda.driver, cupy.cuda.runtime
        self._stream = cupy.cuda.get_current_stream().ptr
        self._calls, self._kept = [], []
        self._places = defaultdict(list)  # identity of an argument -> its copies
        self.usable = True

    def __enter__(self):
        global _recording
        if _recording is not None:
            raise RuntimeError("a recording is under way")
        _recording = self
        return self

    def __exit__(self, *_):
        global _recording
        _recording = None

    def places(self, argument):
        """Copies of an argument that replays pass, (bytes,) uint8 each, to be overwritten; an
        array of the device is passed as its address."""
        return self._places[id(argument)]

    def structures(self, size):
        """Copies of the structures of so many bytes, as places gives them."""
        return [copy for copies in self._places.values() for copy in copies if len(copy) == size]

    def replay(self):
        """Launch everything again."""
        for function, arguments in self._calls:
            function(*arguments)

    def add_kernel(self, function, grid, threads, arguments, shared):
        """Keep a launch, see run."""
        copies = [_copy(argument) for argument in arguments]
        for argument, copy in zip(arguments, copies):
            self._places[id(argument)].append(copy)
        table = np.array([copy.ctypes.data for copy in copies], np.uint64)
        self._kept += [arguments, copies, table]
        self._calls.append((self._driver.launchKernel, (
            function.kernel.ptr, *grid, *[1] * (3 - len(grid)), threads, 1, 1, shared,
            self._stream, table.ctypes.data, 0,
        )))

    def add_fill(self, array, byte):
        """Keep a fill, see fill."""
        self._kept.append(array)
        self._calls.append(
            (self._runtime.memsetAsync, (array.data.ptr, byte, array.nbytes, self._stream)))

    def add_call(self, function, arguments):
        """Keep a call, see note_call."""
        self.usable = self.usable and function is not None
        self._calls.append((function, arguments))


def _copy(argument):
    """The bytes that a kernel gets for an argument, (bytes,) uint8."""
    if argument is None:
        value = np.zeros(1, np.uint64)
    elif isinstance(argument, (np.ndarray, np.generic)):
        value = np.array(argument).reshape(1)
    elif isinstance(argument, int):
        value = np.array([argument], np.int64)
    else:
        value = np.array([argument.data.ptr], np.uint64)
    return value.view(np.uint8)
