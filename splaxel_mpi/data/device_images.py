"""Photographs in the memory of a GPU."""

from collections import deque

# Part of the device memory that is free at the start: Gaussians and the arrays of a view need the
# rest (train/budget.py). A sixteenth of 80 GB holds 800 photographs of 1920 x 1080; others come
# at 6 MB a view beside the kernels, a tenth of what the bus can bring in a millisecond.
SHARE = 16
STAGES = 4  # page-locked buffers that copies leave from


def node_budget(backend, node):
    """Bytes of device memory for photographs: a sixteenth of what is free where least is.
    Collective over the ranks of a node, node being their communicator."""
    free, _ = backend.xp.cuda.runtime.memGetInfo()
    return min(node.allgather(free)) // SHARE


class DeviceImages:
    """An ImageCache whose pixels are read on the device.

    cache: ImageCache of a node; backend: the CUDA backend; budget: bytes of device memory, the
    same for all ranks of the node, as the cache wants the same calls of all of them (see
    node_budget). Photographs stay there once they came, as long as there is room; the others come
    again each time, by copies that go on beside the kernels. Arrays that do not stay must be kept
    by the caller until the device has read them.
    """

    def __init__(self, cache, backend, budget):
        self.cache, self.xp, self.free = cache, backend.xp, budget
        self.kept = {}
        self.stream = self.xp.cuda.Stream(non_blocking=True)
        self.stages = deque()  # (page-locked buffer, event behind the last copy from it)

    def fetch(self, view_indices, upcoming=()):
        """{view index: (height, width, 3) uint8 on the device}, ready for the current stream;
        otherwise as ImageCache.fetch."""
        missing = [view for view in view_indices if view not in self.kept]
        ahead = [view for view in upcoming if view not in self.kept]
        out = {view: self.kept[view] for view in view_indices if view in self.kept}
        if missing or ahead:
            for view, pixels in self.cache.fetch(missing, ahead).items():
                out[view] = self._upload(pixels)
                if self.free >= pixels.nbytes:
                    self.free -= pixels.nbytes
                    self.kept[view] = out[view]
        return out

    def close(self):
        """Free the memory of the device; the cache is its owner's to close."""
        self.stream.synchronize()
        self.kept.clear()
        self.stages.clear()

    def _upload(self, pixels):
        """A copy of pixels on the device, which the current stream waits for."""
        stage, copied = self._stage(pixels.nbytes)
        source = stage[: pixels.nbytes].reshape(pixels.shape)
        source[...] = pixels
        current = self.xp.cuda.get_current_stream()
        with self.stream:  # memory from this stream's own pool: no kernel still uses it
            out = self.xp.empty(pixels.shape, pixels.dtype)
            out.set(source)
            copied.record()
        current.wait_event(copied)
        self.stages.append((stage, copied))
        return out

    def _stage(self, size):
        """A page-locked buffer of at least so many bytes that no copy reads any more, and its
        event."""
        import cupyx

        if len(self.stages) < STAGES:
            event = self.xp.cuda.Event(disable_timing=True)
            return cupyx.empty_pinned(size, "u1"), event
        stage, event = self.stages.popleft()
        event.synchronize()
        return (stage if stage.nbytes >= size else cupyx.empty_pinned(size, "u1")), event
