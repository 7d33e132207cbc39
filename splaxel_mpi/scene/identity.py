"""Draws that depend on a Gaussian's id, never on the rank that makes them (design section 8).

Counter-based: every draw is a hash of (id, image count, k, stream), so any rank count, any
order of the rows and any restart gives the same value. Initial ids are 0 to N - 1 in the order
of the input points; a child's id is ``child_ids`` of its parent's.
"""

import numpy as np

# Weyl step and multipliers of the splitmix64 generator (Steele, Lea, Flood, OOPSLA 2014)
STEP = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
CHILD_STREAM = 0x6368696C64  # of child_ids; callers number their own streams from 0
# numbers k of draws under a run's seed; 1 and 2 are the halves of a split Gaussian
NOISE, PLACE, APART = 3, 4, 5
BITS = 53  # of a double's significand
WORD = (1 << 64) - 1


def _mix(value):
    """Finalizer of splitmix64, a bijection of 64-bit words in which every bit depends on all."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    value = (value ^ (value >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return value ^ (value >> np.uint64(31))


def _words(value, xp):
    """Integers as a 1D array of 64-bit words modulo 2^64 (numpy wraps arrays in silence)."""
    if isinstance(value, int):
        return xp.full(1, value & WORD, np.uint64)
    return xp.atleast_1d(xp.asarray(value)).astype(np.uint64)


def hash64(ids, images, k, stream, xp=np):
    """64 hashed bits for every id: (n,) uint64.

    ids: (n,) int64; images: images trained so far, k: number of the draw, integers or (n,);
    stream: integer that keeps the uses apart (it may hold a seed).
    """
    value = _words(ids, xp)
    for part in (images, k, stream):
        value = _mix(value + np.uint64(STEP)) ^ _words(part, xp)
    return _mix(value + np.uint64(STEP))


def uniform(ids, images, k, stream, xp=np):
    """Uniform draws in [0, 1) with 53 bits: (n,) float64. Parameters as hash64."""
    bits = hash64(ids, images, k, stream, xp) >> np.uint64(64 - BITS)
    return bits.astype(np.float64) * 2.0**-BITS


def normal(ids, images, k, stream, xp=np):
    """Three independent standard normal draws for every id: (n, 3) float64 (Box and Muller
    1958). Parameters as hash64."""
    seed = hash64(ids, images, k, stream, xp)
    draws = []
    for lane in range(4):  # two pairs; of the second only the cosine is used
        word = _mix(seed + np.uint64((lane + 1) * STEP & WORD)) >> np.uint64(64 - BITS)
        draws.append((word.astype(np.float64) + 0.5) * 2.0**-BITS)  # in (0, 1): the log is finite
    radius = [xp.sqrt(-2.0 * xp.log(draws[lane])) for lane in (0, 2)]
    angle = [2.0 * np.pi * draws[lane] for lane in (1, 3)]
    columns = [radius[0] * xp.cos(angle[0]), radius[0] * xp.sin(angle[0])]
    return xp.stack(columns + [radius[1] * xp.cos(angle[1])], axis=1)


def child_ids(ids, images, k, xp=np):
    """Id of the k-th Gaussian that each parent bears at an image count: (n,) int64, 63 bits.

    A hash, so that no rank has to ask another. Among m children and N initial ids two agree
    with a probability of about m (m + 2 N) / 2^64: 2e-5 for ten million children, 2e-3 for a
    hundred million of each.
    """
    return (hash64(ids, images, k, CHILD_STREAM, xp) >> np.uint64(1)).astype(np.int64)
