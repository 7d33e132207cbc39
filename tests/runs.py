"""A small city and short training runs for tests."""

import shutil
from pathlib import Path

import h5py
import numpy as np

from splaxel_mpi import config, log
from splaxel_mpi.data.city import make_city
from splaxel_mpi.train import job

# groups of a checkpoint with a row for each Gaussian
ROWS = ("gaussians", "adam", "densify")
# grows twice and crosses an opacity reset within 48 images
SHORT = [
    "train.images=48",
    "train.batch=4",
    "train.optimizer=dense",
    "train.sh_every=16",
    "densify.start=8",
    "densify.every=16",
    "densify.stop=0.9",
    "densify.reset_every=32",
    "densify.threshold=1e-4",
    "checkpoint.every=24",
    "log.every=16",
    "evaluate.pictures=2",
]


def small_city(folder):
    """16 views of 80 x 45 pixels and 400 points."""
    size = dict(extent=40.0, views=16, width=80, height=45, points=400)
    make_city(str(folder), samples=1, threads=1, **size)
    return folder


def train(city, folder, comm, *overrides, resume=False):
    """Train ``city`` for a short while; returns the folder of the run."""
    base = f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {folder}\n"
    settings = config.parse(base, "test", [*SHORT, *overrides])
    try:
        job.run(settings, resume, comm)
    finally:
        log.close()
    return Path(folder) / "small"


def train_on_root(city, folder, comm, *overrides):
    """Folder of a run of rank 0 by itself, on one thread, while the others wait."""
    if comm.rank == 0:
        from mpi4py import MPI

        train(city, folder, MPI.COMM_SELF, "backend.threads=1", *overrides)
    comm.barrier()
    return Path(folder) / "small"


def shared_folder(comm, tmp_path_factory):
    """One temporary folder for all ranks."""
    return comm.bcast(tmp_path_factory.mktemp("shared") if comm.rank == 0 else None)


def last_checkpoint(run):
    """Path of the checkpoint with most images."""
    return sorted((run / "checkpoints").glob("*.h5"))[-1]


def state_of(path):
    """{name: array} of every per-Gaussian data set of a checkpoint, ordered by id."""
    found = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset) and name.split("/")[0] in ROWS:
            found[name] = item[()]

    with h5py.File(path, "r") as file:
        file.visititems(collect)
    order = np.argsort(found["gaussians/ids"])
    return {name: array[order] for name, array in found.items()}


def stop_half_way(finished, folder):
    """A copy of a run as it stood after its checkpoint at 24 images."""
    shutil.copytree(finished, folder / "small")
    last_checkpoint(folder / "small").unlink()
    return folder / "small"


def assert_same(one, two):
    """Two checkpoints hold the same Gaussians, moments and statistics, bit for bit."""
    one, two = state_of(one), state_of(two)
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)
