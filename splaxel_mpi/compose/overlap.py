"""Strategy overlap: every participant gets the others' partial pixels where it supervises.

Paper section 4.3: partial pixels travel as flat streams over the region that two ranks share,
here widened by what the gradient of SSIM reaches. Each rank then composites, takes the loss and
has all it needs for its own gradients; nothing returns. Of F pixels that d ranks hold, F d (d - 1)
travel.
"""

from .pixels import PixelCompositor


class Overlap(PixelCompositor):
    """Exchange partial pixels tile by tile; compose on every rank that supervises."""

    name = "overlap"

    def backward(self, works, composed, gradients):
        """See Compositor.backward."""
        layers, streams = composed[0].state, composed[0].state.streams
        wanted = layers.slots
        if streams.rows > streams.own:  # what arrived is for others to back-propagate
            wanted = self.backend.xp.where(wanted < streams.own, wanted, wanted.dtype.type(-1))
        rows = self.backend.compose_backward(
            layers.pool, layers.slots, self.background, self._gradient(gradients), wanted,
            streams.own,
        )
        yield from self._judge(works, composed)
        return streams.split(rows)
