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

    def backward(self, works, composed, gradient):
        """See Compositor.backward."""
        layers, tables = composed[0].state, composed[0].state.tables
        # what arrived, rows behind own ones, is for others to back-propagate
        rows = self.backend.compose_backward(
            layers.pool, tables.slots, self.background, gradient, tables.slots, tables.own
        )
        self._look(works, layers)
        yield from ()  # nothing is exchanged
        return tables.split(rows)
