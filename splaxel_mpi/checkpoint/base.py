"""What a checkpoint holds, and the contract of the ways to write one."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

# Raised when a data set changes its meaning, comes or goes; a file of another version is refused,
# and upgrade.py brings older ones up to date. 1: no seal, densify/seen_count may be missing.
FORMAT_VERSION = 2


@dataclass
class Checkpoint:
    """One rank's part of a training state.

    The first block has a row for each Gaussian that the rank owns, in the rank's order. The
    second is the same on every rank. ``extra`` holds arrays of any length that mean something
    to this rank of this rank count only (saturation masks). What ``save`` fills in itself
    and ``load`` gives back comes last.
    """

    gaussians: Gaussians
    first: dict  # group -> (n, width), Adam's first moments, float type of the parameters
    second: dict  # group -> (n, width), Adam's second moments
    gradient_norm: np.ndarray  # (n,) float, sum over images of screen gradient norms
    gradient_count: np.ndarray  # (n,) int, images that the sum holds
    cell: np.ndarray  # (n,) int32, cell of the tree that owns the Gaussian

    tree: Tree
    images_seen: int
    step: int
    batch: int  # views a step
    order: dict  # name -> int or float: where in its epoch the view order stands
    seed: int
    origin: np.ndarray  # (3,) float64, world frame of training = input frame - origin
    extent: float  # scene extent, world units
    background: np.ndarray  # (3,) float64, RGB in 0..1
    sh_degree: int  # bands in use, 0..3
    random_state: np.ndarray  # (k,) int64 or uint64, of generators not keyed by id
    config: str  # effective configuration, YAML
    dataset: str  # content id of the data set
    config_chain: list = field(default_factory=list)  # configurations of earlier runs, oldest first
    versions: dict = field(default_factory=dict)  # software name -> version text

    schedule: dict = field(default_factory=dict)  # name -> int64 array, views arranged ahead

    seen_count: np.ndarray = None  # (n,) int32, views before those in gradient_count; None: 0

    extra: dict = field(default_factory=dict)  # name -> (k, ...) array, this rank's only

    created: str = ""  # UTC, ISO 8601
    ranks: int = 0  # rank count that wrote the file
    rank_offsets: np.ndarray = None  # (ranks + 1,) int64, first row of each writing rank
    cell_offsets: np.ndarray = None  # (cells + 1,) int64, first row of each cell where grouped

    @staticmethod
    def fresh(gaussians, **replicated):
        """A state with zero moments and counts, all Gaussians in cell 0 of a single cell."""
        count, kind = len(gaussians), gaussians.dtype
        zeros = [
            {name: np.zeros((count, width), kind) for name, width in GROUPS.items()}
            for _ in range(2)
        ]
        replicated.setdefault("tree", Tree.single())
        return Checkpoint(
            gaussians=gaussians,
            first=zeros[0],
            second=zeros[1],
            gradient_norm=np.zeros(count, kind),
            gradient_count=np.zeros(count, np.int64),
            cell=np.zeros(count, np.int32),
            **replicated,
        )


class Slab(NamedTuple):
    """The rows of one data set that this rank writes."""

    path: str  # of the data set in the file
    rows: np.ndarray  # (n, ...) C-contiguous
    offsets: np.ndarray  # (ranks + 1,) int64, first row of each rank in the data set


class Writer:
    """Contract of a way to bring the rows of all ranks into a file whose layout exists.

    All ways fill the same bytes. Every rank calls ``write`` with the same data sets in the
    same order; a rank, or all of them, may have no rows. A failure on one rank ends as a
    UserError on all of them.
    """

    name = ""

    @staticmethod
    def usable(comm):
        """Whether this installation can write this way."""
        raise NotImplementedError

    def write(self, path, slabs, comm):
        """Write the rows of every slab to the file ``path`` and make them durable."""
        raise NotImplementedError
