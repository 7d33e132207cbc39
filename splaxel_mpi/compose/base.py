"""Contract of an exchange strategy, and what a rank knows of the views of a chunk."""

from dataclasses import dataclass, field

import numpy as np

from ..backends.base import Partial, Splats, TileLists
from ..scene.camera import Camera
from ..visibility.demand import training


@dataclass
class CellPart:
    """One (view, cell) on the rank that owns the cell."""

    cell: int
    first: int  # own splats are rows first to last of the view's splats
    last: int
    splats: Splats  # own splats, then ghosts
    lists: TileLists = None
    partial: Partial = None
    held: np.ndarray = None  # (held,) int32 on the host, partial.tiles
    # of a view with masks, from Compositor.judge on, (held,) each on the host:
    saturated: np.ndarray = None  # bool: dark in front of the cell
    through: np.ndarray = None  # real, largest transmittance of the cell

    @property
    def own(self):
        """Number of own splats; those after them are ghosts."""
        return self.last - self.first


@dataclass
class ViewWork:
    """One view of a chunk on one rank, from projection to gradients."""

    camera: Camera
    splats: Splats = None  # this rank's visible Gaussians
    parts: list = field(default_factory=list)  # CellPart of each local cell
    gradient: np.ndarray = None  # (len(splats), 9), dL/d(splat) summed over all cells
    masks: object = None  # visibility.saturation.ViewMasks, None: all tiles are live
    routed: object = None  # who brought the chunk's splats to other ranks, and takes gradients back


@dataclass
class Composed:
    """The pixels of one view that this rank composed.

    They are right in the supervised tiles and within visibility.tiles.SSIM_REACH of them.
    """

    camera: Camera
    tiles: np.ndarray  # (n,) int32 on the host: tiles composed and those of the halo
    image: np.ndarray  # (n, 3, 256) real
    supervised: np.ndarray  # (tile_count,) bool: gradients are wanted here
    counted: np.ndarray  # (tile_count,) bool: this rank adds these tiles to the sums
    state: object = None  # the strategy's own: what its backward pass needs
    placed: np.ndarray = None  # tiles on the device, where a strategy has brought them there
    # of a view with masks, from Compositor.judge on:
    places: np.ndarray = None  # (layers,) int32 ascending: where in the visibility order each is
    residuals: np.ndarray = None  # (n, layers + 1) real on the host, see Backend.residuals


class Compositor:
    """A way to bring partial pixels together and gradients back.

    Created with (backend, exchange, layout, background, precision); every rank calls the same
    methods with the same views. compose, backward and judge are generators (mpi.pipeline): they
    yield once an exchange has begun. Several chunks may be between them, so what belongs to one is
    in its works and in what compose returns.
    """

    name = ""
    training = staticmethod(training)  # rule of training views, see compose

    def start_batch(self):
        """The next chunk begins a batch."""

    def compose(self, works, rules):
        """Exchange partial pixels of a chunk and composite.

        works: list of ViewWork with partials; rules: for each view a function (held by rank,
        camera) -> visibility.demand.Demand: ``training``, or one like whole_image. Returns a
        list of Composed, one a view.
        """
        raise NotImplementedError

    def backward(self, works, composed, gradient):
        """From dL/dC to the partials.

        gradient: (n, 3, 256) on the composed tiles of all views, view after view. Returns, per
        view, the list over local cells of (held, 4, 256) dL/d(C_m, T_m).
        """
        raise NotImplementedError

    def judge(self, works, composed):
        """Of views with masks, after backward: fill saturated of their parts, whether the
        transmittance in front of the cell is below masks.threshold in all pixels of a tile, and
        through; and places and residuals of what this rank composed. Whoever composes a tile
        knows what is in front of a cell. Collective. What it waits for was begun in backward, so
        that a device may have other work by now.
        """
        yield from ()
