"""Trains one scene to the end with each setting of boundary (paper, table 6).

    python benchmarks/boundaries.py configs/city.yaml [--ranks 4] [--json FILE] [section.key=value ...]

Prints a row of Markdown for each: held-out PSNR as the setting renders; PSNR of the same Gaussians
in exact order, as any viewer shows them; SSIM, seconds, bytes a trained image sent among ranks,
Gaussians, and the ghosts' share of visible splats and of those bytes. Runs one after another; the
folders are runs/boundary-<setting> unless run.folder says otherwise.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi import config  # noqa: E402
from splaxel_mpi.evaluate.series import read_series  # noqa: E402

SETTINGS = ("exact", "filter", "none")
COLUMNS = ("boundary", "PSNR", "in exact order", "SSIM", "s", "KB an image", "Gaussians",
           "ghosts of visible", "of bytes")


def train(path, ranks, overrides, *options):
    """One run under the launcher (environment variable MPIRUN). Output goes to standard error."""
    launcher = shlex.split(os.environ.get("MPIRUN", "mpirun"))
    command = [*launcher, "-n", str(ranks), sys.executable, "-m", "splaxel_mpi", "train", path]
    subprocess.run([*command, *overrides, *options], check=True, stdout=sys.stderr)


def figures(folder, setting):
    """What a finished run has to say."""
    summary = json.loads((folder / "summary.json").read_text())
    series, ranks = read_series(folder / "metrics.h5"), summary["ranks"]
    total = {
        name: float(np.nansum(series[f"{name}/mean"])) * ranks
        for name in ("visible", "ghosts", "bytes/ghosts", "bytes/ghosts back")
        if f"{name}/mean" in series
    }
    sent = summary["bytes_exchanged"]
    ghosts = total.get("bytes/ghosts", 0) + total.get("bytes/ghosts back", 0)
    return dict(
        boundary=setting,
        psnr=summary["psnr"],
        ssim=summary["ssim"],
        seconds=summary["seconds"],
        kilobytes=sent / summary["images_seen"] / 1e3,
        gaussians=summary["gaussians"],
        ghost_share=total["ghosts"] / total["visible"],
        ghost_bytes=ghosts / max(sent, 1),
    )


def measure(path, ranks, overrides, setting):
    """Train with a setting, then look at the result in exact order."""
    chosen = [*overrides, f"boundary={setting}", f"run.name=boundary-{setting}"]
    folder = Path(config.load(path, chosen).run.folder) / f"boundary-{setting}"
    train(path, ranks, chosen)
    found = figures(folder, setting)
    if setting != "exact":  # all images are seen: nothing is trained, the end is done again
        train(path, ranks, [*chosen, "boundary=exact"], "--resume")
    found["psnr_exact"] = json.loads((folder / "summary.json").read_text())["psnr"]
    return found


def main():
    parser = argparse.ArgumentParser(description="Train with each setting of boundary.")
    parser.add_argument("config")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    options = parser.parse_intermixed_args()
    found = []
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --- |" * len(COLUMNS), flush=True)
    for setting in SETTINGS:
        row = measure(options.config, options.ranks, options.overrides, setting)
        found.append(row)
        print(
            "| {boundary} | {psnr:.2f} | {psnr_exact:.2f} | {ssim:.4f} | {seconds:.0f} | "
            "{kilobytes:.0f} | {gaussians:,} | {ghost_share:.1%} | {ghost_bytes:.1%} |".format(**row),
            flush=True,
        )
        if options.json:
            Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
