"""Copies between the host and the GPU through page-locked memory: the host does not wait for
them, and several arrays take one."""

import functools
from collections import deque

import numpy as np

ALIGNED = 16  # bytes: where arrays that travel together begin
STAGES = 16  # copies under way; more than a chunk of views has


class Reading:
    """Arrays of the device on their way to the host: one copy, behind what the current stream was
    given so far."""

    def __init__(self, arrays):
        import cupy
        import cupyx

        self.kinds = [(array.shape, array.dtype) for array in arrays]
        parts = [array.reshape(-1).view(np.uint8) for array in arrays if array.size]
        flat = parts[0] if len(parts) == 1 else cupy.concatenate(parts) if parts else None
        self.buffer = cupyx.empty_pinned(0 if flat is None else len(flat), np.uint8)
        self.done = cupy.cuda.Event(disable_timing=True)
        if flat is not None:
            flat.get(out=self.buffer, blocking=False)
        self.done.record()

    def take(self):
        """The arrays, once the copy is done."""
        self.done.synchronize()
        out, start = [], 0
        for shape, dtype in self.kinds:
            end = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            # copied: what is page-locked is to be used again soon
            out.append(self.buffer[start:end].copy().view(dtype).reshape(shape))
            start = end
        return out


@functools.lru_cache(maxsize=None)
def _stages(device):
    """(page-locked buffer, event behind the last copy from it) of a device, oldest first."""
    return deque()


def _stage(size):
    """A page-locked buffer of at least so many bytes that no copy reads any more, and an event."""
    import cupy
    import cupyx

    stages = _stages(cupy.cuda.runtime.getDevice())
    if len(stages) < STAGES:
        return cupyx.empty_pinned(size, np.uint8), cupy.cuda.Event(disable_timing=True), stages
    buffer, event = stages.popleft()
    event.synchronize()
    return (buffer if len(buffer) >= size else cupyx.empty_pinned(size, np.uint8)), event, stages


def upload(arrays):
    """Arrays of the device with the values of numpy arrays, each at a multiple of 16 bytes of one
    piece of memory."""
    import cupy

    arrays = [np.ascontiguousarray(array) for array in arrays]
    sizes = [-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays]
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    whole = cupy.empty(ends[-1] if ends else 0, np.uint8)
    starts = [end - size for end, size in zip(ends, sizes)]
    if whole.nbytes:
        buffer, copied, stages = _stage(whole.nbytes)
        for array, start in zip(arrays, starts):
            buffer[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        cupy.cuda.runtime.memcpyAsync(
            whole.data.ptr, buffer.ctypes.data, whole.nbytes,
            cupy.cuda.runtime.memcpyHostToDevice, cupy.cuda.get_current_stream().ptr,
        )
        copied.record()
        stages.append((buffer, copied))
    return [
        whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, start in zip(arrays, starts)
    ]
