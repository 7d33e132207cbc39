"""`splaxel-mpi bench threshold`, `batch` and `quality` on a small scene."""

import json

import pytest
from click.testing import CliRunner
from runs import SHORT

from splaxel_mpi import config, log
from splaxel_mpi.cli import cli
from splaxel_mpi.errors import UserError
from splaxel_mpi.tools.bench import batch, threshold, trainings, versus

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
FEW = [*SHORT, "train.images=16", "partition.cells=3", "backend.threads=1"]


@pytest.fixture
def alone():
    yield pytest.importorskip("mpi4py.MPI").COMM_SELF
    log.close()


def settings_of(city, folder, *overrides):
    base = f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {folder}\n"
    return config.parse(base, "test", [*FEW, *overrides])


def test_settings_of_a_comparison(city, tmp_path):
    settings = settings_of(city, tmp_path, "exchange.precision=float16", "train.order=balanced")
    found = trainings.changed(settings, "x", *trainings.PLAIN, *trainings.GAUSSIAN)
    assert found.run.name == "small-x" and found.checkpoint.every == 0
    assert found.exchange.strategy == "gaussian" and found.exchange.precision == "float32"
    with pytest.raises(UserError, match="saturation.threshold: expected at most 0.1"):
        trainings.changed(settings, "x", "saturation.threshold=2")


def test_thresholds(city, tmp_path, alone):
    """By command, since its rows are those of the others. Opaque points saturate at once."""
    file, folder = tmp_path / "table.json", tmp_path / "runs"
    settings = settings_of(city, folder, "scene.initial_opacity=0.95", "scene.initial_scale=2",
                           "train.images=32", "densify.method=none")
    (tmp_path / "settings.yaml").write_text(settings.to_yaml())
    options = ["--threshold", "1e-6", "--threshold", "0.1", "--json", str(file)]
    done = CliRunner().invoke(
        cli, ["bench", "threshold", str(tmp_path / "settings.yaml"), "train.batch=2", *options]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(file.read_text())
    assert report["command"]["thresholds"] == [1e-6, 0.1] and report["ranks"] == 1
    assert report["settings"]["train"]["batch"] == 2
    off, low, high = report["rows"]
    assert [row["threshold"] for row in report["rows"]] == [None, 1e-6, 0.1]
    assert off["masked"] == off["tiles"] == 0 and low["masked"] < high["masked"] < 1
    assert high["tiles"] < low["tiles"]
    assert abs(high["psnr"] - off["psnr"]) < 0.5 and abs(low["psnr"] - off["psnr"]) < 0.05
    lines = [line.split() for line in done.output.splitlines()]
    assert ["1e-06", f"{low['psnr']:.2f}"] in [line[:2] for line in lines]
    assert (folder / "small-0.1" / "summary.json").exists()


@pytest.mark.parametrize("command", ["threshold", "ablation", "scaling", "bytes", "ghosts"])
def test_a_report_that_cannot_be_written_is_told_first(city, tmp_path, alone, command):
    """Before hours of measuring, and without a trace of the attempt."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(settings_of(city, tmp_path / "runs").to_yaml())
    (tmp_path / "there").write_text("kept")
    arguments = [str(settings)] if command == "threshold" else ["--gaussians", "300"]
    for place in ("no/x.json", "there/x.json", "."):
        done = CliRunner().invoke(
            cli, ["bench", command, *arguments, "--json", str(tmp_path / place)]
        )
        assert isinstance(done.exception, UserError) and "cannot be written" in str(done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.yaml", "there"]


@pytest.mark.parametrize("command", ["threshold", "batch", "quality", "boundaries"])
def test_the_baseline_is_not_compared_with_itself(city, tmp_path, alone, command):
    settings = tmp_path / "settings.yaml"
    settings.write_text(settings_of(city, tmp_path, "exchange.strategy=gaussian").to_yaml())
    done = CliRunner().invoke(cli, ["bench", command, str(settings)])
    assert isinstance(done.exception, UserError) and "is the baseline" in str(done.exception)


def test_batches(city, tmp_path, alone):
    lines = []
    rows = batch.run(settings_of(city, tmp_path), [2, 8], alone, lines.append)
    assert [row["batch"] for row in rows] == [2, 8] and len(lines) == 3
    for row in rows:
        assert row["ours"]["images"] == row["gaussian"]["images"] == 16
        # the same views in the same steps, but for masks and the stop
        assert row["ours"]["psnr"] == pytest.approx(row["gaussian"]["psnr"], abs=0.1)
    assert rows[0]["ours"]["psnr"] != rows[1]["ours"]["psnr"]


def test_quality_against_the_baseline(city, tmp_path, alone):
    lines = []
    rows = versus.run(settings_of(city, tmp_path), 2, alone, lines.append)
    assert [(row["seed"], row["variant"]) for row in rows] == [
        (0, "ours"), (0, "gaussian"), (1, "ours"), (1, "gaussian"), ("mean", "ours"),
        ("mean", "gaussian"),
    ]
    mean = rows[4]
    assert mean["psnr"] == pytest.approx((rows[0]["psnr"] + rows[2]["psnr"]) / 2)
    assert rows[0]["psnr"] != rows[2]["psnr"]
    assert mean["psnr"] > rows[5]["psnr"] - 0.1
    assert lines[5].split()[:3] == ["mean", "ours", f"{mean['psnr']:.2f}"]


@pytest.mark.mpi(min_size=2)
def test_bytes_of_ranks(comm, city, tmp_path_factory):
    """The rows of all ranks are the same, and tell what ranks sent."""
    from runs import shared_folder

    folder = shared_folder(comm, tmp_path_factory)
    settings = settings_of(city, folder, "partition.cells=0")
    try:
        rows = versus.run(settings, 1, comm, lambda line: None)
    finally:
        log.close()
    assert comm.bcast(rows) == rows
    assert all(row["kilobytes"] > 1 and row["ranks"] == comm.size for row in rows)
