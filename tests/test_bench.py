"""`splaxel-mpi bench kernels` as a user runs it, on the host backend."""

import json
import os
import subprocess
import sys
from pathlib import Path

import make_dataset
import numpy as np
import pytest
import splats as make
from scenes import random_gaussians

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.data import gaussian_city
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.ply import write_ply
from splaxel_mpi.tools.bench import base, floors, halves, options

ROOT = Path(__file__).resolve().parent.parent
STAGES = ["project", "lists", "rasterize", "compose", "loss", "compose back", "rasterize back",
          "zero gradients", "project back", "adam, selective", "adam, dense"]
SMALL = ("--backend", "host", "--gaussians", "2k", "--side", "150", "--size", "40x30")


def run(*arguments, command="kernels", **variables):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-m", "splaxel_mpi", "bench", command, *map(str, arguments)],
        env=env, timeout=100, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def test_city_in_both_kinds_of_views(tmp_path):
    done = run(*SMALL, "--views", "street", "--views", "aerial", "--count", 2, "--half",
               "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["bytes_per_second"] > 1e8 and found["backend"] == "host"
    assert found["command"]["gaussians"] == [2000] and not done.stderr
    street, aerial = found["scenes"]
    assert street["scene"] == "city of 0.002 M Gaussians, 150 m, street"
    for scene in (street, aerial):
        assert list(scene["stages"]) == STAGES and scene["views"] == 2
        assert all(stage["ms"] > 0 for stage in scene["stages"].values())
        wholes = ["forward", "backward", "step_without_loss", "step", "train step"]
        assert list(scene["whole"]) == wholes and min(scene["whole"].values()) > 0
        counts = scene["counts"]
        assert 0 < counts["drawn"] <= counts["visible"] < counts["gaussians"] == 2000
        assert counts["pairs"] > counts["instances"] > counts["held"] > 0
        assert counts["pixels"] == 40 * 30
        assert list(scene["half"]) == [*halves.STAGES, "sum"]
        shares = [(row["drawn"], row["masked"]) for row in scene["half"].values()]
        assert np.shape(shares) == (7, 2, 2) and np.min(shares) > 0
    assert aerial["counts"] != street["counts"]
    # what is printed is what is written
    assert f"visible {street['counts']['visible']:,}, drawn" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith("rasterize back"))
    stage = street["stages"]["rasterize back"]
    assert row.split()[2:5] == [f"{stage['ms']:.3f}", f"{stage['floor_ms']:.3f}", stage["bound"]]


def test_trained_scene_under_the_cameras_of_its_data(tmp_path):
    make_dataset.make(tmp_path / "data", views=5, size=(24, 16))
    gaussians = random_gaussians(300, 1, np.float32)
    write_ply(tmp_path / "model.ply", gaussians)
    done = run("--backend", "host", "--model", tmp_path / "model.ply", "--data",
               tmp_path / "data", "--count", 3, "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    (scene,) = json.loads((tmp_path / "figures.json").read_text())["scenes"]
    assert (scene["width"], scene["height"], scene["views"]) == (24, 16, 3)
    assert scene["counts"]["gaussians"] == 300 and "300 Gaussians" in done.stdout


@pytest.mark.parametrize("arguments, message", [
    (["--model", "a.ply"], "--model and --data belong together"),
    (["--gaussians", "many"], "'many' is not a count such as 250k or 4M"),
    (["--gaussians", "0"], "'0' is not a count"),
    (["--size", "1920"], "'1920' is not a size such as 1920x1080"),
    (["--gaussians", "1k", "--gaussians", "2k"], "give --side as often as --gaussians"),
    (["--side", "100"], "100.0 is not in the range"),
    (["--model", "a.ply", "--data", "nowhere"], "nowhere: data set not found"),
    ([*SMALL, "--peer", "gsplat"], "--peer gsplat: No module named 'gsplat'"),
])
def test_mistakes_are_one_line(tmp_path, arguments, message):
    (tmp_path / "gsplat.py").write_text("raise ImportError(\"No module named 'gsplat'\")\n")
    done = run(*arguments, PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT),
                                                       os.environ.get("PYTHONPATH", "")]))
    assert done.returncode == 2 and message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout


