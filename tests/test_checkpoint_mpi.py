"""Checkpoints of several ranks; run under mpirun."""

import os
import shutil
import tempfile

import numpy as np
import pytest

from splaxel_mpi.checkpoint.resume import load, load_latest
from splaxel_mpi.checkpoint.save import save
from splaxel_mpi.errors import UserError
from test_checkpoint import (
    assert_replicated_equal,
    assert_rows_equal,
    data_sets,
    edit,
    state_of,
    together,
)

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.timeout(60)]

# Rows of the ranks: all, one without rows, only the last with rows, none at all.
COUNTS = {
    "all": lambda rank, size: 300 + 17 * rank,
    "one empty": lambda rank, size: 0 if rank == 1 else 40 + rank,
    "only last": lambda rank, size: 25 if rank == size - 1 else 0,
    "none": lambda rank, size: 0,
}


@pytest.fixture
def folder(comm):
    """A folder that all ranks see, removed by rank 0 once all are done."""
    path = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    yield path
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path)


def writers():
    import h5py

    return ["serial", "offset"] + (["parallel"] if h5py.get_config().mpi else [])


def test_ranks_of_one_node_write_their_own_bytes(comm, folder):
    saved = save(os.path.join(folder, "a.h5"), state_of(comm.rank, 30, cells=comm.size), comm)
    assert saved.writer == ("offset" if comm.size > 1 else "serial")


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("writer", writers())
def test_each_rank_reads_its_own_rows_bitwise(comm, folder, writer, counts):
    count = COUNTS[counts](comm.rank, comm.size)
    state = state_of(comm.rank, count, cells=comm.size)
    path = os.path.join(folder, "a.h5")
    saved = save(path, state, comm, writer)
    got = load(path, comm)
    assert saved.writer == writer and saved.bytes == os.path.getsize(path)
    assert_rows_equal(got, state)
    assert_replicated_equal(got, state)
    assert got.extra["masks"].tobytes() == state.extra["masks"].tobytes()
    assert got.ranks == comm.size and len(got.cell_offsets) == comm.size + 1


@pytest.mark.parametrize("counts", COUNTS)
def test_all_writers_fill_the_same_bytes(comm, folder, counts, monkeypatch):
    # Small messages and calls, so that ranks need different numbers of them.
    monkeypatch.setattr("splaxel_mpi.checkpoint.serial.MESSAGE_BYTES", 2000)
    monkeypatch.setattr("splaxel_mpi.checkpoint.offset.CALL_BYTES", 1000)
    monkeypatch.setattr("splaxel_mpi.checkpoint.parallel.CALL_BYTES", 3000)
    state = state_of(comm.rank, COUNTS[counts](comm.rank, comm.size), cells=comm.size)
    paths = [os.path.join(folder, f"{writer}.h5") for writer in writers()]
    for path, writer in zip(paths, writers()):
        save(path, state, comm, writer)
    first, *others = map(data_sets, paths)
    assert "gaussians/means" in first and all(other == first for other in others)


@pytest.mark.parametrize("counts", ["one empty", "none"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_another_rank_count_reads_the_same_union(comm, folder, size, counts):
    if size >= comm.size:
        pytest.skip("needs more ranks")
    path = os.path.join(folder, "a.h5")
    few = comm.Split(0 if comm.rank < size else 1)
    for writing, reading in ((comm, few), (few, comm)):
        if writing is few and comm.rank >= size:
            expected = None  # takes no part in writing
        else:
            count = COUNTS[counts](comm.rank, writing.size)
            expected = state_of(comm.rank, count, cells=writing.size)
            save(path, expected, writing)
        comm.Barrier()
        got = load(path, reading) if reading is comm or comm.rank < size else None
        wrote = [part for part in comm.gather(expected) or () if part]
        read = [part for part in comm.gather(got) or () if part]
        if comm.rank == 0:
            assert len(wrote) == writing.size and len(read) == reading.size
            assert all(part.extra == {} for part in read)
            assert_rows_equal(together(read), together(wrote))
            assert_replicated_equal(read[-1], wrote[0])
        comm.Barrier()
    few.Free()


def test_fewer_ranks_get_whole_cells_when_rows_are_grouped(comm, folder):
    path = os.path.join(folder, "a.h5")
    save(path, state_of(comm.rank, 10 + 90 * comm.rank, cells=comm.size), comm)
    size = comm.size - 1
    few = comm.Split(0 if comm.rank < size else 1)
    if comm.rank < size:
        mine = set(load(path, few).cell.tolist())
        assert mine == {c for c in range(comm.size) if c * size // comm.size == comm.rank}
    few.Free()


def test_rows_in_no_order_of_cells_are_split_evenly(comm, folder):
    path = os.path.join(folder, "a.h5")
    save(path, state_of(comm.rank, 60, comm.size, cell=comm.size - 1 - comm.rank), comm)
    few = comm.Split(0 if comm.rank < comm.size - 1 else 1)
    if comm.rank < comm.size - 1:
        got = load(path, few)
        total = 60 * comm.size
        bounds = [total * r // few.size for r in (few.rank, few.rank + 1)]
        assert len(got.cell) == bounds[1] - bounds[0]
    few.Free()


def test_damage_in_one_ranks_rows_is_told_on_all(comm, folder):
    def add_one(file):
        file["gaussians/sh0"][-1, 0] += 1

    good = os.path.join(folder, "checkpoint_000000000001.h5")
    path = os.path.join(folder, "checkpoint_000000000002.h5")
    for name in (good, path):
        save(name, state_of(comm.rank, 30, cells=comm.size), comm)
    if comm.rank == 0:
        edit(path, add_one)
    comm.Barrier()
    with pytest.raises(UserError, match=r"gaussians/sh0"):
        load(path, comm)
    found, state = load_latest(folder, comm)
    assert found == good and len(state.gaussians) == 30


@pytest.mark.parametrize("writer", writers())
def test_a_folder_that_cannot_be_made_is_told_on_all(comm, folder, writer):
    with open(os.path.join(folder, f"file{comm.rank}"), "w") as file:
        file.write("in the way")
    comm.Barrier()
    with pytest.raises(UserError, match="cannot be written"):
        save(os.path.join(folder, "file0", "a.h5"), state_of(comm.rank, 3), comm, writer)


def test_float64_is_kept(comm, folder):
    path = os.path.join(folder, "a.h5")
    state = state_of(comm.rank, 20, comm.size, np.float64)
    save(path, state, comm)
    assert_rows_equal(load(path, comm), state)
