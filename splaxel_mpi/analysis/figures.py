"""Figures of a run from its metrics, on matplotlib without a display."""

from typing import NamedTuple

import numpy as np

from ..train.shares import NAMES, WORDS

SIZE = 6.4, 3.6  # inches
# Kinds of traffic with a curve of their own; the others are added up, or colours run out.
MOST_KINDS = 7


class Drawn(NamedTuple):
    """A figure and the words for it."""

    name: str  # of a file, without ending
    title: str
    caption: str  # what the curves are, with units
    figure: object  # matplotlib.figure.Figure


def draw_all(metrics):
    """List of ``Drawn``, those of PANELS of which this run has measured anything.

    metrics: an open ``Metrics``.
    """
    from matplotlib.figure import Figure

    found = []
    for name, (title, caption, draw) in PANELS.items():
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        draw(axes, metrics)
        if axes.lines or axes.collections:
            axes.set_xlabel("images seen")
            axes.grid(alpha=0.3)
            if axes.get_legend() is None:
                axes.legend(fontsize="small")
            found.append(Drawn(name, title, caption, figure))
    return found


def curve(axes, metrics, name, label, unit=1.0):
    """A series over the images seen, in units of ``unit``; nothing where it was not measured."""
    images, values = metrics.points(name)
    if len(images):
        marker = "o" if len(images) < 50 else None
        axes.plot(images, values / unit, label=label, marker=marker, markersize=3)


def over_ranks(axes, metrics, name, label, unit=1.0):
    """Mean over ranks, and a band from the least to the most of them."""
    (images, least), (_, most) = metrics.points(f"{name}/min"), metrics.points(f"{name}/max")
    curve(axes, metrics, f"{name}/mean", label, unit)
    if len(images):
        colour = axes.lines[-1].get_color()
        axes.fill_between(images, least / unit, most / unit, color=colour, alpha=0.2, lw=0)


def loss(axes, metrics):
    curve(axes, metrics, "loss", "loss")
    curve(axes, metrics, "l1", "L1")
    axes.set_ylim(bottom=0)


def psnr(axes, metrics):
    curve(axes, metrics, "psnr", "training views")
    curve(axes, metrics, "heldout_psnr", "held-out views")
    axes.set_ylabel("PSNR in dB")


def speed(axes, metrics):
    curve(axes, metrics, "images_per_second", "images a second")
    axes.set_ylim(bottom=0)


def view_bytes(axes, metrics):
    curve(axes, metrics, "view_bytes", "all ranks together", 1e6)
    axes.set_ylabel("MB a training view")
    axes.set_ylim(bottom=0)


def reports(metrics):
    """(images seen (n,), mask (rows,)) of the rows that tell of training, not of quality alone."""
    mask = np.isfinite(metrics["loss"]) if "loss" in metrics else np.zeros(metrics.rows, bool)
    return metrics["images_seen"][mask], mask


def stack(axes, images, parts):
    """Values upon one another; parts: list of (label, (n,) array), the lowest first."""
    labels, values = zip(*parts)
    axes.stackplot(images, values, labels=labels)
    handles, labels = axes.get_legend_handles_labels()
    place = dict(loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside the areas, in their order
    axes.legend(handles[::-1], labels[::-1], fontsize="small", **place)


def means(metrics, group, mask):
    """{name: values} of "<group>/<name>/mean" in the rows of a mask, 0 where not measured."""
    names = [name.split("/") for name in metrics if name.endswith("/mean")]
    return {
        parts[1]: np.nan_to_num(metrics["/".join(parts)][mask])
        for parts in names
        if parts[0] == group and len(parts) == 3
    }


def kinds(axes, metrics):
    images, mask = reports(metrics)
    found = means(metrics, "bytes", mask)
    sums = {kind: np.cumsum(values) / 1e6 for kind, values in found.items() if values.any()}
    parts = sorted(sums.items(), key=lambda part: -part[1][-1])
    if len(parts) > MOST_KINDS:
        parts[MOST_KINDS:] = [("others", sum(values for _, values in parts[MOST_KINDS:]))]
    if parts:
        stack(axes, images, parts)
        axes.set_ylabel("MB of a rank so far")


def utilisation(axes, metrics):
    curve(axes, metrics, "utilisation", "ranks that drew anything")
    curve(axes, metrics, "schedule_active", "ranks predicted to draw")
    curve(axes, metrics, "schedule_balance", "balance of predicted work")
    curve(axes, metrics, "schedule_bound", "bound set by the partition")
    curve(axes, metrics, "masked_share", "tiles masked")
    axes.set_ylim(0, 1.05)


def times(axes, metrics):
    images, mask = reports(metrics)
    found = means(metrics, "shares", mask)
    if found and len(images):
        total = np.maximum(sum(found.values()), 1e-9)
        names = [name for name in NAMES if name in found]
        stack(axes, images, [(WORDS.get(name, name), 100 * found[name] / total) for name in names])
        axes.set_ylabel("% of the time")
        axes.set_ylim(0, 100)


def memory(axes, metrics):
    over_ranks(axes, metrics, "memory", "process, peak so far", 1e9)
    over_ranks(axes, metrics, "store", "Gaussians and moments", 1e9)
    over_ranks(axes, metrics, "device/used", "GPU, arrays", 1e9)
    over_ranks(axes, metrics, "device/pool", "GPU, kept by the pool", 1e9)
    axes.set_ylabel("GB of a rank")
    axes.set_ylim(bottom=0)


def gaussians(axes, metrics):
    over_ranks(axes, metrics, "gaussians", "Gaussians")
    axes.set_ylabel("of a rank")
    axes.set_ylim(bottom=0)


def pixels(axes, metrics):
    for name in ("possible", "visible", "occupied", "unsaturated"):
        curve(axes, metrics, f"pixels/{name}", name, 1e6)
    axes.set_ylabel("million pixels x cells a view")
    axes.set_ylim(bottom=0)


# name -> (title, caption, function of axes and metrics that draws it)
PANELS = {
    "loss": ("Loss", "Means over the training views since the point before.", loss),
    "psnr": ("PSNR", "Of training views since the point before, and of the held-out views.", psnr),
    "speed": ("Speed", "Training views of all ranks a second of wall time.", speed),
    "time": ("Time", "What ranks spent their time on, mean over ranks, since the point before.",
             times),
    "bytes": ("Bytes a view", "What all ranks together sent one another for a training view.",
              view_bytes),
    "kinds": ("Bytes by kind", "What a rank sent to others up to then, mean over ranks.", kinds),
    "utilisation": ("Utilisation", "Shares, 0 to 1, of ranks, work and tiles.", utilisation),
    "pixels": ("Pixels left by the reductions", "Of a training view, sums over cells.", pixels),
    "memory": ("Memory", "Lines: mean over ranks; bands: from the least to the most.", memory),
    "gaussians": ("Gaussians", "Line: mean over ranks; band: from the fewest to the most.",
                  gaussians),
}
