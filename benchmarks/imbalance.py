"""Step time under forced imbalance, before and after repartitioning (paper tables 5 and 7).

    mpirun -n 2 python -m mpi4py benchmarks/imbalance.py SCENE [--rounds 7] [setting=value ...]

On CPUs or GPUs, whichever the settings choose. A fixed set of Gaussians is trained in rounds. In
each round the cells are forced out of balance (the first gets 1 + skew times the mean count), some
batches are trained, the check of training repartitions, and the same batches are trained again.
So every step is timed with both trees, close together in time and by the same views, and what
else the machine does falls on both alike. Masks are off: they would depend on what came before.

Columns, in ms a step: *median* over all steps; *least*, the mean over batches of the fastest round
of each, which other programs disturb least; *slowest rank* and *mean rank*, medians of the ranks'
own work without exchanges and waiting. The ratio found / forced is the median over pairs of the
same batch. Then the price: of a check that repartitions (with the new layout of everything that
depends on cells) and of one that finds balance, slowest rank, median and most; and their share of
training time if each check, every `partition.check` images, ended so. Ranks need a core, or a
GPU, each.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi import config, log  # noqa: E402
from splaxel_mpi.mpi import world as mpi  # noqa: E402
from splaxel_mpi.partition.balance import first_tree, rebalance  # noqa: E402
from splaxel_mpi.train import job  # noqa: E402
from splaxel_mpi.train.world import make_world  # noqa: E402

SKEWS = (0.2, 0.5)
WARM = 1  # batches after a change of the tree that are not timed
STEPS = """\
| forced | imbalance | median | least | slowest rank | mean rank | ratio |
| --- | --- | --- | --- | --- | --- | --- |"""
PRICE = """\
| forced | moved | MB | repartition, ms | share | check alone, ms | share |
| --- | --- | --- | --- | --- | --- | --- |"""


class Bench:
    """One training that is thrown out of balance again and again.

    arguments: those of the command; comm: the communicator of all ranks.
    """

    def __init__(self, arguments, comm, folder):
        self.comm, self.rounds = comm, arguments.rounds
        given = [f"data.path={arguments.scene}", f"run.folder={folder}", "densify.method=none",
                 "partition.imbalance=0.1", "saturation.enabled=false", *arguments.settings]
        settings = config.parse("", "benchmark", given)
        world = make_world(settings, comm)
        self.data = job.read_data(settings, world)
        self.cache = job.make_cache(settings, world, self.data)
        self.trainer = job.prepare(settings, False, world, self.data, self.cache, Path(folder))
        self.batches = self._batches(arguments.batches)
        self.steps()  # whatever is compiled or allocated at a first use

    def _batches(self, count):
        """Views of ``count`` batches, the same ones in every round."""
        train, size = self.data.train, self.trainer.batch
        order = np.random.default_rng(0).permutation(np.resize(train, max(count * size, 1)))
        return [[self.data.views[i] for i in part] for part in np.split(order, count)]

    def force(self, skew):
        """Give the first cell 1 + skew times the mean count."""
        trainer = self.trainer
        exchange, means = trainer.world.exchange, trainer.state.gaussians.means
        trainer.tree = first_tree(means, trainer.tree.cells, skew, exchange)
        trainer.state.migrate(trainer.tree, exchange)
        trainer.set_layout()

    def check(self):
        """The check of training: (seconds of the slowest rank, Repartition or None)."""
        trainer, start = self.trainer, self._arrive()
        trainer.tree, done = rebalance(
            trainer.state, trainer.tree, trainer.config.partition, trainer.world.exchange
        )
        if done:
            trainer.set_layout()
        self._finish()
        return max(self.comm.allgather(time.perf_counter() - start)), done

    def steps(self):
        """(batches, ranks, 2) seconds of every step: wall, and the rank's own work."""
        for views in self.batches[:WARM]:
            self._step(views)
        times = [self._step(views) for views in self.batches]
        return np.array(self.comm.allgather(times)).transpose(1, 0, 2)

    def _step(self, views):
        trainer = self.trainer
        photos = trainer.photos.fetch(sorted({view.index for view in views}))
        start, began = self._arrive(), trainer.computed()
        trainer.steps.step(trainer.state, views, photos, trainer.config.scene.sh_degree)
        self._finish()
        return time.perf_counter() - start, trainer.computed() - began

    def _arrive(self):
        self._finish()
        self.comm.Barrier()
        return time.perf_counter()

    def _finish(self):
        """Wait until the device of this rank has nothing left to do."""
        xp = self.trainer.world.backend.xp
        if xp is not np:
            xp.cuda.runtime.deviceSynchronize()

    def measure(self, skew):
        """Times (rounds, trees, batches, ranks, 2) of the tree forced and the one found, seconds
        (rounds, 2) of checks that repartition and that find balance, and the Repartition."""
        times, checks = [], []
        for _ in range(self.rounds):
            self.force(skew)
            forced = self.steps()
            seconds, done = self.check()
            if done is None:
                raise SystemExit(f"no repartition at a skew of {skew:.0%}: too few Gaussians?")
            times.append((forced, self.steps()))
            checks.append((seconds, self.check()[0]))
        return np.array(times), np.array(checks), done

    def close(self):
        """Free what the node shares. Collective."""
        self.trainer.recorder.close()
        self.cache.close()


