"""Checkpoints written while training goes on: the same bytes, told failures, and no waiting."""

import os
import time

import pytest

from runs import assert_same, last_checkpoint, shared_folder, train
from splaxel_mpi.checkpoint import background
from splaxel_mpi.checkpoint.background import Background
from splaxel_mpi.checkpoint.resume import load
from splaxel_mpi.errors import UserError
from test_checkpoint import assert_replicated_equal, assert_rows_equal
from test_checkpoint import state_of as made_up

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120), pytest.mark.up_to_2]


@pytest.fixture
def folder(comm, tmp_path_factory):
    return shared_folder(comm, tmp_path_factory)


def slow_rows(monkeypatch, seconds):
    """Make every rank's writing take some time more."""
    whole = background.write_rows

    def slow(*arguments):
        time.sleep(seconds)
        return whole(*arguments)

    monkeypatch.setattr(background, "write_rows", slow)


@pytest.mark.parametrize("counts", [300, 0])
def test_what_is_written_is_the_state_of_the_start(comm, folder, counts):
    path, done = folder / "a.h5", []
    count = counts if comm.rank else counts // 2
    state, wanted = (made_up(comm.rank, count, cells=comm.size) for _ in range(2))
    writer = Background(comm)
    writer.start(path, state, lambda: done.append(path.exists()))
    state.gaussians.means[:] = 7  # training goes on
    writer.close()
    assert done == ([True] if comm.rank == 0 else [])
    got = load(path, comm)
    assert_rows_equal(got, wanted)
    assert_replicated_equal(got, wanted)
    assert got.extra["masks"].tobytes() == wanted.extra["masks"].tobytes()
    assert os.listdir(folder) == ["a.h5"]


def test_ranks_look_after_it_at_different_steps(comm, folder, monkeypatch):
    slow_rows(monkeypatch, 0.05 * comm.rank)
    writer, state = Background(comm), made_up(comm.rank, 50, cells=comm.size)
    writer.start(folder / "a.h5", state, lambda: None)
    end = time.monotonic() + 20
    there = False
    while not there and time.monotonic() < end:
        writer.poll()
        time.sleep(0.002 * (1 + comm.rank))
        there = comm.allreduce((folder / "a.h5").exists(), min)
    assert there  # without finish
    writer.close()


def test_start_does_not_wait_for_the_disk(comm, folder, monkeypatch):
    slow_rows(monkeypatch, 2.0)
    writer, state = Background(comm), made_up(comm.rank, 50, cells=comm.size)
    comm.Barrier()
    began = time.monotonic()
    writer.start(folder / "a.h5", state, lambda: None)
    assert time.monotonic() - began < 1.9  # of a write that takes at least 2 s
    assert not (folder / "a.h5").exists()
    writer.close()
    assert (folder / "a.h5").exists()


def test_a_failure_is_told_on_all_and_leaves_the_old_file(comm, folder, monkeypatch):
    writer, state = Background(comm), made_up(comm.rank, 50, cells=comm.size)
    writer.start(folder / "a.h5", state, lambda: None)
    writer.finish()
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(background, "write_rows", lambda *_: "disk: is full")
    state.images_seen = 99
    writer.start(folder / "a.h5", state, lambda: None)
    with pytest.raises(UserError, match="disk: is full"):
        writer.finish()
    assert load(folder / "a.h5", comm).images_seen == 10
    assert os.listdir(folder) == ["a.h5"]
    writer.close()


def test_a_run_equals_one_that_waits(comm, city, folder):
    often = ["checkpoint.every=8", "checkpoint.keep=6", "evaluate.pictures=0"]
    waits = train(city, folder / "waits", comm, *often)
    beside = train(city, folder / "beside", comm, *often, "checkpoint.background=true")
    names = [sorted(os.listdir(run / "checkpoints")) for run in (waits, beside)]
    assert names[0] == names[1] and len(names[0]) == 6
    for name in names[0]:
        assert_same(waits / "checkpoints" / name, beside / "checkpoints" / name)
    comm.Barrier()
    if comm.rank == 0:
        last_checkpoint(beside).unlink()
    comm.Barrier()
    train(city, folder / "beside", comm, *often, "checkpoint.background=true", resume=True)
    assert_same(last_checkpoint(waits), last_checkpoint(beside))
