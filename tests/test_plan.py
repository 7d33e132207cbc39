"""`splaxel-mpi plan`: what it foretells against what ranks do, and the jobs that it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from splaxel_mpi import config as configs
from splaxel_mpi.data.city import make_city
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.tools.plan.command import make

from runs import last_checkpoint, shared_folder, small_city, train

MEMORY = 8 << 30


def settings_of(city, *overrides):
    """Settings of a run on the host."""
    return configs.parse(f"data:\n  path: {city}\n", "test", ["backend.name=host", *overrides])


def run(city, tmp_path, *arguments):
    """The command in a process of its own."""
    file = tmp_path / "city.yaml"
    file.write_text(f"data: {{path: {city}}}\nrun: {{folder: {tmp_path}}}\n")
    return subprocess.run(
        [sys.executable, "-m", "splaxel_mpi", "plan", str(file), *arguments], text=True,
        timeout=120, capture_output=True, env=dict(os.environ),
    )


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_any_rank_count(city, ranks):
    made = make(settings_of(city), ranks, MEMORY)
    assert made.refusal is None and made.cells == ranks
    assert 1 <= made.balance < 1.2 and 0 < made.participants <= ranks
    assert (made.view_bytes > 0) == (ranks > 1)
    assert made.rank_memory > made.rank_store > 0


def test_needs_no_photographs(tmp_path):
    city = small_city(tmp_path / "city")
    settings = settings_of(city)
    before = make(settings, 4, MEMORY)
    for file in (city / "images").iterdir():
        file.unlink()
    assert make(settings, 4, MEMORY) == before


def test_more_gaussians_take_more_memory_and_little_more_bytes(city):
    # without growth rows have no room for more
    as_is = settings_of(city, "densify.method=none")
    few, many = (make(as_is, 4, MEMORY, count) for count in (400, 40_000))
    assert many.rank_store == pytest.approx(100 * few.rank_store, rel=0.02)
    assert few.view_bytes < many.view_bytes < 10 * few.view_bytes
    gaussian = settings_of(city, "exchange.strategy=gaussian")
    few, many = (make(gaussian, 4, MEMORY, count) for count in (400, 40_000))
    assert many.view_bytes == pytest.approx(100 * few.view_bytes, rel=1e-9)


def test_report_and_speed(city, tmp_path):
    found = run(city, tmp_path, "--ranks", "4", "--json")
    assert found.returncode == 0, found.stderr
    made = json.loads(found.stdout)
    assert made["images_per_second"] > 0 and "H200" in made["origin"]
    assert "4 ranks" in run(city, tmp_path, "--ranks", "4").stdout


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--gaussians", "1000M", "--gpu-memory", "8G"], "use "),
        (["partition.cells=2"], "2 of 4 ranks would have no cell: set partition.cells=0"),
        (["--gaussians", "3"], "3 Gaussians are too few for 4 ranks: start 3 ranks at most"),
        (["--gpu-memory", "1"], "give ranks more memory"),
        (["--gpu-memory", "605M"], "lower train.chunk"),
        (["--gaussians", "100G", "--gpu-memory", "4000000G"], "lower checkpoint.keep"),
    ],
)
def test_doomed_jobs_are_refused(city, tmp_path, arguments, words):
    found = run(city, tmp_path, "--ranks", "4", *arguments)
    assert found.returncode == 2, found.stdout
    assert "do not start this run" in found.stderr and words in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@pytest.mark.mpi(min_size=4)
def test_foretells_what_ranks_do(city, tmp_path_factory):
    """Bytes within 15 %: Gaussians move a little. Rows alone: pytest takes most memory here."""
    from splaxel_mpi.mpi import world

    comm = world.init()
    folder = shared_folder(comm, tmp_path_factory)
    finished = train(city, folder, comm, "densify.method=none", "checkpoint.every=0",
                     "backend.name=host", "train.images=28", "log.every=28")
    if comm.rank == 0:
        made = make(settings_of(city), comm.size, MEMORY)
        series = read_series(finished / "metrics.h5")
        sent = np.nanmean(series["view_bytes"])
        assert made.view_bytes == pytest.approx(sent, rel=0.15)
        assert made.rank_store == pytest.approx(np.nanmax(series["store/max"]), rel=0.15)
        # beside rows there are some facts: the scene is tiny
        size = last_checkpoint(finished).stat().st_size
        assert made.checkpoint < size < made.checkpoint + 200_000
    comm.barrier()


def test_rows_that_grow_have_room_for_more(city):
    """As scene.rows.Rows makes it: by half, again and again, but not beyond the memory."""
    grown, tight = (make(settings_of(city, f"backend.memory={memory}"), 4, MEMORY, 560)
                    for memory in ("1G", "140k"))
    assert grown.rank_gaussians == tight.rank_gaussians == 140
    assert grown.rank_store == 150 * 965 and tight.refusal is None
    assert 140 * 965 <= tight.rank_store <= 140 * 1024


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("method", ["none", "adc"])
def test_foretells_the_city_of_the_demo(tmp_path, method):
    """Bytes and memory of four ranks within 15 %."""
    city = tmp_path / "city"
    make_city(str(city), samples=1, threads=2, extent=80.0, views=120, width=320, height=180,
              points=20_000)
    overrides = [f"data.path={city}", f"run.folder={tmp_path / 'runs'}", "backend.name=host",
                 f"densify.method={method}", "densify.start=50", "densify.every=52",
                 "checkpoint.every=0", "evaluate.every=0", "train.images=210", "log.every=105"]
    config = Path(__file__).parents[1] / "configs" / "city.yaml"
    found = subprocess.run(
        [os.environ.get("MPIRUN", "mpirun"), "-n", "4", sys.executable, "-m", "splaxel_mpi",
         "train", str(config), *overrides], timeout=360, capture_output=True, text=True,
        env=dict(os.environ),
    )
    assert found.returncode == 0, found.stderr
    series = read_series(tmp_path / "runs" / "city" / "metrics.h5")
    gaussians = round(4 * series["gaussians/mean"][np.isfinite(series["gaussians/mean"])][-1])
    made = make(configs.load(str(config), overrides), 4, MEMORY, gaussians)
    assert made.view_bytes == pytest.approx(np.nanmean(series["view_bytes"]), rel=0.15)
    assert made.rank_store == pytest.approx(np.nanmax(series["store/max"]), rel=0.15)
    assert made.rank_memory == pytest.approx(np.nanmax(series["memory/max"]), rel=0.15)
