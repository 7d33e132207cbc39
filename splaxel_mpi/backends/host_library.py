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


def pointer(array, dtype=None):
    """Address of a C-contiguous numpy array, None for None.

    Raises TypeError when the type or layout is not what the kernel takes.
    """
    if array is None:
        return None
    if dtype is not None and array.dtype != dtype:
        raise TypeError(f"kernel takes {np.dtype(dtype)}, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise TypeError("kernel takes C-contiguous arrays")
    return ctypes.c_void_p(array.ctypes.data)


def call(name, *arguments):
    """Call kernel `name`. Arguments: numpy arrays, None, ints (as int64) and floats (as
    double). Returns the kernel's int64 result."""
    function = getattr(library(), name)
    function.restype = ctypes.c_int64
    converted = []
    for value in arguments:
        if value is None or isinstance(value, np.ndarray):
            converted.append(pointer(value))
        elif isinstance(value, (int, np.integer)):
            converted.append(ctypes.c_int64(int(value)))
        else:
            converted.append(ctypes.c_double(float(value)))
    return function(*converted)


def suffix(real):
    """Name ending of the kernels for a float type: f32 or f64."""
    return {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}[np.dtype(real)]
