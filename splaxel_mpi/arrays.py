"""Which array module an array belongs to; nothing here imports cupy."""

import sys

import numpy as np


def module_of(array):
    """numpy, or cupy for an array on a device."""
    cupy = sys.modules.get("cupy")
    return np if cupy is None else cupy.get_array_module(array)


def release(xp):
    """Give memory that CuPy keeps for later arrays back to the device; xp: array module."""
    if xp is not np:
        xp.get_default_memory_pool().free_all_blocks()
