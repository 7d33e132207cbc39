"""Bandwidth of checkpoints against dd with fsync on the same disk, and how long training waits.

    mpirun -n 4 python -m mpi4py benchmarks/checkpoint_speed.py [--gigabytes 2] [--rounds 3]
        [--writers background parallel] [--folder DIR]

In each round dd writes zeros of the size of a checkpoint, then every writer and the background
write one; each ends with fsync. The table has medians over rounds: seconds, GB/s, and the ratio
to the dd of the same round. *stall* is how long training stands still: all of the write, but
for the background, whose ranks meanwhile look after it every 10 ms. Its first round takes new
memory for the copies, which later ones have.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.checkpoint.background import Background  # noqa: E402
from splaxel_mpi.checkpoint.base import Checkpoint  # noqa: E402
from splaxel_mpi.checkpoint.save import WRITERS, save  # noqa: E402
from splaxel_mpi.mpi import world as mpi  # noqa: E402
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians  # noqa: E402

# Bytes of a Gaussian in a float32 checkpoint: parameters and moments, id, cell, statistics.
ROW = 3 * 59 * 4 + 8 + 4 + 4 + 8 + 4
LOOK = 0.01  # seconds between looks at a background write


def make_state(count, rank):
    """A state of ``count`` Gaussians of random numbers."""
    rng = np.random.default_rng(rank)

    def groups():
        return {name: rng.random((count, width), np.float32) for name, width in GROUPS.items()}

    state = Checkpoint.fresh(
        Gaussians(**groups(), ids=np.arange(count)), images_seen=1, step=1, batch=1, order={},
        seed=0, origin=np.zeros(3), extent=1.0, background=np.zeros(3), sh_degree=3,
        random_state=np.zeros(0, np.int64), config="", dataset="",
    )
    state.first, state.second = groups(), groups()
    return state


def dd(path, size, comm):
    """Seconds that dd takes on rank 0 for so many bytes."""
    seconds = 0.0
    if comm.rank == 0:
        command = ["dd", "if=/dev/zero", f"of={path}", "bs=4M", f"count={size >> 22}",
                   "conv=fsync"]
        began = time.perf_counter()
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        path.unlink()
    return comm.bcast(seconds)


def write(name, path, state, comm, background):
    """(Seconds of the write, seconds of them in which training stands still), largest of ranks."""
    comm.Barrier()
    began = time.perf_counter()
    if name in WRITERS:
        save(path, state, comm, name)
        stall = time.perf_counter() - began
    else:
        stall = beside(path, state, comm, background)
    seconds = time.perf_counter() - began
    return comm.allreduce(seconds, max), comm.allreduce(stall, max)


def beside(path, state, comm, writer):
    """Write in the background; seconds in which training stands still."""
    began = time.perf_counter()
    writer.start(path, state, lambda: None)
    stall = time.perf_counter() - began
    while not comm.allreduce(path.exists(), min):
        began = time.perf_counter()
        writer.poll()
        stall += time.perf_counter() - began
        time.sleep(LOOK)
    writer.finish()
    return stall


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--writers", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--folder", help="on the disk to be tried")
    arguments = parser.parse_args()
    comm = mpi.init()
    state = make_state(int(arguments.gigabytes * 1e9 / ROW / comm.size), comm.rank)
    size = int(arguments.gigabytes * 1e9)
    folder = tempfile.mkdtemp(dir=arguments.folder) if comm.rank == 0 else None
    folder = Path(comm.bcast(folder))
    names = [name for name, way in WRITERS.items() if way.usable(comm)] + ["background"]
    background = Background(comm)  # one, as a run has: it keeps the memory of its copies
    names = arguments.writers or names
    found = {name: [] for name in ["dd", *names]}
    for _ in range(arguments.rounds):
        floor = dd(folder / "dd", size, comm)
        found["dd"].append((floor, floor, 1.0))
        for name in names:
            path = folder / f"{name}.h5"
            seconds, stall = write(name, path, state, comm, background)
            found[name].append((seconds, stall, floor / seconds))
            comm.Barrier()
            if comm.rank == 0:
                path.unlink()
    background.close()
    if comm.rank == 0:
        print(f"{size / 1e9:.3g} GB, {comm.size} ranks, medians of {arguments.rounds} rounds\n")
        print("| writer | seconds | GB/s | of dd | stall, s | stall, of the write |")
        print("| --- | --- | --- | --- | --- | --- |")
        for name, rows in found.items():
            seconds, stall, ratio = np.median(rows, axis=0)
            print(f"| {name} | {seconds:.2f} | {size / 1e9 / seconds:.2f} | {ratio:.2f} | "
                  f"{stall:.2f} | {stall / seconds:.1%} |")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
