"""Masks in the main job: stored, resumed, cleared, told of."""

import h5py
import numpy as np
import pytest
from runs import assert_same, last_checkpoint, shared_folder, stop_half_way, train

from splaxel_mpi import config
from splaxel_mpi.checkpoint.resume import load
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.visibility.saturation import Saturation, make_saturation

pytestmark = [pytest.mark.timeout(300)]
# Opaque from the start and without resets, so that the few tiles of small images saturate.
OPAQUE = ["partition.cells=3", "scene.initial_opacity=0.95", "saturation.threshold=0.1",
          "densify.reset_every=0"]


@pytest.fixture(scope="module")
def finished(city, tmp_path_factory, alone):
    """Folder of a finished run with masks."""
    return train(city, tmp_path_factory.mktemp("runs"), alone, *OPAQUE)


def stored_masks(path):
    """(view, cell) -> bytes of the mask, of all ranks that wrote a checkpoint."""
    with h5py.File(path) as file:
        entries, bits = (file[f"extra/mask_{name}"][()] for name in ("entries", "bits"))
    ends = entries[:, 2].cumsum()
    return {
        (view, cell): bits[end - size : end].tobytes()
        for (view, cell, size, _, _), end in zip(entries.tolist(), ends.tolist())
    }


def test_masks_are_made_stored_and_told_of(finished):
    assert stored_masks(last_checkpoint(finished))
    series = read_series(finished / "metrics.h5")
    rows = np.isfinite(series["masked_share"])
    assert rows.sum() == 3 and series["masked_share"][rows][-1] > 0
    assert (series["flip_rate"][rows] < 1).all()
    assert series["tiles/masked/mean"][rows][-1] > 0
    assert "of the tiles of cells were masked, flip rate" in (finished / "log.txt").read_text()


def test_a_resumed_run_equals_the_unbroken_one(finished, city, tmp_path, alone):
    resumed = stop_half_way(finished, tmp_path)
    assert stored_masks(last_checkpoint(resumed))
    train(city, tmp_path, alone, *OPAQUE, resume=True)
    assert_same(last_checkpoint(finished), last_checkpoint(resumed))
    assert stored_masks(last_checkpoint(finished)) == stored_masks(last_checkpoint(resumed))


def test_masks_do_not_survive_other_cells(finished, city, tmp_path, alone, monkeypatch):
    found = []
    restore = Saturation.restore
    monkeypatch.setattr(Saturation, "restore", lambda self, *a: found.append(restore(self, *a)))
    for cells in (2, 3):
        folder = tmp_path / str(cells)
        folder.mkdir()
        stop_half_way(finished, folder)
        train(city, folder, alone, *OPAQUE, f"partition.cells={cells}", "train.images=24",
              resume=True)
    assert found == [False, True]


def test_a_reset_clears(city, tmp_path, alone, monkeypatch):
    """The reset at image 32 is the only event of this run that lets light through."""
    cleared, clear = [], Saturation.clear
    monkeypatch.setattr(
        Saturation, "clear", lambda self: cleared.append(len(self.masks.kept)) or clear(self)
    )
    train(city, tmp_path, alone, *OPAQUE, "densify.reset_every=32", "densify.start=1000000")
    assert len(cleared) == 1 and cleared[0] > 0


def test_one_cell_and_off_mean_no_masks(city, tmp_path, alone):
    settings = config.parse("data:\n  path: scene\n", "run.yaml", ["saturation.enabled=false"])
    assert make_saturation(settings.saturation, 8, 0.0) is None
    one = train(city, tmp_path, alone, *OPAQUE, "partition.cells=1", "train.images=8")
    off = train(city, tmp_path, alone, *OPAQUE, "partition.cells=1", "train.images=8",
                "saturation.enabled=false")
    assert load(last_checkpoint(one)).extra == {}
    assert_same(last_checkpoint(one), last_checkpoint(off))


def test_a_threshold_below_the_stop_is_a_mistake(city, tmp_path, alone):
    with pytest.raises(UserError, match="saturation.threshold=0.0001 is below render.stop=0.001"):
        train(city, tmp_path, alone, "partition.cells=3", "render.stop=1e-3")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("reevaluate", ["never", "residual", "always"])
def test_ranks_resume_with_masks(comm, city, tmp_path_factory, reevaluate):
    folder = shared_folder(comm, tmp_path_factory)
    options = [*OPAQUE, "partition.cells=5", f"saturation.reevaluate={reevaluate}"]
    whole = train(city, folder / "whole", comm, *options)
    (folder / "half").mkdir(exist_ok=True)
    if comm.rank == 0:
        stop_half_way(whole, folder / "half")
    comm.barrier()
    train(city, folder / "half", comm, *options, resume=True)
    one, two = last_checkpoint(whole), last_checkpoint(folder / "half" / "small")
    assert_same(one, two)
    assert stored_masks(one) == stored_masks(two) and stored_masks(one)
