"""What runs wrote, as numpy arrays: for scripts that look at results.

    from splaxel_mpi import analysis

    run = analysis.Run("runs/city")              # finished, under way or interrupted
    with run.metrics() as metrics:
        images, psnr = metrics.points("heldout_psnr")
    with analysis.Checkpoint(run.checkpoints()[0]) as checkpoint:
        means = checkpoint["gaussians/means"][:1000] + checkpoint["run/origin"]

Needs neither MPI ranks nor a GPU, and takes no locks. docs/file-formats.md explains every data
set with its shape and unit.
"""

from .checkpoints import Checkpoint, Rows
from .metrics import Metrics
from .runs import Run

__all__ = ["Checkpoint", "Metrics", "Rows", "Run"]
