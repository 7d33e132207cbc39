"""How many pixels of training views each reduction leaves (design section 7, paper 4.3)."""

from dataclasses import dataclass

import numpy as np

from . import regions
from .tiles import areas

# Views of a report whose predicted regions are looked at: 0.1 ms a view, so that it costs less
# than a percent of what training them took.
MOST_VIEWS = 256


@dataclass
class Visit:
    """What this rank's cells drew in one view."""

    index: int  # of the view
    size: int  # pixels of the image
    occupied: np.ndarray  # (own cells,) float64: pixels of tiles that hold anything, masked or not
    live: np.ndarray  # (own cells,) float64: of those that were drawn


class ViewCounts:
    """Counts of this rank's cells over the training views since the last take.

    views: list of data.base.View; layout: function without arguments that gives the present
    partition.layout.Layout; boxes: partition.content.ContentBoxes of its cells; near: view depth
    of the near plane.
    """

    def __init__(self, views, layout, boxes, near):
        self.views, self.layout, self.boxes, self.near = views, layout, boxes, near
        self.tree, self.tile_areas = None, {}
        self._clear()

    def _clear(self):
        self.visits, self.drew = [], []
        self.active = self.waits = 0

    def add(self, view, work):
        """A view has been drawn. view: data.base.View; work: compose.base.ViewWork."""
        layout, camera = self.layout(), work.camera
        if layout.tree.dealt:
            return  # no cells: every rank draws a strip of every view
        if layout.tree is not self.tree:
            self.tree = layout.tree
            self._clear()
        size = camera.width, camera.height
        if size not in self.tile_areas:
            self.tile_areas[size] = areas(camera).astype(np.float64)  # adds up fastest
        pixels = self.tile_areas[size]
        live = np.array([pixels.take(part.held).sum() for part in work.parts])
        hidden = np.zeros_like(live)
        if work.masks is not None:
            hidden += [pixels @ work.masks.masked[part.cell] for part in work.parts]
        self.visits.append(Visit(view.index, camera.width * camera.height, live + hidden, live))
        self.drew.append(live.any())

    def end_batch(self, chunks):
        """The views since the last call were drawn in chunks of so many."""
        start = 0
        for size in chunks:
            part = self.drew[start : start + size]
            self.active, self.waits = self.active + any(part), self.waits + bool(part)
            start += size
        self.drew = []

    def take(self):
        """Sums since the last call by name, for this rank's cells; they add up over ranks.

        Pixels of views x cells: possible; visible: in the picture of the cell's content box;
        occupied: in tiles that hold anything; unsaturated: in those drawn, after masks. Each is
        at most the one before. participants: (view, cell) pairs that drew; active: chunks in
        which this rank drew anything. Of at most MOST_VIEWS views, spread evenly.
        """
        places = np.linspace(0, len(self.visits) - 1, min(MOST_VIEWS, len(self.visits)))
        visits = [self.visits[place] for place in places.astype(int)]
        out = dict(views=len(visits), waits=self.waits, active=self.active)
        names = "possible", "visible", "occupied", "unsaturated", "participants"
        out.update(dict.fromkeys(names, 0.0))
        cells = np.array(self.layout().local, np.int64)
        if visits and len(cells):
            sizes = np.array([visit.size for visit in visits], np.float64)[:, None]
            occupied = np.array([visit.occupied for visit in visits])
            live = np.array([visit.live for visit in visits])
            # Gaussians may have left their box a little, until boxes are made anew; and a picture
            # is counted with a margin around the image
            predicted = np.clip(self._predicted(visits, cells), occupied, sizes)
            sums = len(cells) * sizes, predicted, occupied, live, live > 0
            out.update(zip(names, (float(array.sum()) for array in sums)))
        self._clear()
        return out

    def _predicted(self, visits, cells):
        """Pixels of the pictures of own cells' content boxes, (visits, own cells). A single cell
        takes part everywhere, and its box is not kept up to date."""
        if self.layout().cells == 1:
            return np.full((len(visits), 1), np.inf)
        out = np.zeros((len(visits), len(cells)))
        held = np.isin(cells, self.boxes.held())
        cameras = [self.views[visit.index].camera for visit in visits]
        out[:, held] = regions.areas(self.boxes.boxes[cells[held]], cameras, self.near)
        return out


def per_view(sums, ranks):
    """Figures of a training view by their names in the metrics.

    sums: what ViewCounts.take gives, added up over so many ranks. Empty where no view was counted.
    """
    views = sums["views"] / ranks  # every rank has counted all
    if not views:
        return {}
    names = "possible", "visible", "occupied", "unsaturated"
    return {
        **{f"pixels/{name}": sums[name] / views for name in names},
        "participants": sums["participants"] / views,
        "utilisation": sums["active"] / max(sums["waits"], 1),
    }
