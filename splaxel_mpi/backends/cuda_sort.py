"""Stable sorts of (key, int32) pairs on the GPU.

CCCL's radix sort (package cuda-cccl) sorts only the bits that differ and reads its key and value
types at their own width; without that package CuPy's argsort does the same at about twice the
time.
"""

import functools
import logging

from .cuda_launch import note_call

logger = logging.getLogger(__name__)


class RadixSort:
    """CCCL's radix sort for one key type, built once and kept with what storage it needs."""

    def __init__(self, library, keys, values):
        self._sort = library.make_radix_sort(
            d_in_keys=keys, d_out_keys=keys, d_in_values=values, d_out_values=values,
            order=library.SortOrder.ASCENDING,
        )
        self._bytes = self._sized = 0

    def storage(self, keys, values, count):
        """Bytes of scratch memory that sorting up to count pairs takes.

        The need grows with the count, so that the library is asked for larger counts only; were
        it ever too little, the sort itself would refuse it.
        """
        if count > self._sized:
            self._bytes = self._call(None, keys, values, keys, values, count, None)
            self._sized = count
        return self._bytes

    def __call__(self, keys, values, count, bits):
        import cupy

        scratch = cupy.empty(self.storage(keys, values, count), cupy.uint8)
        result = cupy.empty(count, keys.dtype), cupy.empty(count, values.dtype)
        arguments = scratch, keys, values, *result, count, bits
        self._call(*arguments)
        note_call(self._call, *arguments)
        return result

    def _call(self, scratch, keys, values, keys_out, values_out, count, bits):
        import cupy

        return self._sort(
            temp_storage=scratch, d_in_keys=keys, d_out_keys=keys_out, d_in_values=values,
            d_out_values=values_out, num_items=count, begin_bit=0, end_bit=bits,
            stream=cupy.cuda.get_current_stream(),
        )


class ArgSort:
    """The same by CuPy alone."""

    def storage(self, keys, values, count):
        """CuPy's argsort takes its scratch memory itself."""
        return 0

    def __call__(self, keys, values, count, bits):
        import cupy

        note_call(None)  # CuPy's own kernels are not recorded
        order = cupy.argsort(keys[:count], kind="stable")
        return keys[order], values[order]


@functools.lru_cache(maxsize=None)
def _sorter(device, key_type, value_type):
    import cupy

    try:
        import cuda.compute

        return RadixSort(cuda.compute, cupy.empty(1, key_type), cupy.empty(1, value_type))
    except (ImportError, OSError, RuntimeError) as error:  # not there, or lacks its own libraries
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        logger.info("cuda-cccl is not usable (%s): CuPy sorts tile lists, more slowly", reason)
        return ArgSort()


def sorter(keys, values):
    """The sort for arrays like these on the current device."""
    return _sorter(keys.device.id, keys.dtype, values.dtype)


def sort_pairs(keys, values, count=None, bits=None):
    """Pairs in ascending order of key, equal keys in their old order.

    keys: (capacity,) uint16, uint32 or int64; values: (capacity,) int32; count: pairs to sort,
    the first ones (default: all); bits: lowest bits of the keys that may differ (default: all).
    Returns new arrays (keys, values) of count each. Runs on the current stream.
    """
    count = len(keys) if count is None else count
    if count == 0:
        return keys[:0].copy(), values[:0].copy()
    return sorter(keys, values)(keys, values, count, bits)
