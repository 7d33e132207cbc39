"""Broken numbers on the path that never waits for the GPU: they are seen within a few steps, and
the message names the step in which they came up."""

import numpy as np
import pytest

from runs import train
from splaxel_mpi.backends.cuda_launch import Recording
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.train.guard import Guard
from splaxel_mpi.train.loop import Trainer
from splaxel_mpi.train.one_rank import AHEAD, OneRank

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
AT = 20  # images before the injection: views have long been recorded
# nothing but the flags makes anybody look before the end
QUICK = ["backend.name=cuda", "train.images=400", "train.sh_every=1000", "densify.method=none",
         "checkpoint.every=0", "evaluate.every=0", "log.every=400", "evaluate.pictures=0"]


@pytest.fixture
def watched(monkeypatch):
    """Function (change): change(state) before the step that follows AT images. Returns a dict of
    what was seen: trainer, names of the views of each step, replays."""

    def plan(change):
        seen = dict(names=[], replays=0)
        step, watch, replay = Trainer._step, Guard.watch, Recording.replay

        def changed(self, before):
            seen["trainer"] = self
            if before == AT:
                self.settle()
                change(self.state)
            return step(self, before)

        def named(self, views, *rest):
            seen["names"].append(", ".join(view.name for view in views))
            return watch(self, views, *rest)

        def counted(self):
            seen["replays"] += 1
            return replay(self)

        monkeypatch.setattr(Trainer, "_step", changed)
        monkeypatch.setattr(Guard, "watch", named)
        monkeypatch.setattr(Recording, "replay", counted)
        return seen

    return plan


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("optimizer, place", [
    # a Gaussian with a broken parameter is not seen, so the selective optimizer passes it over:
    # there it is the moments of those in view that break
    ("dense", "parameter"), ("dense", "second"), ("selective", "first"),
])
def test_the_step_the_view_and_the_parameter_are_named(
    city, tmp_path, alone, watched, optimizer, place, group, batch
):
    def change(state):
        arrays = dict(state.gaussians.groups()) if place == "parameter" else getattr(state, place)
        arrays[group][slice(3, 5) if place == "parameter" else slice(None)] = np.nan

    seen = watched(change)
    with pytest.raises(UserError) as caught:
        train(city, tmp_path, alone, *QUICK, f"train.batch={batch}",
              f"train.optimizer={optimizer}")
    text, trainer = str(caught.value), seen["trainer"]
    assert isinstance(trainer.steps, OneRank) and seen["replays"] > 4
    names = seen["names"][AT // batch]
    assert f"rank 0: the update of {group} not finite at image {AT + batch} (views {names})" in text
    assert "Gaussians (first id " in text and "\n" not in text
    # AHEAD steps may be under way, and a view tells of the update before it
    assert trainer.state.images_seen <= AT + batch * (AHEAD + 3)


def test_pruned_rows_end_the_alarm(city, tmp_path, alone, watched):
    """Policy prune: one warning, and the run goes on without looking at every step."""
    def change(state):
        state.gaussians.shN[3:5] = np.inf

    seen, looks = watched(change), []
    settle = Guard.settle

    def counted(self, state, look):
        looks.append(look)
        return settle(self, state, look)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guard, "settle", counted)
        run = train(city, tmp_path, alone, *QUICK, "train.batch=1", "train.optimizer=dense",
                    "train.on_nonfinite=prune")
    log = (run / "log.txt").read_text()
    assert log.count("warning: rank 0: ") == 1
    assert f"the update of shN not finite at image {AT + 1} (views " in log
    assert "2 of 400 Gaussians dropped" in log and len(seen["trainer"].state.gaussians) == 398
    # at the alarm, at the last image and before the checkpoint at the end
    assert len(looks) <= 4
