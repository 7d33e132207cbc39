"""Run under MPI: resume a training, tell where it stands, draw its next image and train on.

Arguments: file for the findings (.npz), configuration file, settings.
"""

import sys

import numpy as np

from splaxel_mpi import config
from splaxel_mpi.evaluate.heldout import render_views
from splaxel_mpi.mpi import world as mpi
from splaxel_mpi.train import job
from splaxel_mpi.train.folder import open_folder
from splaxel_mpi.train.world import make_world


def pictures(trainer, indices):
    """Whole images of some views on rank 0, None elsewhere. Collective."""
    trainer.settle()
    cameras = [trainer.views[i].camera for i in indices]
    drawn = render_views(trainer.renderer, trainer.state.gaussians, cameras, trainer.degree)
    found = trainer.world.comm.gather(dict(drawn))
    if trainer.world.is_root:
        whole = {i: image for part in found for i, image in part.items()}
        return np.stack([whole[i] for i in range(len(indices))])


def rows_by_id(trainer):
    """Every array of all ranks' Gaussians, in the order of ids; None on other ranks than 0."""
    rows = trainer.state.rows
    found = trainer.world.comm.gather({name: rows[name] for name in rows.arrays})
    if trainer.world.is_root:
        whole = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        order = np.argsort(whole["ids"])
        return {f"row/{name}": array[order] for name, array in whole.items()}


def main():
    """See the module."""
    out, path, *overrides = sys.argv[1:]
    comm = mpi.init()
    settings = config.load(path, overrides)
    world = make_world(settings, comm)
    data = job.read_data(settings, world)
    cache = job.make_cache(settings, world, data)
    with open_folder(settings, True, world) as (folder, _):
        trainer = job.prepare(settings, True, world, data, cache, folder)
        state, batch = trainer.state, trainer.batch
        facts = dict(images=state.images_seen, step=state.step, batch=batch)
        rows = rows_by_id(trainer)
        trainer.scheduler.begin(state.images_seen)
        views = trainer.scheduler.batch(state.images_seen, batch)
        images = pictures(trainer, views)
        trainer.run()
        last = pictures(trainer, views)
        if world.is_root:
            np.savez(out, views=views, next=images, last=last, **facts, **rows)
        trainer.recorder.close()
    cache.close()


main()
