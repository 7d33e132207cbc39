"""The rendering stages where projected Gaussians travel and ranks draw strips of the image."""

import time
from contextlib import contextmanager

import numpy as np

from ..compose.gaussian import GaussianExchange
from .render import Renderer


class StripRenderer(Renderer):
    """Renderer of strategy gaussian: splats come to the tiles instead of partial pixels.

    settings: the exchange section; the rest as for Renderer.
    """

    def __init__(self, backend, exchange, layout, settings, background, near, stop):
        measured = settings.strips == "measured"
        compositor = GaussianExchange(
            backend, exchange, layout, background, settings.drop, measured
        )
        super().__init__(backend, exchange, layout, compositor, near, stop)
        self.ghosts, self.measured = compositor, measured

    def _rasterize(self, works):
        """See Renderer."""
        for work in works:
            self._rasterize_strip(work, work.parts[0])
        yield from ()  # nothing to wait for

    def _rasterize_strip(self, work, part):
        """Tile lists and pixels of this rank's strip; no cell limits what it draws."""
        mask = None
        if self.layout.ranks > 1:
            mask = self.backend.zeros(work.camera.tile_count, np.uint8)
            mask[part.start : part.stop] = 1
        with self._clock(part):
            with self.timers("sort"):
                part.lists = self.backend.tile_lists(part.splats, work.camera, None, mask)
                part.held = self.backend.to_host(part.lists.tiles)
            with self.timers("rasterize"):
                part.partial = self.backend.rasterize(
                    part.splats, part.lists, work.camera, self.stop
                )

    def _rasterize_backward(self, works, seeds):
        """See Renderer; strip by strip, for their times."""
        out = []
        for work, (seed,) in zip(works, seeds):
            part, = work.parts
            with self._clock(part):
                out.append([self.backend.rasterize_backward(
                    part.splats, part.lists, part.partial, seed, work.camera, self.stop,
                    self.absolute,
                )])
        return out

    @contextmanager
    def _clock(self, part):
        """Add the time of a with block to part.seconds, where strips follow the time."""
        if not self.measured:
            yield
            return
        start = self._now()
        yield
        part.seconds += self._now() - start

    def _now(self):
        """Seconds, once the device has done what it was given."""
        if self.backend.xp is not np:
            self.backend.xp.cuda.get_current_stream().synchronize()
        return time.perf_counter()