def test_several_processes_are_refused(mpirun):
    done = mpirun(2, "-m", "splaxel_mpi", "bench", "kernels", *SMALL,
                  env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode != 0
    assert "measures one process: start it without mpirun" in done.stdout


@pytest.mark.parametrize("text, count", [("7", 7), ("250k", 250_000), ("1.5M", 1_500_000)])
def test_counts(text, count):
    assert options.GAUSSIANS.convert(text, None, None) == count


def test_options_know_the_city():
    found = options.KINDS, options.LEAST_SIDE
    assert found == (gaussian_city.KINDS, gaussian_city.LEAST_SIDE)


def test_floors_follow_bytes_and_instructions():
    """Numbers that can be counted by hand: 2 of 10 Gaussians visible, 3 instances on one tile."""
    counts = floors.Counts(10, 2, 1, 3, 1, 256, 512)
    moved = floors.stage_bytes(counts, 1)
    assert moved["project"] == 10 * 24 + 2 * (53 * 4 + 48 + 8 + 12)
    assert moved["loss"] == 256 * 3 * 9 and moved["zero gradients"] == 10 * 236
    assert moved["adam, dense"] == 10 * 59 * 28
    assert moved["compose"] == 2 * 4096
    # one of two visible rows has a gradient: 4 + 36 + 1 + 16 bytes a row, then the row's own
    assert moved["project back"] == 2 * 57 + 48 + 59 * 12
    slow = base.Machine("cuda", "", 1e6, 1e6)  # a microsecond a byte and an instruction
    found = floors.floors(counts, 1, slow)
    assert found["rasterize"] == (512 * 35 / 1e3, "issue")
    assert found["adam, dense"] == (10 * 59 * 28 / 1e3, "bytes")
    assert floors.floors(counts, 1, base.Machine("host", "", 1e6))["rasterize"][1] == "bytes"


def test_pairs_of_splats_that_cover_everything():
    camera = make.make_camera(64, 48)
    splats = make.make_splats([(32, 24, 900, 900, 0, 0.01, 1 + k) for k in range(5)], np.float32)
    host = HostBackend(np.float32, 1)
    lists = host.tile_lists(splats, camera)
    partial = host.rasterize(splats, lists, camera, 0.0)
    assert host.evaluated_pairs(lists, partial) == 5 * 64 * 48


def test_medians_and_tables():
    samples = base.Samples()
    for view, times in enumerate([(1, 5, 3), (9, 9, 9), (2, 2, 8)]):
        for milliseconds in times:
            samples.add("a", view, milliseconds)
    assert samples.median("a") == 3 and samples.total("a") == 14
    lines = base.table([("long name", 1), ("b", 22)], ("what", "ms"))
    assert lines == ["what       ms", "long name   1", "b          22"]


def test_models_of_another_kind(tmp_path):
    from splaxel_mpi.tools.bench import scenes

    make_dataset.make(tmp_path / "data", views=3)
    with pytest.raises(UserError, match="not a model; give a .ply or a checkpoint"):
        scenes.trained(tmp_path / "model.obj", tmp_path / "data", 1, 3, None)


def test_order_of_training():
    from splaxel_mpi.tools.bench import scenes

    gaussians = random_gaussians(4000, 2, np.float32)
    ordered = scenes.along_curve(gaussians, HostBackend(np.float32, 1))
    assert sorted(ordered.ids) == list(range(4000))
    for name, array in ordered.groups():
        np.testing.assert_array_equal(array, getattr(gaussians, name)[ordered.ids])
    # neighbours in memory are neighbours in space
    apart = [np.linalg.norm(np.diff(g.means, axis=0), axis=1).mean() for g in (ordered, gaussians)]
    assert apart[0] < 0.2 * apart[1]
