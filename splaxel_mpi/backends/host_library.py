"""The compiled host kernels, called through ctypes (which releases the interpreter lock)."""

import ctypes
import functools
import importlib.util

import numpy as np


@functools.lru_cache(maxsize=None)
def library():
    """The extension splaxel_mpi._host as a ctypes library.

    Raises RuntimeError when the package was installed without it.
    """
    spec = importlib.util.find_spec("splaxel_mpi._host")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "the compiled part splaxel_mpi._host is missing: install the package again "
            "(pip install .) with a C++17 compiler"
        )
    return ctypes.CDLL(spec.origin)


@functools.lru_cache(maxsize=None)
def function(name):
    """The kernel `name`, which returns int64."""
    found = getattr(library(), name)
    found.restype = ctypes.c_int64
    return found


def pointer(array):
    """A C-contiguous numpy array as an argument. Raises TypeError for another layout."""
    if not array.flags.c_contiguous:
        raise TypeError("kernel takes C-contiguous arrays")
    try:  # much faster than to ask the array
        return ctypes.byref(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # of read-only and empty ones
        return ctypes.c_void_p(array.ctypes.data)


def converted(value):
    """What ctypes passes for an argument of ``call``."""
    if isinstance(value, np.ndarray):
        return pointer(value)
    if value is None:
        return None
    if isinstance(value, (int, np.integer)):
        return ctypes.c_int64(int(value))
    return ctypes.c_double(float(value))


def call(name, *arguments):
    """Call kernel `name`. Arguments: numpy arrays, None, ints (as int64) and floats (as
    double). Returns the kernel's int64 result."""
    return function(name)(*map(converted, arguments))


def suffix(real):
    """Name ending of the kernels for a float type: f32 or f64."""
    return {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}[np.dtype(real)]
