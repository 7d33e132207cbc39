"""The environment that `make env` makes, and the way the tests use it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

# One rank fails before a collective that the others wait in.
DESYNC = """
import pytest

@pytest.mark.mpi
def test_one_rank_leaves(comm):
    assert comm.rank != {rank}
    comm.Barrier()

@pytest.mark.mpi
def test_next(comm):
    comm.Barrier()
"""

FAIL_ALONE = """
import pytest

@pytest.mark.mpi
def test_one_rank_fails(comm):
    comm.Barrier()
    assert comm.rank != {rank}
"""


@pytest.mark.mpi(min_size=2)
def test_ranks_share_one_world(comm):
    """A second MPI library on the machine would give every rank a world of its own."""
    assert comm.size >= 2
    ranks = comm.allgather(comm.rank)
    assert ranks == list(range(comm.size))


@pytest.mark.mpi(min_size=2)
def test_h5py_writes_one_file_from_all_ranks(comm, tmp_path):
    import h5py

    path = comm.bcast(str(tmp_path / "shared.h5"))
    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        rows = file.create_dataset("rows", (comm.size, 3), "f8")
        with rows.collective:
            rows[comm.rank] = np.full(3, comm.rank)
    comm.Barrier()
    with h5py.File(path, "r", driver="mpio", comm=comm) as file:
        expected = np.repeat(np.arange(comm.size, dtype=float)[:, None], 3, axis=1)
        np.testing.assert_array_equal(file["rows"][:], expected)


@pytest.mark.slow
@pytest.mark.parametrize("body", [DESYNC, FAIL_ALONE], ids=["desync", "fail-alone"])
@pytest.mark.parametrize("rank", [0, 1])
def test_failure_of_one_rank_fails_the_run(mpirun, tmp_path, body, rank):
    """On either rank, and in time: without hanging until the launcher's limit."""
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_inner.py").write_text(body.format(rank=rank), encoding="utf-8")
    arguments = ["-m", "pytest", "-q", "--only-mpi", "-p", "no:cacheprovider"]
    done = mpirun(2, *arguments, timeout=60, cwd=tmp_path)
    assert done.returncode not in (0, 124, 137), done.stdout
    assert f"assert {rank} != {rank}" in done.stdout
