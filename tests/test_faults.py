"""What goes wrong in a run ends with one line or a traceback, never with a broken model."""

import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from runs import last_checkpoint, train
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.scene.ply import read_ply

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parent.parent

# runs the tool with one function replaced on rank 1 by one that fails at its second call
BOMB = """
import importlib, os, sys
module, owner, name, fault = sys.argv[1:5]
sys.argv[1:5] = []
place = importlib.import_module(module)
place = getattr(place, owner) if owner else place
whole, calls = getattr(place, name), []

def failing(*args, **kwargs):
    calls.append(1)
    if len(calls) == 2 and os.environ["OMPI_COMM_WORLD_RANK"] == "1":
        if fault == "segfault":
            import ctypes
            ctypes.string_at(0)
        raise RuntimeError("the bomb")
    return whole(*args, **kwargs)

setattr(place, name, failing)
from splaxel_mpi.cli import main
main()
"""


def scene(folder, centers, points):
    """COLMAP text model of cameras that look along z, with photographs of noise."""
    from PIL import Image

    random = np.random.default_rng(1)
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    (folder / "images").mkdir()
    lines = []
    for k, (x, y, z) in enumerate(centers):
        lines.append(f"{k + 1} 1 0 0 0 {-x!r} {-y!r} {-z!r} 1 {k:03}.png\n\n")
        pixels = random.integers(0, 256, (32, 40, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{k:03}.png")
    (model / "cameras.txt").write_text("1 PINHOLE 40 32 40 40 20 16\n")
    (model / "images.txt").write_text("".join(lines))
    rows = [f"{k + 1} {x!r} {y!r} {z!r} 200 100 50 0\n" for k, (x, y, z) in enumerate(points)]
    (model / "points3D.txt").write_text("".join(rows))
    return folder


def cloud(count=60):
    """Points around (0, 0, 6), lists of floats."""
    points = np.random.default_rng(0).normal(size=(count, 3)) + [0, 0, 6]
    return points.tolist()


@pytest.mark.parametrize("group", ["position", "scale", "opacity", "rotation", "sh0"])
def test_divergence_ends_the_run(city, tmp_path, alone, group):
    with pytest.raises(UserError, match="training diverged; lower train.rates"):
        train(city, tmp_path, alone, f"train.rates.{group}=1e300", "densify.method=none",
              "checkpoint.every=4")
    assert not list(tmp_path.rglob("*.ply")) and not list(tmp_path.rglob("checkpoint_*.h5"))


def test_nothing_left_ends_the_run(city, tmp_path, alone):
    with pytest.raises(UserError, match="no Gaussian is left.*densify.prune_opacity"):
        train(city, tmp_path, alone, "densify.prune_opacity=0.999")


def test_nothing_visible_ends_the_run(tmp_path, alone):
    centers = [[0.5 * k, 0.0, 50.0] for k in range(4)]
    data = scene(tmp_path / "data", centers, cloud())
    with pytest.raises(UserError, match="none of the .* views .* shows a Gaussian"):
        train(data, tmp_path, alone)


@pytest.mark.parametrize("views", [1, 4])
def test_cameras_at_one_place_move_gaussians(tmp_path, alone, views):
    data = scene(tmp_path / "data", [[0.0, 0.0, 0.0]] * views, cloud())
    run = train(data, tmp_path, alone, "data.holdout=0")
    model, _ = read_ply(run / "model.ply")
    assert len(model) >= 60
    first = train(data, tmp_path, alone, "data.holdout=0", "densify.method=none")
    model, _ = read_ply(first / "model.ply")
    assert (np.abs(model.means[np.argsort(model.ids)] - cloud()).max(1) > 1e-4).mean() > 0.5


def test_far_coordinates_come_back(tmp_path, alone):
    shift = np.array([500000.0, 5.4e6, 300.0])
    points = (np.array(cloud()) + shift).tolist()
    data = scene(tmp_path / "data", [[500000.0 + k, 5.4e6, 300.0] for k in range(4)], points)
    run = train(data, tmp_path, alone, "densify.method=none")
    model, _ = read_ply(run / "model.ply", dtype=np.float64)
    np.testing.assert_allclose(np.median(model.means, 0), np.median(points, 0), atol=1)
    assert "steps of 0.5" in (run / "log.txt").read_text()
    assert np.abs(json.loads((run / "summary.json").read_text())["origin"]).max() > 5e6


def test_one_job_at_a_time(city, tmp_path, alone):
    run = train(city, tmp_path, alone, "train.images=4")
    handle = os.open(run, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as a job on another node would hold it
    for resume in (False, True):
        with pytest.raises(UserError, match="another job is writing this run"):
            train(city, tmp_path, alone, resume=resume)
    os.close(handle)
    assert not (tmp_path / "small.1").exists()
    train(city, tmp_path, alone, "train.images=8", resume=True)


def test_a_start_that_fails_leaves_the_old_run(city, tmp_path, alone):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "precious").write_text("kept")
    with pytest.raises(UserError, match="data.cache"):
        train(city, tmp_path, alone, "data.cache=1K")
    assert (tmp_path / "small" / "precious").read_text() == "kept"
    run = train(city, tmp_path, alone, "train.images=4")
    assert "small.1" in (run / "log.txt").read_text()


def test_metrics_reach_the_checkpoint_of_a_killed_run(city, tmp_path, alone, monkeypatch):
    """Rows wait in memory; those before a checkpoint must not be lost with the process."""
    from splaxel_mpi.train import job

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            train(city, tmp_path, alone)
    run = tmp_path / "small"
    assert last_checkpoint(run).name.endswith("24.h5")
    assert read_series(run / "metrics.h5")["images_seen"].max() >= 16


def test_nothing_to_train_is_told(city, tmp_path, alone):
    run = train(city, tmp_path, alone)
    shutil.copytree(run, tmp_path / "again" / "small")
    train(city, tmp_path / "again", alone, "train.images=12", resume=True)
    assert "nothing is left to train" in (tmp_path / "again" / "small" / "log.txt").read_text()


@pytest.mark.parametrize(
    "place, expected",
    [
        (("splaxel_mpi.train.render", "Renderer", "draw", "error"), "RuntimeError: the bomb"),
        (("splaxel_mpi.data.images", "", "decode", "error"), "RuntimeError: the bomb"),
        (("splaxel_mpi.train.render", "Renderer", "draw", "segfault"), "Fatal Python error: Segm"),
    ],
)
def test_a_crash_of_one_rank_ends_all(city, tmp_path, mpirun, place, expected):
    """While the others wait in collectives: in seconds, with a traceback and a bad status."""
    (tmp_path / "bomb.py").write_text(BOMB)
    (tmp_path / "run.yaml").write_text(f"data: {{path: '{city}'}}\nrun: {{folder: '{tmp_path}'}}\n")
    start = time.monotonic()
    done = mpirun(3, tmp_path / "bomb.py", *place, "train", tmp_path / "run.yaml",
                  "train.images=40", "backend.threads=1",
                  env=dict(os.environ, PYTHONPATH=str(ROOT)))
    assert done.returncode not in (0, 2, 124, 137) and time.monotonic() - start < 50
    assert expected in done.stdout and "bomb.py" in done.stdout
