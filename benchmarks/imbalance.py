"""Step time under forced imbalance, before and after repartitioning (paper tables 5 and 7).

    mpirun -n 4 python -m mpi4py benchmarks/imbalance.py SCENE [setting=value ...]

Trains a fixed set of Gaussians from trees that give one cell 1 + skew times the mean count, and
lets the balance be checked half-way. Times are CPU times outside of exchanges: "slowest of each
step" is the largest of any rank, the step time where every rank has a core of its own; "busiest of
all" that of the rank with most over all steps, which a scheduler could reach; "wall" is of this
machine, which needs as many cores as ranks for it to mean anything. Medians over steps.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi import config, log  # noqa: E402
from splaxel_mpi.mpi.host import HostExchange  # noqa: E402
from splaxel_mpi.partition.balance import rebalance  # noqa: E402
from splaxel_mpi.train import job, loop  # noqa: E402

SKEWS = (0.0, 0.2, 0.5)
STEPS = 30  # of each half
WARM = 5  # first steps of a half, which are left out
HEAD = """\
| forced | imbalance | slowest of each step, ms | mean | busiest of all, ms | wall | check, ms |
| --- | --- | --- | --- | --- | --- | --- |"""


class Clock:
    """CPU seconds of compute and wall seconds of every step of this rank."""

    def __init__(self):
        self.exchanging, self.compute, self.wall = 0.0, [], []
        self.check, self.done = 0.0, None

    def exchange(self, call):
        """A method of the exchange that counts its CPU time."""

        def timed(*args, **kwargs):
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.exchanging += time.thread_time() - start

        return timed

    def step(self, call):
        """Trainer._step that keeps its times."""

        def timed(*args):
            start, wall = time.thread_time() - self.exchanging, time.perf_counter()
            call(*args)
            self.compute.append(time.thread_time() - self.exchanging - start)
            self.wall.append(time.perf_counter() - wall)

        return timed

    def rebalance(self, *args):
        """rebalance that keeps its time and figures."""
        start = time.perf_counter()
        tree, self.done = rebalance(*args)
        self.check = time.perf_counter() - start
        return tree, self.done


def measure(scene, skew, overrides, comm):
    """Times of a short training (steps, ranks) of compute, (steps,) of wall, and its Clock."""
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    half = STEPS * comm.size
    settings = config.parse("", "benchmark", [
        f"data.path={scene}", f"run.folder={folder}", f"train.batch={comm.size}",
        f"train.images={2 * half}", "densify.method=none", f"partition.skew={skew}",
        f"partition.check={half}", "partition.imbalance=0.1", "backend.name=host",
        "backend.threads=1", f"log.every={half}", "evaluate.pictures=0", *overrides,
    ])
    clock = Clock()
    changes = [(HostExchange, name, clock.exchange(getattr(HostExchange, name)))
               for name in ("alltoallv", "allgather", "allgatherv", "allreduce")]
    changes += [(loop.Trainer, "_step", clock.step(loop.Trainer._step)),
                (loop, "rebalance", clock.rebalance)]
    whole = [(place, name, getattr(place, name)) for place, name, _ in changes]
    for change in changes:
        setattr(*change)
    job.run(settings, False, comm)
    log.close()
    for change in whole:
        setattr(*change)
    return np.array(comm.allgather(clock.compute)).T, np.array(clock.wall), clock


def rows(skew, compute, wall, clock):
    """Lines of the table: before and after the check."""
    done = clock.done
    loads = (done.before, done.after) if done else ("below 0.1", "as before")
    for half, load in zip((slice(WARM, STEPS), slice(STEPS + WARM, None)), loads):
        part = 1e3 * compute[half]
        check = f"{1e3 * clock.check:.1f}"
        if done:
            check += f", moved {done.moved:,} ({done.bytes / 1e6:.1f} MB)"
        load = load if isinstance(load, str) else f"{load:.3f}"
        yield (f"| {skew:.0%} | {load} | {np.median(part.max(1)):.1f} | "
               f"{np.median(part.mean(1)):.1f} | {np.median(part, 0).max():.1f} | "
               f"{1e3 * np.median(wall[half]):.0f} | {check} |")


def main(scene, *overrides):
    """Print the table on rank 0."""
    from mpi4py import MPI

    comm, lines = MPI.COMM_WORLD, []
    for skew in SKEWS:
        lines += rows(skew, *measure(scene, skew, overrides, comm))
    if comm.rank == 0:
        print(HEAD, *lines, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
