"""Scripts read what a run wrote as arrays."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from runs import last_checkpoint, stop_half_way, train

from splaxel_mpi import analysis
from splaxel_mpi.analysis import checkpoints
from splaxel_mpi.errors import UserError

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def finished(city, tmp_path_factory, alone):
    """Folder of a run with three cells on one rank."""
    folder = tmp_path_factory.mktemp("runs")
    return train(city, folder, alone, "partition.cells=3", "log.ranks=true")


@pytest.fixture(scope="module")
def raw(finished):
    """{path: value} of the newest checkpoint, read by h5py alone."""
    found = {}
    with h5py.File(last_checkpoint(finished), "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]})
                        if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.fixture
def checkpoint(finished):
    with analysis.Run(finished).checkpoint() as found:
        yield found


def test_metrics_agree_with_the_summary(finished):
    run = analysis.Run(finished)
    summary = json.loads((finished / "summary.json").read_text())
    assert run.summary() == summary and run.finished() and run.name == "small"
    with run.metrics() as metrics:
        assert metrics["images_seen"][-1] == summary["images_seen"] == 48
        assert metrics.points("heldout_psnr")[1][-1] == summary["psnr"]
        assert metrics.points("heldout_psnr")[1][0] == summary["psnr_initial"]
        assert metrics.points("heldout_ssim")[1][-1] == summary["ssim"]
        gaussians = metrics.points("gaussians/mean")[1] * summary["ranks"]
        assert gaussians[-1] == summary["gaussians"]
        assert metrics.points("time")[1][-1] <= summary["seconds"]


def test_series_are_read_by_slices(finished):
    with h5py.File(finished / "metrics.h5", "r") as file:
        loss = file["loss"][()]
    with analysis.Run(finished).metrics() as metrics:
        assert metrics.rows == len(loss) and "seconds/project/full" in metrics
        assert len(list(metrics)) == len(metrics) == len(dict(metrics))
        np.testing.assert_array_equal(metrics.read("loss", slice(1, 3)), loss[1:3])
        images, values = metrics.points("gaussians/full")
        assert images.tolist() == [16, 32, 48] and values.shape == (3, 1)
        assert [len(part) for part in metrics.points("none")] == [0, 0]
        with pytest.raises(KeyError):
            metrics["none"]


def test_rows_of_a_checkpoint_are_those_of_the_file(checkpoint, raw, monkeypatch):
    monkeypatch.setattr(checkpoints, "PIECE", 100)  # several pieces of these few rows
    for name in ("gaussians/means", "adam/second/shN", "densify/seen_count"):
        rows, whole = checkpoint[name], raw[name]
        assert rows.shape == whole.shape and rows.dtype == whole.dtype and rows.ndim == whole.ndim
        for key in (np.s_[:], np.s_[3:9], np.s_[-5:], np.s_[::7], np.s_[::-3], np.s_[:0], 2, -1,
                    np.s_[1::2, ...]):
            np.testing.assert_array_equal(rows[key], whole[key], err_msg=f"{name} {key}")
        np.testing.assert_array_equal(np.asarray(rows), whole)
        np.testing.assert_array_equal(np.concatenate([b for _, b in rows.blocks(70)]), whole)
    np.testing.assert_array_equal(checkpoint["extra/mask_facts"], raw["extra/mask_facts"])
    means = checkpoint["gaussians/means"]
    np.testing.assert_array_equal(means[5:8, 1], raw["gaussians/means"][5:8, 1])
    with pytest.raises(IndexError):
        means[len(means)]
    with pytest.raises(TypeError, match="slice or a number"):
        means[[1, 2]]


def test_facts_of_a_checkpoint_are_arrays_or_text(checkpoint, raw):
    assert checkpoint.gaussians == len(raw["gaussians/ids"]) and checkpoint.ranks == 1
    assert checkpoint["run/images_seen"] == 48
    np.testing.assert_array_equal(checkpoint["run/origin"], raw["run/origin"])
    assert checkpoint["config/effective"] == raw["config/effective"].decode()
    assert len(checkpoint["tree/axis"]) == 2
    apart = {"layout/contents"} | {name for name in raw if name.startswith("checksums/")}
    assert set(checkpoint) == set(raw) - apart
    with pytest.raises(KeyError):
        checkpoint["gaussians/none"]


def test_a_damaged_row_is_not_handed_out(finished, tmp_path):
    path = tmp_path / "checkpoint_000000000048.h5"
    path.write_bytes(last_checkpoint(finished).read_bytes())
    with h5py.File(path) as file:
        place = file["gaussians/sh0"].id.get_offset()
    with open(path, "r+b") as file:
        file.seek(place + 5)
        byte = file.read(1)
        file.seek(place + 5)
        file.write(bytes([byte[0] ^ 1]))
    with analysis.Checkpoint(path) as checkpoint:
        assert len(checkpoint["gaussians/means"][:10]) == 10
        with pytest.raises(UserError, match="sh0 does not match"):
            checkpoint["gaussians/sh0"][:10]


def test_frames_of_pandas(finished, checkpoint):
    with analysis.Run(finished).metrics() as metrics:
        if not installed("pandas"):
            with pytest.raises(UserError, match="pandas is not installed"):
                metrics.frame()
            with pytest.raises(UserError, match="pandas is not installed"):
                checkpoint.frame()
            return
        frame = metrics.frame(["loss", "gaussians/full"])
        assert list(frame.columns) == ["loss", "gaussians/full/0"]
        assert frame.index.tolist() == metrics["images_seen"].tolist()
        assert "l1" in metrics.frame(rows=slice(2)).columns
    frame = checkpoint.frame(rows=slice(10))
    np.testing.assert_array_equal(frame["gaussians/means/2"], checkpoint["gaussians/means"][:10, 2])
    np.testing.assert_array_equal(frame.index, checkpoint["gaussians/ids"][:10])


def installed(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def test_an_interrupted_run_is_read_too(finished, tmp_path):
    folder = stop_half_way(finished, tmp_path)
    (folder / "summary.json").unlink()
    run = analysis.Run(folder)
    assert run.summary() is None and not run.finished() and run.last_written() > 0
    assert [path.name for path in run.checkpoints()] == ["checkpoint_000000000024.h5"]
    assert "images: 48" in run.settings() and run.last_log_lines(2)[-1].strip()


def test_a_summary_of_an_earlier_end_does_not_make_a_run_finished(finished, tmp_path):
    folder = stop_half_way(finished, tmp_path)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(dict(summary, images_seen=24)))
    assert not analysis.Run(folder).finished()


def test_metrics_that_a_job_goes_on_writing(finished, tmp_path):
    """A reader keeps what it opened while the file is replaced by a longer one."""
    from splaxel_mpi.evaluate.series import Series

    path = tmp_path / "metrics.h5"
    path.write_bytes((finished / "metrics.h5").read_bytes())
    with Series(path, 0, resume_images=48) as series, analysis.Metrics(path) as before:
        rows = before.rows
        series.append(dict(images_seen=64, loss=0.5))
        series.flush()
        with analysis.Metrics(path) as after:
            assert after.rows == rows + 1 and after["loss"][-1] == 0.5
        assert len(before["loss"]) == rows


@pytest.mark.parametrize("what, words", [
    ("missing", "no such folder"),
    ("empty", "holds no run"),
    ("summary", "not a summary"),
    ("metrics", "not a readable metrics file"),
])
def test_what_is_no_run_is_told_in_one_line(tmp_path, what, words):
    folder = tmp_path / "run"
    if what != "missing":
        folder.mkdir()
    if what == "summary":
        (folder / "summary.json").write_text("[1]")
    if what == "metrics":
        (folder / "metrics.h5").write_text("nothing")
    with pytest.raises(UserError, match=words) as error:
        run = analysis.Run(folder)
        run.summary()
        run.metrics()
    assert "\n" not in str(error.value)


def test_the_example_draws_a_run(finished, tmp_path):
    script = ROOT / "docs" / "examples" / "plot_run.py"
    done = subprocess.run([sys.executable, script, finished, tmp_path / "out"], text=True,
                          capture_output=True, timeout=60, cwd=ROOT,
                          env={"PYTHONPATH": str(ROOT), "PATH": "", "MPLCONFIGDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    drawn = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert {"loss", "psnr", "time", "utilisation", "memory"} <= drawn
    assert "held-out PSNR" in done.stdout and "Gaussians from" in done.stdout
