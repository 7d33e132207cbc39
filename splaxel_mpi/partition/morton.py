"""The order of Gaussians inside a cell: along a Morton curve, so that neighbours in space are
neighbours in memory (G. M. Morton 1966)."""

import numpy as np

BITS = 21  # a coordinate: three of them fill 63 bits
LARGEST = (1 << BITS) - 1
# (shift, mask) that spread 21 bits so that two zeros stand between neighbours
SPREAD = (
    (32, 0x1F00000000FFFF),
    (16, 0x1F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)
CHUNK = 1 << 20  # rows at a time: a code takes ten times its size to compute
KIND = "migration"  # under which an exchange counts the traffic


def frame(means, exchange, xp=np):
    """(low, size), (3,) float64 each: bounds of the finite positions of all ranks. Collective.

    means: (n, 3), of this rank. The same on every rank and for every rank count.
    """
    ends = np.full((2, 3), np.inf)
    for start in range(0, len(means), CHUNK):
        part = means[start : start + CHUNK].astype(np.float64)
        finite = xp.isfinite(part)
        for row, sign in enumerate((1.0, -1.0)):
            least = xp.where(finite, sign * part, np.inf).min(axis=0)
            ends[row] = np.minimum(ends[row], least.tolist())
    low, high = exchange.allreduce(KIND, ends, "min")
    low, high = np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), -high, 0.0)
    return low, np.maximum(high - low, 0.0)


def codes(means, low, size, xp=np):
    """Places along the curve, (n,) uint64 below 2^63.

    means: (n, 3) float32 or float64; low, size: of frame. Positions outside count as on its
    border, not-a-number as at its start.
    """
    low = xp.asarray(low)
    scale = xp.asarray(np.divide(LARGEST, size, out=np.zeros(3), where=size > 0))
    out = xp.empty(len(means), np.uint64)
    for start in range(0, len(means), CHUNK):
        part = (means[start : start + CHUNK].astype(np.float64) - low) * scale
        part = xp.where(part > 0, xp.minimum(part, float(LARGEST)), 0.0).astype(np.uint64)
        code = _spread(part[:, 0])
        for axis in (1, 2):
            code |= _spread(part[:, axis]) << np.uint64(axis)
        out[start : start + CHUNK] = code
    return out


def _spread(values):
    """21 bits of each value, three places apart."""
    for shift, mask in SPREAD:
        values = (values | (values << np.uint64(shift))) & np.uint64(mask)
    return values
