"""Floating-point numbers as integers of the same order, for exact quantiles by bins."""

import numpy as np

from ..arrays import module_of

_TYPES = {
    np.dtype(np.float32): (np.uint32, np.int32),
    np.dtype(np.float64): (np.uint64, np.int64),
}


def to_keys(values):
    """Unsigned integers ordered as the finite values are; -0.0 counts as 0.0.

    values: (n,) float32 or float64, of numpy or cupy. Returns (n,) uint32 or uint64.
    Neighbouring values have neighbouring keys.
    """
    xp = module_of(values)
    values = xp.ascontiguousarray(values) + 0.0  # -0.0 + 0.0 = 0.0
    unsigned, signed = _TYPES[values.dtype]
    bits = values.view(unsigned)
    top = unsigned(1 << (8 * values.itemsize - 1))
    return xp.where(values.view(signed) < 0, ~bits, bits | top)


def from_key(key, dtype):
    """The float of a key (a Python integer), exactly, as a Python float."""
    unsigned, _ = _TYPES[np.dtype(dtype)]
    top = 1 << (8 * np.dtype(dtype).itemsize - 1)
    bits = key ^ top if key & top else ~key & (2 * top - 1)
    return float(np.array([bits], unsigned).view(dtype)[0])
