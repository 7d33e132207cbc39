"""Throughput against the batch, ours and the baseline's (paper, table 3)."""

from .base import shown, table
from .trainings import GAUSSIAN, PLAIN, changed, measure

HEADER = ("batch", "images/s", "gaussian", "x", "PSNR", "gaussian", "kB an image", "gaussian",
          "gaussian / ours")


def run(config, sizes, comm, tell):
    """Train with each batch in both ways, and print a table. Collective.

    config: config.Config; sizes: batches; tell: prints a line. Returns a list of dicts.
    """
    rows = []
    for size in sizes:
        batch = f"train.batch={size}"
        ours = measure(changed(config, f"batch-{size}", *PLAIN, batch), comm)
        other = measure(changed(config, f"batch-{size}-gaussian", *PLAIN, batch, *GAUSSIAN), comm)
        rows.append(dict(batch=size, ours=ours, gaussian=other))
    if comm.rank == 0:
        for line in table(map(_cells, rows), HEADER):
            tell(line)
    return rows


def _cells(row):
    """A row of the table."""
    both = row["ours"], row["gaussian"]
    speed = [found["images_per_second"] for found in both]
    sent = [found["kilobytes"] for found in both]
    return (
        row["batch"], *(f"{value:.1f}" for value in speed), f"{speed[0] / speed[1]:.2f}",
        *(shown(found["psnr"], 2) for found in both), *(f"{value:.0f}" for value in sent),
        f"{sent[1] / sent[0]:.2f}" if sent[0] else "-",
    )
