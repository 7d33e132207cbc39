"""Which array module an array belongs to; nothing here imports cupy."""

import sys

import numpy as np


def module_of(array):
    """numpy, or cupy for an array on a device."""
    cupy = sys.modules.get("cupy")
    return np if cupy is None else cupy.get_array_module(array)
