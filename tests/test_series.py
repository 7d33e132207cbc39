"""Metrics as time series: rows come back, also after a kill, a resume or damage."""

import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import Series, read_series


def row(images, **more):
    return {
        "images_seen": images,
        "step": images // 2,
        "loss": 1 / images,
        "seconds": {"compute": {"min": 0.5, "mean": 1.0, "max": 2.0 * images}},
        **more,
    }


def write(path, images, **options):
    with Series(path, 0, **options) as series:
        for count in images:
            series.append(row(count))


def test_rows_come_back_and_any_hdf5_reader_can_open_the_file(tmp_path):
    write(tmp_path / "metrics.h5", range(1, 6))
    got = read_series(tmp_path / "metrics.h5")
    assert got["images_seen"].tolist() == [1, 2, 3, 4, 5]
    assert got["images_seen"].dtype == np.int64
    assert got["loss"].tolist() == [1 / k for k in range(1, 6)]
    assert got["seconds/compute/max"].tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    with h5py.File(tmp_path / "metrics.h5", "r") as file:
        assert file["seconds/compute/mean"].maxshape == (None,)


def test_new_and_missing_names_are_filled_with_nan(tmp_path):
    with Series(tmp_path / "m.h5", 0) as series:
        series.append(row(1))
        series.flush()
        series.append(row(2, psnr=30.0))
        series.append({"images_seen": 3})
        series.append(row(2**60, psnr=31.0))
    got = read_series(tmp_path / "m.h5")
    assert np.array_equal(got["psnr"], [np.nan, 30, np.nan, 31], equal_nan=True)
    assert np.isnan(got["loss"][2]) and got["step"][2] == -1
    assert got["images_seen"][3] == 2**60


def test_values_of_every_rank_are_kept_when_the_rank_count_grows(tmp_path):
    with Series(tmp_path / "m.h5", 0) as series:
        series.append(row(1, gaussians={"full": np.array([5, 6])}))
    with Series(tmp_path / "m.h5", 0, resume_images=1) as series:
        series.append(row(2, gaussians={"full": np.array([1, 2, 3])}))
        series.append(row(3))
    full = read_series(tmp_path / "m.h5")["gaussians/full"]
    expected = [[5, 6, np.nan], [1, 2, 3], [np.nan] * 3]
    assert np.array_equal(full, expected, equal_nan=True)


def test_a_resume_drops_rows_beyond_its_image_count(tmp_path):
    write(tmp_path / "m.h5", [10, 20, 30, 40])
    write(tmp_path / "m.h5", [25, 35], resume_images=20)
    got = read_series(tmp_path / "m.h5")
    assert got["images_seen"].tolist() == [10, 20, 25, 35]
    assert got["loss"].tolist() == [1 / 10, 1 / 20, 1 / 25, 1 / 35]
    assert os.listdir(tmp_path) == ["m.h5"]


def test_a_resume_before_the_first_row_leaves_none(tmp_path):
    write(tmp_path / "m.h5", [10, 20])
    Series(tmp_path / "m.h5", 0, resume_images=5).close()
    assert {len(array) for array in read_series(tmp_path / "m.h5").values()} == {0}


def test_a_new_run_does_not_overwrite_an_old_series(tmp_path):
    write(tmp_path / "m.h5", [10])
    write(tmp_path / "m.h5", [1, 2])
    write(tmp_path / "m.h5", [7])
    assert read_series(tmp_path / "m.h5")["images_seen"].tolist() == [7]
    assert read_series(tmp_path / "m.old-1.h5")["images_seen"].tolist() == [10]
    assert read_series(tmp_path / "m.old-2.h5")["images_seen"].tolist() == [1, 2]


def test_a_damaged_file_does_not_stop_a_resume(tmp_path, caplog):
    (tmp_path / "m.h5").write_bytes(b"damaged" * 100)
    write(tmp_path / "m.h5", [30], resume_images=20)
    assert read_series(tmp_path / "m.h5")["images_seen"].tolist() == [30]
    assert (tmp_path / "m.old-1.h5").exists() and "m.h5" in caplog.text


def test_other_ranks_write_nothing(tmp_path):
    with Series(tmp_path / "m.h5", 3) as series:
        series.append(row(1))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": 1.0},
        {"images_seen": 2, "loss": {"mean": 1.0}},
        {"images_seen": 2, "seconds": 1.0},
        {"images_seen": 2, "loss": np.zeros(3)},
        {"images_seen": 2, "new": np.zeros((2, 2))},
        {"images_seen": 2, "new": "text"},
    ],
)
def test_rows_that_contradict_earlier_ones_are_refused(tmp_path, wrong):
    with Series(tmp_path / "m.h5", 0) as series:
        series.append(row(1))
        with pytest.raises(ValueError, match="metric"):
            series.append(wrong)
    assert len(read_series(tmp_path / "m.h5")["loss"]) == 1


def test_a_write_that_fails_keeps_rows_for_the_next(tmp_path, caplog):
    folder = tmp_path / "later"
    series = Series(folder / "m.h5", 0, seconds=0)
    series.append(row(1))
    assert "cannot be written" in caplog.text
    with pytest.raises(UserError, match="m.h5"):
        series.flush()
    folder.mkdir()
    series.append(row(2))
    assert read_series(folder / "m.h5")["images_seen"].tolist() == [1, 2]


def not_hdf5(path):
    path.write_bytes(b"no series")


def another_format(path):
    with h5py.File(path, "w") as file:
        file.attrs["format"] = "other"


def inflated(path):
    write(path, [1])
    with h5py.File(path, "r+") as file:
        for name in list(file):
            del file[name]
        file.create_dataset("images_seen", (1 << 40,), np.int64, chunks=(1 << 10,))


@pytest.mark.parametrize("make", [not_hdf5, another_format, inflated, lambda path: None])
def test_other_files_are_refused_in_one_line(tmp_path, make):
    make(tmp_path / "m.h5")
    with pytest.raises(UserError, match=r"m\.h5") as caught:
        read_series(tmp_path / "m.h5")
    assert "\n" not in str(caught.value)


CHILD = """
import itertools, sys
from test_series import Series, row
series = Series(sys.argv[1], 0, seconds=0)
series.pause = 0
for count in itertools.count(1):
    series.append(row(count))
    series.pause = 0
    print(count, flush=True)
"""


@pytest.mark.timeout(60)
def test_readable_while_it_grows_and_after_sigkill(tmp_path):
    here = os.path.dirname(os.path.abspath(__file__))
    paths = os.pathsep.join([here, os.path.dirname(here)])
    for attempt in range(4):
        path = tmp_path / f"{attempt}.h5"
        writer = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)],
            env=dict(os.environ, PYTHONPATH=paths),
            stdout=subprocess.PIPE,
            text=True,
        )
        first = int(writer.stdout.readline())
        assert len(read_series(path)["images_seen"]) >= first
        time.sleep(0.03 + 0.037 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        printed = writer.communicate()[0].split()
        flushed = int(printed[-1]) if printed else first
        seen = read_series(path)["images_seen"].tolist()
        assert seen == list(range(1, len(seen) + 1)) and len(seen) >= flushed
