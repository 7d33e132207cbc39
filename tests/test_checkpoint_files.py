"""splaxel-mpi info, verify and upgrade: what a user is told of a file, and older versions."""

import os
import shutil
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from splaxel_mpi.checkpoint.resume import load
from splaxel_mpi.checkpoint.save import save
from splaxel_mpi.cli import cli
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import Series
from test_checkpoint import assert_replicated_equal, assert_rows_equal, state_of

pytestmark = pytest.mark.timeout(60)

# Written by the program of format version 1 from state_of(0, 7, cells=3).
OLD = Path(__file__).parent / "files" / "checkpoint_version_1.h5"


def command(*arguments):
    """Output of a command; UserErrors come through."""
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.fixture
def old(tmp_path):
    return Path(shutil.copy(OLD, tmp_path))


def flip(path, place):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def test_an_older_version_is_refused_upgraded_and_read(old):
    with pytest.raises(UserError, match="format version 1.*splaxel-mpi upgrade"):
        load(old)
    assert "was version 1, version 2, whole" in command("upgrade", old)
    state = state_of(0, 7, cells=3)
    assert_rows_equal(load(old), state)
    assert_replicated_equal(load(old), state)
    assert load(old).extra["masks"].tobytes() == state.extra["masks"].tobytes()
    assert os.listdir(old.parent) == [old.name]
    content = old.read_bytes()
    assert "is up to date" in command("upgrade", old) and old.read_bytes() == content


def test_statistics_that_version_1_may_lack_are_zeros(old):
    with h5py.File(old, "r+") as file:
        contents = file["layout/contents"][()].replace(b"\ndensify/seen_count", b"")
        for name in ("layout/contents", "densify/seen_count", "checksums/densify/seen_count"):
            del file[name]
        file["layout/contents"] = np.bytes_(contents)
        file["layout/contents"].attrs["crc32"] = np.uint32(zlib.crc32(contents))
    command("upgrade", old)
    assert load(old).seen_count.tolist() == [0] * 7
    assert_rows_equal(load(old), state_of(0, 7, cells=3))


def test_a_damaged_old_file_is_left_as_it_is(old):
    with h5py.File(old, "r") as file:
        flip(old, file["adam/first/sh0"].id.get_offset() + 3)
    content = old.read_bytes()
    with pytest.raises(UserError, match="adam/first/sh0 does not match its checksum"):
        command("upgrade", old)
    assert old.read_bytes() == content and os.listdir(old.parent) == [old.name]


@pytest.mark.parametrize("version, text", [(3, "version 3.*newer"), (0, "never in use")])
def test_versions_that_are_not_known(old, version, text):
    with h5py.File(old, "r+") as file:
        file.attrs.modify("version", version)
    with pytest.raises(UserError, match=text):
        command("upgrade", old)


def test_verify_names_the_bad_file(tmp_path):
    good, bad = tmp_path / "good.h5", tmp_path / "bad.h5"
    for path in (good, bad):
        save(path, state_of(0, 70_000))  # of two blocks of checksums
    assert "good.h5: whole, 70,000 Gaussians" in command("verify", good, bad)
    with h5py.File(bad, "r") as file:
        place = file["gaussians/shN"].id.get_offset() + 4 * 45 * 69_999
    flip(bad, place)
    assert "70,000 Gaussians" in command("info", bad)
    with pytest.raises(UserError, match="bad.h5: data set gaussians/shN does not match"):
        command("verify", good, bad)


def test_verify_reads_arrays_of_ranks(tmp_path):
    path = tmp_path / "a.h5"
    save(path, state_of(0, 5))
    with h5py.File(path, "r") as file:
        flip(path, file["extra/masks"].id.get_offset())
    with pytest.raises(UserError, match="extra/masks"):
        command("verify", path)


def test_info_tells_what_is_inside(tmp_path):
    path = tmp_path / "a.h5"
    save(path, state_of(0, 1234, cells=3, images=6000))
    told = command("info", path)
    for words in ("format version 2", "by 1 rank(s)", "python 3.11", "9f3c", "6,000 images",
                  "3,000 steps, 2 views a step, seed 11", "1,234 Gaussians, float32",
                  "SH degree 2", "0 to 1,234, mean 411", "2 of earlier runs", "in adam/"):
        assert words in told, words
    assert command("info", "--config", path) == "train:\n  note: größer\n"


def test_info_does_not_steer_the_terminal(tmp_path):
    state = state_of(0, 3)
    state.dataset = "\x1b[2Jgone\n"
    save(tmp_path / "a.h5", state)
    told = command("info", tmp_path / "a.h5")
    assert "?[2Jgone?" in told and "\x1b" not in told


def test_info_of_metrics(tmp_path):
    with Series(tmp_path / "metrics.h5", 0) as series:
        series.append(dict(images_seen=8, loss=0.5))
        series.append(dict(images_seen=16, loss=0.25))
    told = command("info", tmp_path / "metrics.h5")
    assert "2 rows, up to image 16" in told and "0.25 (last)" in told


@pytest.mark.parametrize("name", ["info", "verify", "upgrade"])
def test_other_files_end_in_one_line(tmp_path, name):
    (tmp_path / "x.h5").write_bytes(b"hello" * 1000)
    for path in (tmp_path / "x.h5", tmp_path / "none.h5"):
        with pytest.raises(UserError) as caught:
            command(name, path)
        assert path.name in str(caught.value) and "\n" not in str(caught.value)
