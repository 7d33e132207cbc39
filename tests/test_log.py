"""What is told while a run goes on: log file, standard error, bar."""

import logging

import pytest

from splaxel_mpi import log
from splaxel_mpi.errors import UserError
from splaxel_mpi.progress import Progress

logger = logging.getLogger("splaxel_mpi.test")


@pytest.fixture(autouse=True)
def closed():
    yield
    log.close()


def test_rank_0_tells_standard_error_and_the_file(tmp_path, capsys):
    path = tmp_path / "runs" / "a" / "log.txt"
    log.setup(path, 0, 4)
    logger.info("cells: %d", 4)
    logger.warning("few cores")
    assert capsys.readouterr().err == "cells: 4\nwarning: few cores\n"
    lines = path.read_text().splitlines()
    assert lines[0].endswith(" cells: 4") and lines[1].endswith(" warning: few cores")
    log.setup(path, 0, 4)  # a resumed run
    logger.info("again")
    assert len(path.read_text().splitlines()) == 3


def test_other_ranks_warn_alone_and_say_who_they_are(tmp_path, capsys):
    log.setup(tmp_path / "log.txt", 2, 4)
    logger.info("unheard")
    logger.warning("slow disk")
    assert capsys.readouterr().err == "[rank 2/4] warning: slow disk\n"
    assert not (tmp_path / "log.txt").exists()


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the log cannot be written"):
        log.setup(tmp_path / "file" / "log.txt", 0, 1)


def test_plain_lines_every_so_many_images(capsys):
    log.setup(None, 0, 1)
    with Progress(1000, initial=100, every=200) as progress:
        for images in range(104, 1001, 4):
            progress.update(images, loss=0.25, psnr=None, gaussians=12345)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("/")[0] for line in lines] == ["200", "400", "600", "800", "1000"]
    assert lines[0].startswith("200/1000 images (20.0 %)  loss 0.2500  gaussians 12,345  ")
    assert "images/s" in lines[0] and "left 0:00:0" in lines[0]
    assert "psnr" not in lines[0] and "left" not in lines[-1]


def test_the_end_is_told_once_whatever_the_interval(capsys):
    log.setup(None, 0, 1)
    progress = Progress(7, every=5)
    for images in (3, 6, 7, 7):
        progress.update(images)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["6/7", "7/7"]


def test_bar_shows_figures_and_the_file_gets_the_lines(tmp_path, capsys):
    log.setup(tmp_path / "log.txt", 0, 1)
    progress = Progress(10, every=5, bar=True)
    for images in range(1, 11):
        progress.update(images, loss=0.5, psnr=21.456)
    progress.message("checkpoint written")
    progress.close()
    shown = capsys.readouterr().err
    assert "10/10" in shown and "loss=0.5000" in shown and "psnr=21.46" in shown
    assert "checkpoint written" in shown and "images (" not in shown
    written = (tmp_path / "log.txt").read_text()
    assert "5/10 images (50.0 %)  loss 0.5000" in written and "checkpoint written" in written


@pytest.mark.parametrize("options", [{"enabled": False}, {"is_rank0": False}])
def test_silence(capsys, options):
    log.setup(None, 0, 1)
    progress = Progress(10, every=1, bar=True, **options)
    progress.update(5, loss=1.0)
    progress.message("unheard")
    progress.close()
    assert capsys.readouterr().err == ""
