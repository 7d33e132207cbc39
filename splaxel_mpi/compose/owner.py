"""Strategy owner: each part of a view has one rank that composes and supervises it.

The others send it their partial pixels and get dL/dC_m and dL/dT_m back (design section 6). Of F
pixels that d ranks hold, 2 F (d - 1) travel, and strips of final colour along the borders between
owners, for SSIM. The loss is computed once.
"""

from ..visibility.demand import Owned
from .pixels import PixelCompositor


class Owner(PixelCompositor):
    """Exchange partial pixels tile by tile; compose at the owner, return gradients.

    Composed.tiles hold the supervised tiles and those beside them; of the latter only the strips
    are right that SSIM of the supervised ones reaches.
    """

    name = "owner"
    returns = True

    def __init__(self, backend, exchange, layout, background, precision="float32"):
        super().__init__(backend, exchange, layout, background, precision)
        self.training = Owned(layout.ranks)

    def start_batch(self):
        """See Compositor.start_batch."""
        self.training.start_batch()

    def backward(self, works, composed, gradient):
        """See Compositor.backward."""
        layers, tables = composed[0].state, composed[0].state.tables
        rows = self.backend.compose_backward(
            layers.pool, tables.slots, self.background, gradient, tables.slots, tables.rows
        )
        self._look(works, layers)
        yield from layers.streams.give_back(rows)
        return tables.split(rows)
