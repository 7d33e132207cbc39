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


def address(array):
    """Where a C-contiguous numpy array lies. Raises TypeError for another layout."""
    try:  # takes a third of the time that asking the array takes
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # of read-only and empty arrays, too
        if not array.flags.c_contiguous:
            raise TypeError("kernel takes C-contiguous arrays") from None
        return array.ctypes.data


def converted(value):
    """What ctypes passes for an argument of ``call``."""
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(address(value))
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
