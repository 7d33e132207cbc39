"""Checkpoints of a run: from a Trainer's state to checkpoint.base.Checkpoint."""

import numpy as np

from ..checkpoint.base import Checkpoint
from ..checkpoint.resume import checkpoint_path, prune
from ..checkpoint.save import save
from ..evaluate.summary import versions


class Saver:
    """Writes checkpoints of one run into its folder and keeps the last few, and some for good.

    settings: config.checkpoint; facts: what the checkpoint says of the run besides the state:
    seed, origin, extent, dataset, config (YAML text), config_chain.
    """

    def __init__(self, folder, settings, facts):
        self.folder, self.settings, self.facts = folder, settings, facts

    def __call__(self, trainer):
        """Write a checkpoint of where the trainer stands. Collective."""
        trainer.recorder.flush()  # a run that goes on from here has the metrics up to here
        world, state, config = trainer.world, trainer.state, trainer.config
        saturation = trainer.renderer.saturation
        history, host = trainer.recorder.history(), world.backend.to_host
        schedule, extra = trainer.scheduler.state()
        if saturation:
            extra = {**extra, **saturation.state(world.exchange, trainer.renderer.layout)}
        stored = Checkpoint(
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
        save(checkpoint_path(self.folder, state.images_seen), stored, world.comm)
        if world.is_root:
            prune(self.folder, self.settings.keep, self.settings.keep_every)

    @staticmethod
    def _cells(trainer):
        """Cell of each row, (n,) int32."""
        layout = trainer.renderer.layout
        return np.repeat(np.asarray(layout.local, np.int32), np.diff(layout.offsets))
