"""`splaxel-mpi bench pictures`: what every rank draws, skips and exchanges."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from runs import last_checkpoint, shared_folder, train

from splaxel_mpi import config
from splaxel_mpi.cli import cli
from splaxel_mpi.errors import UserError
from splaxel_mpi.tools.bench import pictures
from splaxel_mpi.tools.bench.panels import (
    EMPTY, GAP, LEAST, OUTSIDE, RECEIVED, SATURATED, SENT, SHOWN, Panel, sheet,
)
from splaxel_mpi.train.world import make_world

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
ROOT = Path(__file__).resolve().parent.parent
CITY = ("--gaussians", "3k", "--side", "150", "--size", "80x48", "--count", "2")


def invoke(*arguments):
    return CliRunner().invoke(cli, ["bench", "pictures", *map(str, arguments)])


def settings(*overrides):
    return config.parse("", "test", ["data.path=.", *overrides])


def test_a_sheet_a_view_and_a_contact_sheet(mpirun, tmp_path):
    """Three ranks that own tiles, as a user starts them."""
    done = mpirun(
        3, "-m", "splaxel_mpi", "bench", "pictures", "--out", tmp_path / "out", *CITY,
        "--views", "street", "exchange.strategy=owner", timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout
    names = ["contact.png", "street_000.png", "street_001.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    ranks = r"(.*rank \d \(cell \d\): draws \d+%, sends \d+%, gets \d+%, saturated \d+%){3}"
    assert len(re.findall(rf"street_00\d\.png:{ranks}", done.stdout)) == 2
    width, height = Image.open(tmp_path / "out" / "street_000.png").size
    # the image, three ranks and the legend in three columns and two rows
    assert width == 3 * LEAST + 4 * GAP and height > 2 * LEAST * 48 / 80


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["overlap", "owner"])
def test_panels_show_what_ranks_do(comm, strategy):
    overrides = [f"exchange.strategy={strategy}", "saturation.threshold=0.05",
                 f"partition.cells={comm.size + 1}"]
    chosen = settings(*overrides)
    world = make_world(chosen, comm)
    source = pictures.city(20_000, 150.0, "mixed", 6, (160, 96))(chosen, world)
    look = pictures.Look(chosen, world, source)
    found = [look.at(view) for view in source.views]
    if comm.rank:
        assert found == [(None, None)] * 6
        return
    seen = 0
    for final, panels in found:
        flags = np.array([panel.flags for panel in panels])
        kinds = [(flags & kind > 0) for kind in (OUTSIDE, EMPTY, SATURATED, SHOWN)]
        assert (np.sum(kinds, axis=0) == 1).all()  # each tile is one of these at each rank
        shown, sent, received = ((flags & kind) > 0 for kind in (SHOWN, SENT, RECEIVED))
        assert not (sent & ~shown).any()
        # what is sent comes to somebody, and the other way round
        assert (sent.any(0) == received.any(0)).all()
        if strategy == "owner":
            assert received.sum(0).max() <= 1 and not (sent & received).any()
        for rank, panel in enumerate(panels):
            alone = shown[rank] & ~shown[np.arange(len(panels)) != rank].any(axis=0)
            # masked cells behind it add less than the threshold, of 255 steps; and rounding
            off = panel.image[alone].astype(int) - final[alone]
            assert not alone.any() or np.abs(off).max() <= 0.05 * 255 + 1
            assert not panel.image[(flags[rank] & (OUTSIDE | EMPTY)) > 0].any()
        seen |= np.bitwise_or.reduce(flags, axis=None)
    assert seen == OUTSIDE | EMPTY | SATURATED | SHOWN | SENT | RECEIVED


def test_colours(tmp_path):
    image = np.zeros((4, 7, 3), np.uint8)
    image[:2] = 255, 128, 0
    flags = [OUTSIDE, EMPTY, SATURATED, SHOWN, SHOWN | SENT, SHOWN | RECEIVED,
             SHOWN | SENT | RECEIVED]
    bright, _, dark, _ = Panel("", image, np.tile(np.uint8(flags), (4, 1))).shaded().astype(int)
    for k in (0, 1, 2):  # greys, not darker from shade to shade
        assert np.ptp(bright[k]) <= 8 and np.ptp(dark[k]) <= 8
    assert dark[0].max() < dark[1].min() < dark[2].min() < bright[2].min()
    np.testing.assert_array_equal(bright[3], image[0, 0])
    for row in (bright, dark):
        assert row[4].argmax() == 1 and row[5].argmax() == 2  # green, blue
        np.testing.assert_array_equal(row[6], row[4])
    sheet(tmp_path / "a.png", "a title that is far too long for the panel " * 3, image,
          [Panel("rank 0", image, np.tile(np.uint8(flags), (4, 1)))], 100)
    assert Image.open(tmp_path / "a.png").size[0] == 2 * LEAST + 3 * GAP


@pytest.fixture(scope="module")
def trained(city, tmp_path_factory, alone):
    """Folder of a short run with three cells."""
    return train(city, tmp_path_factory.mktemp("runs"), alone, "partition.cells=3",
                 "train.images=16")


def test_a_run_and_its_model(city, trained, tmp_path):
    """The newest checkpoint of a run, a checkpoint by name and the PLY show the same views."""
    file = tmp_path / "run.yaml"
    file.write_text(f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {trained.parent}\n"
                    "partition:\n  cells: 3\n")
    view = ("--view", "street_0001.jpg")
    done = invoke(file, "--out", tmp_path / "run", *view)
    assert done.exit_code == 0, done.output
    assert "rank 0 (cells 0-2): draws" in done.output and "sends 0%, gets 0%" in done.output
    others = [("--model", last_checkpoint(trained), file),
              ("--model", trained / "model.ply", f"data.path={city}", "partition.cells=3")]
    first = np.asarray(Image.open(tmp_path / "run" / "street_0001.png")).astype(int)
    for k, arguments in enumerate(others):
        done = invoke(*arguments, "--out", tmp_path / str(k), *view)
        assert done.exit_code == 0, done.output
        other = np.asarray(Image.open(tmp_path / str(k) / "street_0001.png"))
        # the tree of the PLY is a new one: panels of this one rank differ by rounding alone
        assert np.abs(first - other).max() <= 1
    assert invoke(file, "--out", tmp_path / "all", "--count", 2).exit_code == 0
    assert len(list((tmp_path / "all").iterdir())) == 3


@pytest.mark.parametrize("arguments, message", [
    (["exchange.strategy=gaussian"], "strategy gaussian exchanges no partial pixels"),
    (["--view", "a.jpg"], "--view needs CONFIG or --model"),
    (["no.yaml"], "no.yaml"),
])
def test_mistakes_of_a_city(tmp_path, arguments, message):
    done = invoke(*arguments, "--out", tmp_path, *CITY)
    assert isinstance(done.exception, UserError) and message in str(done.exception)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("kept")
    done = invoke("--out", tmp_path / "file", *CITY)
    assert isinstance(done.exception, UserError) and "file: cannot be written" in str(
        done.exception)


def test_mistakes_of_a_scene(city, tmp_path, trained):
    data, out = f"data.path={city}", ("--out", tmp_path)
    for arguments, message in (
        (["--model", "model.obj", data], "not a model; give a .ply or a checkpoint"),
        (["--model", trained / "model.ply", data, "--view", "b.jpg"], "no view is called b.jpg"),
    ):
        done = invoke(*arguments, *out)
        assert isinstance(done.exception, UserError) and message in str(done.exception)


@pytest.mark.mpi(min_size=2)
def test_ranks_look_at_a_run(comm, city, tmp_path_factory):
    """A run of all ranks, looked at by all of them: its own tree, and pixels that travel."""
    folder = shared_folder(comm, tmp_path_factory)
    train(city, folder, comm, "train.images=16")
    chosen = config.parse(f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {folder}\n", "t")
    told = []
    pictures.run(chosen, pictures.trained(None, 3, ()), folder / "out", 80, comm, told.append)
    assert len(told) == (4 if comm.rank == 0 else 0)
    if comm.rank == 0:
        assert any(re.search(r"sends [1-9]\d*%", line) for line in told)
        assert (folder / "out" / "contact.png").exists()
