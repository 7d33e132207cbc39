"""Settings of training: lengths, rates, order of the views, density; see settings.py."""

from typing import Annotated, Literal, Optional

from pydantic import Field, field_validator

from .setting_types import Count, Fraction, Positive, Rate, Section


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
        description="Images of a batch that share their collectives; more of them take more "
        "memory.",
    )
    in_flight: int = Field(
        2, ge=1, le=1024,
        description="Chunks of a batch that are under way at a time: while one exchanges, the "
        "next is computed. Memory grows with it; the result is the same. 1: nothing overlaps.",
    )
    order: Literal["fixed", "one-view", "conflict-free", "balanced"] = Field(
        "fixed",
        description="Order of the views; fixed: from seed and epoch alone; one-view: the same, "
        "one view at a time on all ranks; conflict-free: views that no rank has in common run "
        "together; balanced: batches that give every rank the same work. The last two depend "
        "on the rank count and need cells: not with exchange.strategy: gaussian.",
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
    reset_every: Count = Field(
        3000,
        description="adc: images between opacity resets; 0: never. None falls into the last fifth "
        "of growth.",
    )
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
    # noise and scale_cost: 5e5 and 0.01 of MCMC's authors in a scene of extent 5, as those are on
    # which they chose them: noise goes with the square of the extent, cost with the extent
    noise: Rate = Field(
        1.25e7, description="mcmc: noise of positions, as a multiple of their learning rate, in "
        "scene extents."
    )
    opacity_cost: Rate = Field(0.01, description="mcmc: weight of the mean opacity in the loss.")
    scale_cost: Rate = Field(
        0.05, description="mcmc: weight of the mean scale, in scene extents, in the loss."
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
