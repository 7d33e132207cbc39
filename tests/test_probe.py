"""Whether MPI takes device memory is found out without harm."""

import os
import sys
from pathlib import Path

import pytest

from splaxel_mpi.mpi import probe

ROOT = Path(__file__).resolve().parent.parent

# a cupy in which every array lies in host memory
STUB = """
import numpy
class Array(numpy.ndarray):
    def get(self):
        return numpy.array(self)
def asarray(values):
    return values.copy().view(Array)
class cuda:
    class Device:
        def __init__(self, index=0): pass
        def use(self): pass
        def synchronize(self): pass
"""
# Each rank runs the child as a process that the launcher did not start.
JOB = """
import sys
from mpi4py import MPI
from splaxel_mpi.mpi import probe
reason = probe.try_on_every_node(MPI.COMM_WORLD, 0)
# in one piece: lines of ranks must not run into each other
sys.stdout.write(f"rank {MPI.COMM_WORLD.rank}: {reason}\\n")
sys.stdout.flush()
"""


def python(text, seconds=30):
    return probe.run_child([sys.executable, "-c", text], seconds)


def test_how_a_child_ends():
    assert python("pass") is None
    assert python("import os, signal; os.kill(os.getpid(), 11)") == "was ended by SIGSEGV"
    assert python("import ctypes; ctypes.string_at(8)") == "was ended by SIGSEGV"
    assert python("import sys; sys.exit('half of it is missing')") == (
        "failed: half of it is missing"
    )
    assert python("import os; os._exit(3)") == "failed: 3"
    assert python("raise ValueError('too large')") == "failed: ValueError: too large"


def test_a_child_that_hangs_is_ended():
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    assert python(text, 0.5) == "did not end within 0.5 seconds"


def test_a_child_may_leave_children_of_its_own():
    text = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', %r])"
    assert python(text % "import time; time.sleep(20)", 10) is None


def test_the_child_is_not_of_the_launchers_job(monkeypatch):
    environment = probe._environment(
        {
            "OMPI_COMM_WORLD_RANK": "1",
            "OMPI_MCA_orte_launch": "1",
            "OMPI_MCA_ess": "^singleton",
            "PMIX_RANK": "1",
            "PMI_RANK": "1",
            "SLURM_PROCID": "1",
            "OMPI_MCA_pml": "ucx",
            "OMPI_MCA_btl_smcuda_use_cuda_ipc": "0",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "UCX_TLS": "cuda,sm",
            "CUDA_VISIBLE_DEVICES": "2",
        }
    )
    kept = {"OMPI_MCA_pml", "OMPI_MCA_btl_smcuda_use_cuda_ipc", "OMPI_ALLOW_RUN_AS_ROOT",
            "UCX_TLS", "CUDA_VISIBLE_DEVICES"}
    assert set(environment) == kept | {"OMPI_MCA_ess_singleton_isolated", "PYTHONPATH"}


@pytest.mark.parametrize("arrives", [True, False])
def test_the_child_runs_beneath_a_launcher(mpirun, tmp_path, arrives):
    """Under mpirun it becomes a world of its own and sends to itself through the same MPI."""
    loss = "" if arrives else "\nArray.get = lambda self: numpy.array(self) + 1\n"
    (tmp_path / "cupy.py").write_text(STUB + loss)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = mpirun(2, "-c", JOB, env=env)
    reason = "None"
    if not arrives:
        reason = "64 items of device memory did not arrive as they were sent"
    for rank in range(2):
        assert any(
            line.startswith(f"rank {rank}: ") and line.endswith(reason)
            for line in done.stdout.splitlines()
        ), done.stdout


def test_what_the_library_claims(monkeypatch):
    claim = probe.claim({})
    assert claim.support in (True, False, None) and "\n" not in claim.text
    monkeypatch.setattr(probe, "_libraries", lambda: [])  # one that cannot be asked
    silent = probe.claim({"MPICH_GPU_SUPPORT_ENABLED": "0"})
    assert silent.support is None and silent.text.endswith("whether it takes device memory")
    assert probe.claim({"MPICH_GPU_SUPPORT_ENABLED": "1"}) == (True, "MPICH_GPU_SUPPORT_ENABLED=1")


def test_the_library_is_found():
    """The one that mpi4py loaded is among the files of this process."""
    pytest.importorskip("mpi4py.MPI")
    found = probe._libraries()
    assert found and all("libmpi" in Path(path).name for path in found)