def figures(skew, times, checks, done, images, check_images):
    """Figures of one skew as a dict; images: of a step, check_images: between two checks."""
    wall, work = times[..., 0].max(-1), times[..., 1]
    out = dict(skew=skew, moved=done.moved, gaussians=done.total, bytes=done.bytes,
               ratio=float(np.median(wall[:, 1] / wall[:, 0])), images_of_a_step=images,
               imbalance=[done.before, done.after])
    out["median"], out["least"], out["slowest"], out["mean"] = (
        (1e3 * figure).tolist() for figure in (
            np.median(wall, (0, 2)), wall.min(0).mean(-1),
            np.median(work.max(-1), (0, 2)), np.median(work.mean(-1), (0, 2))))
    names = ("repartition", "balanced_check")
    for name, seconds in zip(names, checks.T):
        out[name] = [1e3 * float(value) for value in (np.median(seconds), seconds.max())]
        step = out["median"][1] / images
        out[f"{name}_share"] = out[name][0] / (out[name][0] + step * check_images)
    return out


def step_lines(found):
    """Rows of the table of step times for one skew: with the tree forced, and that found."""
    for k, ratio in enumerate(("", f"{found['ratio']:.3f}")):
        times = " | ".join(f"{found[name][k]:.1f}" for name in
                           ("median", "least", "slowest", "mean"))
        yield f"| {found['skew']:.0%} | {found['imbalance'][k]:.3f} | {times} | {ratio} |"


def price_line(found):
    """Row of the table of prices."""
    price = " | ".join(
        f"{found[name][0]:.1f} (most {found[name][1]:.1f}) | {found[f'{name}_share']:.3%}"
        for name in ("repartition", "balanced_check"))
    return (f"| {found['skew']:.0%} | {found['moved']:,} of {found['gaussians']:,} | "
            f"{found['bytes'] / 1e6:.1f} | {price} |")


def main():
    """Print the table on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("scene", help="folder of a data set")
    parser.add_argument("settings", nargs="*", metavar="setting=value")
    parser.add_argument("--rounds", type=int, default=7, help="of both trees, for each skew")
    parser.add_argument("--batches", type=int, default=8, help="trained with each tree in a round")
    parser.add_argument("--json", metavar="FILE", help="write all figures there, too")
    arguments = parser.parse_intermixed_args()
    comm = mpi.init()
    log.setup(None, comm.rank, comm.size)
    if comm.size == 1:
        raise SystemExit("one rank is always in balance: start it with mpirun -n 2 or more")
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    bench = Bench(arguments, comm, folder)
    every = bench.trainer.config.partition.check
    everything = [figures(skew, *bench.measure(skew), bench.trainer.batch, every)
                  for skew in SKEWS]
    bench.close()
    log.close()
    if comm.rank == 0:
        print(STEPS, *(line for found in everything for line in step_lines(found)), sep="\n")
        print("", PRICE, *map(price_line, everything), sep="\n")
        shutil.rmtree(folder, ignore_errors=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(everything, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
