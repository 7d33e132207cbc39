"""How a job of several ranks starts and ends, and who speaks."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import launcher, world

ROOT = Path(__file__).resolve().parent.parent
LAUNCHED = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))

# What each rank does: an argument. The others wait in a barrier that one never reaches.
JOB = """
import sys, threading, time
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import world
comm = world.init()
what, rank = sys.argv[1], comm.rank
def broken(): raise RuntimeError("broken here")
if what == "exception" and rank == 1: broken()
if what == "thread" and rank == 1:
    threading.Thread(target=broken, name="decoder").start()
    time.sleep(60)
if what == "one mistake" and rank == 2: raise UserError("torn image")
if what == "same mistake": raise UserError("no such folder")
if what == "late mistake":
    time.sleep(0.1 * rank)
    raise UserError("no such folder")
if what == "own mistakes": raise UserError(f"torn image {rank}")
if what == "root mistake": world.on_root(comm, lambda: (_ for _ in ()).throw(UserError("typo")))
comm.Barrier()
if what == "interrupt" and rank == 1: raise KeyboardInterrupt
if what == "interrupt": comm.Barrier()
print("done", flush=True)
"""


def run(ranks, *arguments, seconds=60):
    """Python under mpirun, as a user starts it: (status, output, seconds)."""
    if LAUNCHED:
        pytest.skip("starts mpirun itself")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    done = subprocess.run(
        ["timeout", "-k", "5", str(seconds), os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks),
         sys.executable, *map(str, arguments)],
        env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout, time.monotonic() - start


def job(what):
    status, output, seconds = run(3, "-c", JOB, what)
    assert seconds < 30, "the ranks that were left did not end"
    return status, output


def test_clean_end():
    status, output = job("nothing")
    assert status == 0 and output.count("done") == 3


def test_exception_of_one_rank_ends_all():
    status, output = job("exception")
    assert status == 1 and "done" not in output
    assert "[rank 1] Traceback (most recent call last):" in output
    assert "[rank 1] RuntimeError: broken here" in output


def test_exception_of_a_thread_ends_all():
    status, output = job("thread")
    assert status == 1 and "[rank 1 thread decoder] RuntimeError: broken here" in output


def test_interrupt_of_one_rank_ends_all():
    status, output = job("interrupt")
    assert status == 130 and "Traceback" not in output


def test_mistake_on_one_rank_is_told_by_it():
    status, output = job("one mistake")
    assert status == 2 and "Traceback" not in output
    assert output.count("splaxel-mpi: error: torn image [rank 2]\n") == 1


@pytest.mark.parametrize(
    "what, message",
    [
        ("same mistake", "no such folder"),
        ("late mistake", "no such folder"),
        ("root mistake", "typo"),
    ],
)
def test_mistake_on_all_ranks_is_told_once(what, message):
    status, output = job(what)
    assert status == 2 and "Traceback" not in output
    assert output.count("splaxel-mpi: error: ") == 1
    assert f"splaxel-mpi: error: {message}\n" in output


def test_different_mistakes_are_all_told():
    status, output = job("own mistakes")
    assert status == 2
    for rank in range(3):
        assert output.count(f"splaxel-mpi: error: torn image {rank} [rank {rank}]\n") == 1


@pytest.mark.parametrize(
    "arguments, message",
    [(["train", "none.yaml"], "none.yaml: cannot be read"), (["train"], "Missing argument")],
)
def test_mistake_on_the_command_line_is_told_once(arguments, message):
    status, output, seconds = run(3, "-m", "splaxel_mpi", *arguments)
    assert status == 2 and seconds < 30
    assert output.count("splaxel-mpi: error: ") == 1 and message in output


@pytest.mark.parametrize(
    "size, variables, word",
    [
        (1, {}, None),
        (4, {"OMPI_COMM_WORLD_SIZE": "4"}, None),
        (1, {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        (1, {"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4"),
        (1, {"PMI_SIZE": "4", "PMI_RANK": "2"}, "PMI_SIZE=4"),
        (2, {"PMI_SIZE": "4"}, "PMI_SIZE=4"),
        (4, {"PMI_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4"}, None),
        (1, {"MPI_LOCALNRANKS": "2"}, "MPI_LOCALNRANKS=2"),
        # a batch shell and salloc have SLURM_NTASKS too, and one process is right there
        (1, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, None),
        (1, {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "SLURM_NTASKS=8"),
        (1, {"SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        (1, {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, "srun started 8"),
        # mpirun starts its daemons on other nodes as a step, whose variables the ranks inherit
        (1, {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "OMPI_COMM_WORLD_SIZE": "1"}, None),
        (8, {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3"}, None),
        (1, {"PMIX_RANK": "3"}, "PMIX_RANK=3"),
        (1, {"OMPI_COMM_WORLD_SIZE": "many"}, None),
    ],
)
def test_launcher_and_library_must_agree(size, variables, word):
    line = launcher.mismatch(size, "MPICH 4.0.2", variables)
    if word is None:
        assert line is None
    else:
        assert word in line and "MPICH 4.0.2" in line and "\n" not in line
        assert f"sees {size}" in line


@pytest.mark.parametrize("rank, lines", [("0", 1), ("1", 0)])
def test_mismatch_ends_the_command(rank, lines, tmp_path):
    if LAUNCHED:
        pytest.skip("changes the launcher's variables")
    (tmp_path / "run.yaml").write_text("data: {path: scene}\n")
    done = subprocess.run(
        [sys.executable, "-m", "splaxel_mpi", "train", str(tmp_path / "run.yaml")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PMI_SIZE": "4", "PMI_RANK": rank},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == lines
    assert ("started 4 processes (PMI_SIZE=4)" in done.stderr) == bool(lines)


def test_rank_from_the_launcher():
    assert launcher.rank({}) == 0
    assert launcher.rank({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "1"}) == 3
    assert launcher.rank({"SLURM_PROCID": "5"}) == 0
    assert launcher.rank({"SLURM_PROCID": "5", "SLURM_STEP_ID": "0"}) == 5


@pytest.mark.mpi
def test_result_of_rank_0_reaches_all(comm):
    assert world.on_root(comm, lambda: {"rank": comm.rank}) == {"rank": 0}

    def refuse(what):
        raise UserError(f"no {what} on rank {comm.rank}")

    with pytest.raises(UserError, match="no scene on rank 0"):
        world.on_root(comm, refuse, "scene")


@pytest.mark.mpi
def test_node_and_its_cores(comm):
    node = world.node_comm(comm)
    cores = world.cores_per_rank(comm)
    assert 1 <= node.size <= comm.size
    assert 1 <= cores <= max(1, os.cpu_count() // node.size)
    assert len(set(node.allgather(cores))) == 1
    node.Free()
