"""Every setting: its type, default, range and meaning.

One class per section of the YAML file. All events ("every", "start", ...) count images, whatever
the batch. Learning rates are those of one image a step; batches scale them (design section 8).
"""

from typing import Annotated, Literal, Optional

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from .setting_types import (
    MOST,
    Count,
    Fraction,
    Path,
    Positive,
    Rate,
    Section,
    byte_count,
    holdout_count,
    run_name,
)


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


class Rates(Section):
    """Adam's learning rates for one image a step"""

    position: Rate = Field(
        1.6e-4, description="Positions at the start, times the scene extent (world units)."
    )
    position_final: float = Field(
        0.01, gt=0, le=1,
        description="Factor on the position rate reached, log-linearly, at the last image.",
    )
    scale: Rate = Field(5e-3, description="Logarithms of the scales.")
    rotation: Rate = Field(1e-3, description="Quaternions.")
    opacity: Rate = Field(0.05, description="Opacities before the sigmoid.")
    sh0: Rate = Field(2.5e-3, description="Colour of degree 0.")
    shN: Rate = Field(1.25e-4, description="Colour of the higher degrees.")


class Train(Section):
    """length, batches, loss and optimizer"""

    images: Positive = Field(
        30000, description="Length of the training: images seen, repeats counted."
    )
    batch: int = Field(
        0, ge=0, le=65536,
        description="Images of one optimizer step; 0: the rank count at the first start.",
    )
    chunk: int = Field(
        2, ge=1, le=1024,
        description="Images of a batch that share their collectives; more of them "
        "overlap better and take more memory.",
    )
    order: Literal["fixed", "one-view", "conflict-free", "balanced"] = Field(
        "fixed",
        description="Order of the views; fixed: from seed and epoch alone; one-view: the same, "
        "one view at a time on all ranks; conflict-free: views that no rank has in common run "
        "together; balanced: batches that give every rank the same work. The last ones depend "
        "on the rank count.",
    )
    optimizer: Literal["dense", "selective"] = Field(
        "selective",
        description="selective: Adam moves only what the batch sees (large scenes); dense: "
        "everything, as the reference does (small scenes).",
    )
    ssim_weight: Fraction = Field(0.2, description="w in the loss (1 - w) L1 + w (1 - SSIM).")
    sh_every: Positive = Field(
        1000, description="Images between steps of the SH degree, which starts at 0."
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam: decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Adam: decay of the second moment.")
    epsilon: float = Field(1e-15, gt=0, description="Adam: added to the denominator.")
    on_nonfinite: Literal["stop", "prune"] = Field(
        "stop",
        description="What follows when a number of a Gaussian is no longer finite; stop: the "
        "run ends, its checkpoints are whole; prune: such Gaussians go, with a warning.",
    )
    rates: Rates = Field(default_factory=Rates)


class Schedule(Section):
    """orders other than fixed"""

    window: Positive = Field(
        4096, description="Views that are arranged together; beyond them the order is random."
    )
    pixel_cost: Optional[Annotated[float, Field(ge=0)]] = Field(
        None,
        description="Work of a pixel, in visible Gaussians; null: as measured for the backend.",
    )
    measured: bool = Field(
        False,
        description="Fit pixel_cost to the times of the run itself. Runs then do not repeat: "
        "their order follows the clock.",
    )


class Densify(Section):
    """adding and removing Gaussians"""

    method: Literal["adc", "mcmc", "none"] = Field(
        "adc",
        description="adc: clone, split and prune by gradient; mcmc: relocate the faint, grow to "
        "the limit, move at random; none: the count stays.",
    )
    limit: Count = Field(
        0, validate_default=True,
        description="Gaussians of the whole scene above which it does not grow; 0: what fits "
        "in memory. mcmc grows to it and needs it.",
    )
    start: Count = Field(500, description="No growth up to this image.")
    every: Positive = Field(100, description="Images between growth events.")
    stop: Optional[Fraction] = Field(
        None,
        description="Fraction of train.images at which growth ends; null: 0.5 for adc, 0.83 for "
        "mcmc.",
    )
    threshold: Optional[Rate] = Field(
        None,
        description="adc: mean norm of the screen position's gradient, in NDC units, above which "
        "a Gaussian grows; null: 2e-4, 8e-4 with absgrad.",
    )
    absgrad: bool = Field(
        False,
        description="adc: gradients are summed by absolute value, so that those of a Gaussian's "
        "pixels do not cancel; splits large blurred ones.",
    )
    size: float = Field(
        0.01, gt=0,
        description="adc: largest scale, in scene extents, up to which it is cloned; larger: "
        "split.",
    )
    reset_every: Count = Field(3000, description="adc: images between opacity resets; 0: never.")
    reset_opacity: float = Field(
        0.01, gt=0, lt=1, description="adc: a reset lowers opacities to this at most."
    )
    prune_opacity: Fraction = Field(
        0.005, description="Gaussians of less opacity are removed; by mcmc, relocated."
    )
    prune_scale: float = Field(
        0.1, gt=0,
        description="adc: Gaussians of a larger scale, in scene extents, are removed once "
        "opacities have been reset.",
    )
    growth: Fraction = Field(0.05, description="mcmc: growth of the count at an event.")
    noise: Rate = Field(
        5e5, description="mcmc: noise of positions, as a multiple of their learning rate."
    )
    opacity_cost: Rate = Field(0.01, description="mcmc: weight of the mean opacity in the loss.")
    scale_cost: Rate = Field(
        0.01, description="mcmc: weight of the mean scale, in scene extents, in the loss."
    )

    @field_validator("limit")
    @classmethod
    def _limited(cls, value, info):
        if info.data.get("method") == "mcmc" and not value:
            raise ValueError("mcmc grows to it: expected a number such as 1000000")
        return value

    @property
    def stop_fraction(self):
        """stop, or what the method does without it."""
        return {"mcmc": 0.83}.get(self.method, 0.5) if self.stop is None else self.stop

    @property
    def least_gradient(self):
        """threshold, or the usual one of its statistic."""
        return (8e-4 if self.absgrad else 2e-4) if self.threshold is None else self.threshold


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

    strategy: Literal["overlap", "gaussian"] = Field(
        "overlap",
        description="overlap: partial pixels go to every cell that sees them too, and each "
        "composes its own region; gaussian: projected Gaussians, dealt to ranks at random, go to "
        "the strips of the image that they touch (the baseline; without cells and boundaries).",
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
    def _only_where_gaussians_travel(self):
        if self.drop and self.strategy != "gaussian":
            raise ValueError("drop needs strategy: gaussian; other strategies send no Gaussians")
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

    def to_yaml(self):
        """The effective settings as YAML text; parse reads them back unchanged."""
        import yaml

        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)
