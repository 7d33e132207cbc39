"""The main job on a small city: what comes out, repeats, resumes, and does not depend on ranks."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from runs import (
    assert_same, last_checkpoint, shared_folder, small_city, state_of, stop_half_way, train,
    train_on_root,
)
from splaxel_mpi.checkpoint.resume import load
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.scene.ply import read_ply

pytestmark = pytest.mark.timeout(300)
EXACT = ["backend.precision=float64", "render.stop=0", "train.images=32",
         "saturation.enabled=false"]


@pytest.fixture(scope="module")
def finished(city, tmp_path_factory, alone):
    """Folder of a finished run."""
    return train(city, tmp_path_factory.mktemp("runs"), alone)


def test_everything_comes_out(finished):
    summary = json.loads((finished / "summary.json").read_text())
    for key in ("psnr", "ssim", "gaussians", "images_seen", "ranks", "seconds",
                "images_per_second", "bytes_exchanged", "versions"):
        assert summary[key] is not None, key
    assert summary["images_seen"] == 48 and summary["ranks"] == 1
    assert 0 < summary["psnr_initial"] < 20
    log = (finished / "log.txt").read_text()
    assert "held-out PSNR" in log and "a view meets 1.0 of 1 cells" in log
    assert "will not grow" not in log
    pictures = sorted((finished / "pictures").glob("*.png"))
    assert len(pictures) == 2
    assert Image.open(pictures[0]).size == (240, 45)  # photograph | rendering | difference


def test_training_improves_on_the_points(city, tmp_path, alone):
    run = train(city, tmp_path, alone, "densify.method=none", "train.images=320")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["psnr"] > summary["psnr_initial"] + 3
    assert summary["gaussians"] == 400


def test_a_run_that_ends_before_it_grows_says_so(city, tmp_path, alone):
    run = train(city, tmp_path, alone, "densify.start=40")  # growth ends at 43 of 48 images
    assert "the scene will not grow" in (run / "log.txt").read_text()


def test_metrics_follow_the_run(finished):
    series = read_series(finished / "metrics.h5")
    seen = series["images_seen"]
    assert seen[0] == 0 and seen[-1] == 48 and (np.diff(seen) >= 0).all()
    rows = np.isfinite(series["loss"])
    assert (series["loss"][rows] > 0).all() and rows.sum() == 3
    assert series["gaussians/mean"][rows][-1] > 400


def test_ply_is_the_model(finished):
    model, degree = read_ply(finished / "model.ply")
    stored = load(last_checkpoint(finished)).gaussians
    assert degree == 3 and len(model) == len(stored)
    for name, array in stored.groups():
        np.testing.assert_array_equal(getattr(model, name), array, err_msg=name)


def test_equal_runs_give_equal_numbers(finished, city, tmp_path, alone):
    again = train(city, tmp_path, alone)
    assert_same(last_checkpoint(finished), last_checkpoint(again))


def test_another_seed_gives_other_numbers(finished, city, tmp_path, alone):
    other = train(city, tmp_path, alone, "run.seed=1")
    one, two = state_of(last_checkpoint(finished)), state_of(last_checkpoint(other))
    assert one["gaussians/means"].shape != two["gaussians/means"].shape or (
        one["gaussians/means"] != two["gaussians/means"]
    ).any()


def test_resume_equals_unbroken(finished, city, tmp_path, alone):
    resumed = stop_half_way(finished, tmp_path)
    train(city, tmp_path, alone, resume=True)
    assert_same(last_checkpoint(finished), last_checkpoint(resumed))
    before = json.loads((finished / "summary.json").read_text())
    after = json.loads((resumed / "summary.json").read_text())
    for key in ("psnr", "ssim", "psnr_initial", "gaussians", "images_seen"):
        assert before[key] == after[key], key
    seen = read_series(resumed / "metrics.h5")["images_seen"]
    assert (np.diff(seen) >= 0).all() and seen[-1] == 48


def test_resume_of_mcmc_equals_unbroken(city, tmp_path, alone):
    """Noise, relocation and the size of the scene follow from what a checkpoint holds."""
    method = ["densify.method=mcmc", "densify.limit=450", "densify.prune_opacity=0.08"]
    finished = train(city, tmp_path / "whole", alone, *method)
    (tmp_path / "part").mkdir()
    resumed = stop_half_way(finished, tmp_path / "part")
    train(city, tmp_path / "part", alone, *method, resume=True)
    assert_same(last_checkpoint(finished), last_checkpoint(resumed))
    ids = state_of(last_checkpoint(finished))["gaussians/ids"]
    assert len(ids) > 400 and (ids >= 400).sum() > len(ids) - 400  # grown, and relocated


def test_more_images_after_the_end(finished, city, tmp_path, alone):
    shutil.copytree(finished, tmp_path / "small")
    train(city, tmp_path, alone, "train.images=56", resume=True)
    assert last_checkpoint(tmp_path / "small").name.endswith("56.h5")


def test_a_finished_run_that_is_resumed_keeps_its_figures(finished, city, tmp_path, alone):
    shutil.copytree(finished, tmp_path / "small")
    train(city, tmp_path, alone, resume=True)
    before, after = (json.loads((run / "summary.json").read_text())
                     for run in (finished, tmp_path / "small"))
    for key in ("psnr", "gaussians", "images_seen", "bytes_exchanged"):
        assert after[key] == before[key], key
    # the time of the resumed process, which does not train, is added
    assert 0 < after["images_per_second"] <= before["images_per_second"]


def test_a_new_run_moves_the_old_one_aside(finished, city, tmp_path, alone):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "precious").write_text("kept")
    train(city, tmp_path, alone, "train.images=4")
    assert (tmp_path / "small.1" / "precious").read_text() == "kept"
    assert (tmp_path / "small" / "summary.json").exists()


def test_resume_of_nothing_says_so(city, tmp_path, alone):
    with pytest.raises(UserError, match="no run to resume"):
        train(city, tmp_path, alone, resume=True)


def test_resume_with_other_data_says_so(finished, tmp_path, alone):
    other = small_city(tmp_path / "other-city")
    (other / "images" / "aerial_0000.jpg").unlink()
    with pytest.raises(UserError, match="aerial_0000.jpg"):
        train(other, tmp_path, alone)
    shutil.copytree(finished, tmp_path / "small")
    half = ["data.scale=2"]
    city = small_city(tmp_path / "city")
    with pytest.raises(UserError, match="another data set"):
        train(city, tmp_path, alone, *half, resume=True)


@pytest.mark.mpi(min_size=2)
def test_ranks_resume_and_repeat(comm, city, tmp_path_factory):
    """On this rank count: equal runs are equal, and stop + resume is the unbroken run."""
    folder = shared_folder(comm, tmp_path_factory)
    first = train(city, folder / "first", comm)
    second = train(city, folder / "second", comm)
    assert_same(last_checkpoint(first), last_checkpoint(second))
    (folder / "resumed").mkdir(exist_ok=True)
    if comm.rank == 0:
        stop_half_way(first, folder / "resumed")
    comm.barrier()
    train(city, folder / "resumed", comm, resume=True)
    assert_same(last_checkpoint(first), last_checkpoint(folder / "resumed" / "small"))


@pytest.fixture(scope="module")
def path_of_one(city, tmp_path_factory):
    """Folder of the run of one rank that all ranks follow."""
    from mpi4py import MPI

    folder = shared_folder(MPI.COMM_WORLD, tmp_path_factory)
    return train_on_root(city, folder, MPI.COMM_WORLD, *EXACT)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "option",
    ["partition.cells=0", "partition.cells=1", "partition.cells=5", "exchange.strategy=owner"],
    ids=["one a rank", "ranks without", "several", "owner"],
)
def test_ranks_follow_the_path_of_one(comm, city, path_of_one, tmp_path_factory, option):
    """Trained in float64 without stopping, densification included, P ranks make the scene of
    one rank: the same ids, and parameters that differ by summation order alone (1e-13
    measured)."""
    folder = shared_folder(comm, tmp_path_factory)
    many = train(city, folder, comm, *EXACT, option)
    found, expected = state_of(last_checkpoint(many)), state_of(last_checkpoint(path_of_one))
    np.testing.assert_array_equal(found["gaussians/ids"], expected["gaussians/ids"])
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN"):
        a, b = found[f"gaussians/{name}"], expected[f"gaussians/{name}"]
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max(), name
    comm.barrier()
