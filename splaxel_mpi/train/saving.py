"""Checkpoints of a run: from a Trainer's state to checkpoint.base.Checkpoint."""

import numpy as np

from ..checkpoint.background import Background
from ..checkpoint.base import Checkpoint
from ..checkpoint.resume import checkpoint_path, prune
from ..checkpoint.save import save
from ..evaluate.summary import versions


class Saver:
    """Writes checkpoints of one run into its folder and keeps the last few, and some for good.

    settings: config.checkpoint; facts: what the checkpoint says of the run besides the state:
    seed, origin, extent, dataset, config (YAML text), config_chain; comm: of all ranks.
    Collective where settings.background.
    """

    def __init__(self, folder, settings, facts, comm):
        self.folder, self.settings, self.facts, self.comm = folder, settings, facts, comm
        self.background = Background(comm) if settings.background else None

    def __call__(self, trainer, wait=True):
        """Write a checkpoint of where the trainer stands. Collective.

        wait: whether it is written on return; otherwise, with settings.background, it is on its
        way, and a failure is told by the next call.
        """
        state = trainer.state
        path, stored = checkpoint_path(self.folder, state.images_seen), self._state(trainer)
        if self.background:
            self.background.start(path, stored, self._prune)
            if wait:
                self.background.finish()
            return
        save(path, stored, self.comm, self.settings.writer)
        if self.comm.rank == 0:
            self._prune()

    def poll(self):
        """Look after a checkpoint that is on its way. Local; once a step."""
        if self.background:
            self.background.poll()

    def close(self):
        """Wait for what is on its way. Collective."""
        if self.background:
            self.background.close()

    def _prune(self):
        prune(self.folder, self.settings.keep, self.settings.keep_every)

    def _state(self, trainer):
        """What is stored of a trainer. Collective."""
        trainer.recorder.flush()  # a run that goes on from here has the metrics up to here
        world, state, config = trainer.world, trainer.state, trainer.config
        saturation = trainer.renderer.saturation
        history, host = trainer.recorder.history(), world.backend.to_host
        schedule, extra = trainer.scheduler.state()
        if saturation:
            extra = {**extra, **saturation.state(world.exchange, trainer.renderer.layout)}
        return Checkpoint(
            gaussians=state.gaussians.map(host),
            first={name: host(array) for name, array in state.first.items()},
            second={name: host(array) for name, array in state.second.items()},
            gradient_norm=host(state.norm),
            gradient_count=host(state.count),
            seen_count=host(state.seen_count),
            cell=self._cells(trainer),
            tree=trainer.tree,
            images_seen=state.images_seen,
            step=state.step,
            batch=trainer.batch,
            order=history,
            background=np.asarray(config.scene.background, np.float64),
            sh_degree=trainer.degree,
            random_state=np.zeros(0, np.int64),
            versions=versions(),
            schedule=schedule,
            extra=extra,
            **self.facts,
        )

    @staticmethod
    def _cells(trainer):
        """Cell of each row, (n,) int32."""
        layout = trainer.renderer.layout
        return np.repeat(np.asarray(layout.local, np.int32), np.diff(layout.offsets))
