"""Strategy overlap without any reduction: every cell holds and sends every tile (paper 5.4 i)."""

from dataclasses import replace

import numpy as np

from ...compose.overlap import Overlap

PLANES, PIXELS = 4, 256


class WholeImages(Overlap):
    """Fills tiles in which a cell draws nothing with black that lets all light through, and
    sends them like the others. The image and its gradients stay the same."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.drawn = {}  # id of a part -> what it had; several chunks may be under way

    def compose(self, works, rules):
        """See Compositor.compose."""
        for work in works:
            for part in work.parts:
                self.drawn[id(part)] = self._fill(part, work.camera.tile_count)
        return (yield from super().compose(works, rules))

    def backward(self, works, composed, gradients):
        """See Compositor.backward."""
        rows = yield from super().backward(works, composed, gradients)
        return [[self._restore(*one) for one in zip(work.parts, seeds)]
                for work, seeds in zip(works, rows)]

    def _fill(self, part, tile_count):
        """Give a part all tiles; what it had: (lists, partial)."""
        xp, before = self.backend.xp, (part.lists, part.partial)
        pixels = xp.zeros((tile_count, PLANES, PIXELS), part.partial.pixels.dtype)
        pixels[:, 3] = 1
        pixels[part.partial.tiles] = part.partial.pixels
        part.held = np.arange(tile_count, dtype=np.int32)
        tiles = self.backend.to_device(part.held)
        part.lists = replace(part.lists, tiles=tiles)
        part.partial = replace(part.partial, tiles=tiles, pixels=pixels)
        return before

    def _restore(self, part, seeds):
        """Give a part back what it had; the gradients of its own tiles."""
        part.lists, part.partial = self.drawn.pop(id(part))
        part.held = part.lists.held
        return seeds[part.lists.tiles]
