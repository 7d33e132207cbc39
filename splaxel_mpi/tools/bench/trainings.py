"""One scene trained in several ways, each to the end, and what their files say."""

import json
from pathlib import Path

import numpy as np

from ...config import parse
from ...errors import UserError
from ...evaluate.series import read_series
from ...mpi.world import on_root
from ...train import job

# times and bytes are to be those of training
PLAIN = ("checkpoint.every=0", "evaluate.every=0", "evaluate.pictures=0")
GAUSSIAN = ("exchange.strategy=gaussian", "exchange.precision=float32", "train.order=fixed")


def changed(config, label, *settings):
    """A copy of a Config with some "section.key=value", whose run is called <name>-<label>.
    Raises UserError."""
    name = f"run.name={config.run.name}-{label}"
    return parse(config.to_yaml(), f"bench, {label}", [*settings, name])


def complete(config, resume, comm):
    """Train to the end. Collective. Raises UserError where the run was told to stop: its figures
    would be of something else."""
    reason = job.run(config, resume, comm)
    if reason:
        raise UserError(f"{config.run.name}: stopped before its end, since {reason}; start anew")


def measure(config, comm):
    """Train as a configuration says; what the run's files say of it. Collective; a dict."""
    folder = Path(config.run.folder) / config.run.name
    complete(config, False, comm)
    return on_root(comm, lambda: figures(folder))


def summary(folder):
    """The file summary.json of a run."""
    return json.loads((Path(folder) / "summary.json").read_text())


def figures(folder):
    """Figures of a finished run by name.

    psnr, ssim: held out, None without; seconds: of training; kilobytes: that all ranks sent for
    a trained image, evaluation included; tiles: of cells that were drawn for one; masked: share
    of the tiles of cells that were masked; flips: share of these that turned wrong; ghost_share:
    of the visible Gaussians; ghost_bytes: share of the bytes.
    """
    found, series = summary(folder), read_series(Path(folder) / "metrics.h5")

    def total(name):
        mean = series.get(f"{name}/mean", np.zeros(1))
        return float(np.nansum(mean)) * found["ranks"]

    sent, images = found["bytes_exchanged"], max(found["images_seen"], 1)
    drawn, masked = total("tiles/drawn"), total("tiles/masked")
    return dict(
        psnr=found["psnr"],
        ssim=found["ssim"],
        seconds=found["seconds"],
        images_per_second=found["images_per_second"],
        kilobytes=sent / images / 1e3,
        gaussians=found["gaussians"],
        tiles=drawn / images,
        masked=masked / max(drawn + masked, 1),
        flips=total("tiles/flipped") / max(masked, 1),
        ghost_share=total("ghosts") / max(total("visible"), 1),
        ghost_bytes=(total("bytes/ghosts") + total("bytes/ghosts back")) / max(sent, 1),
        ranks=found["ranks"],
        images=found["images_seen"],
    )


def less(value, base):
    """value - base, None where either is missing."""
    return None if value is None or base is None else value - base
