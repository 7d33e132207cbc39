"""Every setting: its type, default, range and meaning.

One class per section of the YAML file. All events ("every", "start", ...) count images, whatever
the batch. Learning rates are those of one image a step; batches scale them (design section 8).
"""

from typing import Annotated, Literal, Optional

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from .setting_types import (
    MOST,
    Count,
    Fraction,
    Path,
    Positive,
    Section,
    byte_count,
    holdout_count,
    run_name,
)
from .training_settings import Densify, Schedule, Train

ORDERS_OF_CELLS = ("conflict-free", "balanced")  # of train.order: they predict cells' work


class Run(Section):
    """where results go"""

    name: Annotated[str, AfterValidator(run_name)] = Field(
        "run", description="Name of the run; results go to <folder>/<name>."
    )
    folder: Path = Field("runs", description="Folder that holds the runs.")
    seed: int = Field(
        0, ge=0, le=2**63 - 1,
        description="Seed of the view order and of every random draw.",
    )


class Data(Section):
    """the photographs and their poses"""

    path: Path = Field(
        description="Folder of the scene; a relative path starts at the current directory."
    )
    format: Literal["auto", "colmap", "transforms"] = Field(
        "auto", description="Layout of that folder; auto looks which one is there."
    )
    images: Optional[Path] = Field(
        None, description="Folder of the images, where it is not the layout's usual one."
    )
    scale: float = Field(
        1.0, ge=1, description="Images are reduced by this factor (2: half the width)."
    )
    holdout: Annotated[int, AfterValidator(holdout_count)] = Field(
        8, ge=0, le=MOST,
        description="Every n-th image by name is kept for evaluation; 0: none.",
    )
    cache: Annotated[Optional[Annotated[int, Field(ge=1)]], BeforeValidator(byte_count)] = Field(
        None,
        description="Memory of a node for decoded images, in bytes or text such as 2G; "
        "null: a share of what the node has.",
        json_schema_extra={"expected": "bytes, text such as 2G, or null"},
    )


class Scene(Section):
    """the Gaussians at the start"""

    sh_degree: int = Field(3, ge=0, le=3, description="Highest degree of spherical harmonics.")
    background: list[Fraction] = Field(
        [0.0, 0.0, 0.0], min_length=3, max_length=3,
        description="Colour behind everything, red, green, blue.",
        json_schema_extra={"expected": "three numbers 0 to 1"},
    )
    initial_opacity: float = Field(
        0.1, gt=0, lt=1, description="Opacity of the Gaussians made from the point cloud."
    )
    initial_scale: float = Field(
        1.0, gt=0, description="Their size, in distances to the neighbours."
    )


class Render(Section):
    """rasterization"""

    # above 1e-2 cells behind a nearly opaque one would visibly lack
    stop: float = Field(
        1e-4, ge=0, le=1e-2,
        description="A pixel is finished once its transmittance is below this; 0: never.",
    )
    near: float = Field(
        0.01, gt=0, description="Gaussians nearer to the camera (view depth) are not drawn."
    )


class Saturation(Section):
    """tiles that are dark before a cell's light reaches them"""

    enabled: bool = Field(
        True,
        description="Cells leave such tiles of a view from its next visit on; has no effect on a "
        "single cell.",
    )
    # above 1e-1 cells behind a nearly opaque one would visibly lack
    threshold: float = Field(
        1e-4, gt=0, le=1e-1,
        description="Transmittance below which a tile is dark, in all its pixels; at least "
        "render.stop.",
    )
    reevaluate: Literal["never", "residual", "always"] = Field(
        "residual",
        description="When cells come back; never: when masks are cleared; residual: where the "
        "light that is left would reach through to them; always: wherever any light is left.",
    )


class Partition(Section):
    """cells of the k-d tree"""

    cells: int = Field(
        0, ge=0, le=65536, description="Cells of the scene; 0: one for each rank."
    )
    margin: float = Field(
        0.1, ge=0,
        description="Widening of the boxes that predict where a cell takes part, as a "
        "fraction of their size; they are made anew once Gaussians have used it up.",
    )
    check: Count = Field(
        2000,
        description="Images between checks of the balance, which may end in a new tree; "
        "0: the first tree stays.",
    )
    imbalance: float = Field(
        0.2, ge=0,
        description="A new tree is built when a rank has more than 1 + this times its part "
        "of the weight.",
    )
    seen_weight: Fraction = Field(
        0.0,
        description="What a Gaussian weighs: 0: 1 (equal counts, equal memory); 1: how often "
        "views see it (equal work); between: that much of the latter.",
    )
    skew: Fraction = Field(
        0.0,
        description="For experiments: the first tree gives its first cell 1 + this times the "
        "mean count.",
    )


class ExchangeSection(Section):
    """what ranks send one another"""

    strategy: Literal["overlap", "owner", "gaussian"] = Field(
        "overlap",
        description="overlap: partial pixels go to every rank that sees them too, and each "
        "composes its own region; owner: they go to one rank, which composes and sends gradients "
        "back; gaussian: projected Gaussians, dealt to ranks at random, go to the strips of the "
        "image that they touch (the baseline; without cells and boundaries).",
    )
    precision: Literal["float32", "float16"] = Field(
        "float32",
        description="overlap, owner: colour of partial pixels and its gradient on the way; float16 "
        "sends 0.625 of the bytes. Transmittance and all computing keep backend.precision.",
    )
    drop: Fraction = Field(
        0.0,
        description="gaussian: those of less opacity do not travel to other ranks (lossy); 0: "
        "all do.",
    )
    strips: Literal["predicted", "measured"] = Field(
        "predicted",
        description="gaussian: where an image is cut; predicted: by counted work, equal in every "
        "run; measured: by the time that the rows took at earlier visits of the view.",
    )

    @model_validator(mode="after")
    def _only_where_they_travel(self):
        if self.drop and self.strategy != "gaussian":
            raise ValueError("drop needs strategy: gaussian; other strategies send no Gaussians")
        if self.precision != "float32" and self.strategy == "gaussian":
            raise ValueError("precision: float16 is for pixels; strategy: gaussian sends none")
        return self


