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
    saturated: np.ndarray = None  # (held,) bool on the host: dark in front of the cell

    @property
    def own(self):
        """Number of own splats; those after them are ghosts."""
        return self.last - self.first


@dataclass
class ViewWork:
    """One view of a chunk on one rank, from projection to gradients."""

    camera: Camera
    splats: Splats  # this rank's visible Gaussians
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
    # of a view with masks, from the backward pass on:
    places: np.ndarray = None  # (layers,) int64 ascending: where in the visibility order each is
    residuals: np.ndarray = None  # (n, layers + 1) real on the host, see Backend.residuals


class Compositor:
    """A way to bring partial pixels together and gradients back.

    Created with (backend, exchange, layout, background, precision); every rank calls the same
    methods with the same views. compose and backward are generators (mpi.pipeline): they yield
    once an exchange has begun. Several chunks may be between the two, so what belongs to one is
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

    def backward(self, works, composed, gradients):
        """From dL/dC to the partials.

        gradients: per view (n, 3, 256) on composed.tiles. Returns, per view, the list over
        local cells of (held, 4, 256) dL/d(C_m, T_m).

        Where a view has masks it also fills saturated of its parts: whether the transmittance in
        front of the cell is below masks.threshold in all pixels of a tile; and places and
        residuals of what this rank composed. Whoever composes a tile knows both.
        """
        raise NotImplementedError
