"""What cells do with Gaussians that reach over their faces (design section 5, paper section 8.1).

A pair of a Gaussian and a pixel lies in the cell whose ray interval at that pixel holds the
Gaussian's view depth, which need not be the cell that stores it.
"""

import numpy as np


class Exact:
    """Every cell draws exactly the pairs that lie in it: its neighbours' come as ghosts."""

    name = "exact"
    ghosts = True

    def __init__(self, boxes=None, near=None):
        pass

    def limits(self, layout, camera):
        """What of a view the tile lists of each local cell hold.

        layout: partition.layout.Layout. Returns one (box, covered) for each local cell, see
        Backend.tile_lists; covered is on the host.
        """
        if layout.cells == 1:
            return [(None, None)] * len(layout.local)
        return [(layout.boxes[cell], None) for cell in layout.local]


class Filter(Exact):
    """The paper's: a pair outside its own cell is dropped in tiles that the region of any other
    cell covers, by geometry alone, and kept elsewhere."""

    name = "filter"
    ghosts = False

    def __init__(self, boxes, near):
        """boxes: partition.content.ContentBoxes, kept fresh by their owner; near: view depth of
        the near plane."""
        self.boxes, self.near = boxes, near

    def limits(self, layout, camera):
        """See Exact.limits."""
        if layout.cells == 1:
            return super().limits(layout, camera)
        cells, tiles = self.boxes.regions(camera, self.near)
        regions = dict(zip(cells.tolist(), tiles))
        count, nothing = tiles.sum(axis=0), np.zeros(camera.tile_count, bool)
        return [
            (layout.boxes[cell], (count > regions.get(cell, nothing)).astype(np.uint8))
            for cell in layout.local
        ]


class Unbounded(Exact):
    """Cells draw all that they store, out of order at their faces."""

    name = "none"
    ghosts = False

    def limits(self, layout, camera):
        """See Exact.limits."""
        return [(None, None)] * len(layout.local)


BOUNDARIES = {choice.name: choice for choice in (Exact, Filter, Unbounded)}


def make_boundary(name, boxes, near):
    """The boundary of a setting."""
    return BOUNDARIES[name](boxes, near)