class Mpi(Section):
    """transport and devices"""

    transport: Literal["auto", "host", "staged", "cuda-aware", "nccl"] = Field(
        "auto",
        description="How data leaves a rank; host: from host memory; cuda-aware: device memory "
        "by MPI; nccl: device memory by NCCL, one GPU a rank; staged: device arrays through "
        "page-locked host memory; auto: for devices the first of cuda-aware, nccl, staged that "
        "works when it is tried.",
    )
    share_gpu: bool = Field(False, description="Several ranks may use one GPU.")
    timeout: float = Field(
        1800.0, ge=0, le=1e6,
        description="Seconds that a rank may stay at one place, such as a collective; then it "
        "is told what every rank does, and the run ends. 0: nobody watches.",
    )


class BackendSection(Section):
    """where a rank computes"""

    name: Literal["auto", "host", "cuda"] = Field(
        "auto",
        description="host: the CPU; cuda: NVIDIA GPUs, by CuPy; auto: cuda where every rank has "
        "it, else host.",
    )
    precision: Literal["float32", "float64"] = Field(
        "float32", description="Floating point of parameters and pixels."
    )
    threads: int = Field(
        0, ge=0, le=4096,
        description="Threads of a rank; 0: cores of the node / its ranks.",
    )
    memory: Annotated[Optional[Annotated[int, Field(ge=1)]], BeforeValidator(byte_count)] = Field(
        None,
        description="Memory of a rank for Gaussians with their moments and gradients, in bytes or "
        "text such as 60G; null: 0.7 of what the GPU has free, or of what the node has, less "
        "data.cache and shared by its ranks. Views need the rest.",
        json_schema_extra={"expected": "bytes, text such as 60G, or null"},
    )
    kernels: Optional[Path] = Field(
        None,
        description="Folder of kernels built ahead by `splaxel-mpi kernels build`, for GPU nodes "
        "without a compiler; null: SPLAXEL_KERNELS of the environment, else they are compiled "
        "at the start.",
    )


class Checkpoint(Section):
    """what a resumed run starts from"""

    every: Count = Field(
        0, description="Images between checkpoints; 0: only at the end of the run."
    )
    keep: int = Field(2, ge=1, le=10000, description="Newest checkpoints that are kept.")
    keep_every: Count = Field(
        0,
        description="Images of a stretch whose first checkpoint is kept for good; 0: none are.",
    )
    writer: Literal["auto", "parallel", "serial", "offset"] = Field(
        "auto",
        description="How ranks write; parallel: HDF5 through MPI-IO; serial: rank 0 for all; "
        "offset: each rank its own bytes of the file, for file systems that let several nodes "
        "write one; auto: offset on one node, on several parallel where h5py has MPI, else serial.",
    )
    background: bool = Field(
        False,
        description="Write while training goes on, from a copy of the state in host memory, each "
        "rank as with offset. A kill during the write loses it as well.",
    )


class Evaluate(Section):
    """figures on the images held out"""

    every: Count = Field(0, description="Images between evaluations; 0: only at the end.")
    pictures: int = Field(
        4, ge=0, le=10000,
        description="PNGs written at the end: photograph, rendering, four times the difference.",
    )


class Log(Section):
    """what is told while it runs"""

    every: Positive = Field(
        100, description="Images between rows of the metrics and lines of the log."
    )
    ranks: bool = Field(
        False,
        description="metrics.h5 has every rank's figures, too, not only their minimum, mean and "
        "maximum.",
    )


class Config(Section):
    """All settings of a run."""

    run: Run = Field(default_factory=Run)
    data: Data
    scene: Scene = Field(default_factory=Scene)
    train: Train = Field(default_factory=Train)
    schedule: Schedule = Field(default_factory=Schedule)
    densify: Densify = Field(default_factory=Densify)
    boundary: Literal["exact", "filter", "none"] = Field(
        "exact",
        description="Gaussians that reach over a cell's faces; exact: drawn where they belong in "
        "the global depth order; filter: dropped outside their cell where another cell's region "
        "covers the pixel; none: drawn by their own cell, out of order.",
    )
    render: Render = Field(default_factory=Render)
    saturation: Saturation = Field(default_factory=Saturation)
    partition: Partition = Field(default_factory=Partition)
    exchange: ExchangeSection = Field(default_factory=ExchangeSection)
    mpi: Mpi = Field(default_factory=Mpi)
    backend: BackendSection = Field(default_factory=BackendSection)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    log: Log = Field(default_factory=Log)

    @model_validator(mode="after")
    def _orders_of_cells(self):
        if self.exchange.strategy == "gaussian" and self.train.order in ORDERS_OF_CELLS:
            raise ValueError(f"train.order: {self.train.order} arranges views by the cells that "
                             "they see; exchange.strategy: gaussian has none: set train.order: "
                             "fixed or one-view")
        return self

    def to_yaml(self):
        """The effective settings as YAML text; parse reads them back unchanged."""
        import yaml

        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
