"""Whether the MPI library takes device memory: what it says, and what a child process finds.

A library that does not take it dies with a segmentation fault at the first device pointer, and
some say that they do when the driver or a plug-in is missing. So it is tried where a crash does
no harm: `python -m splaxel_mpi.mpi.probe GPU` is an MPI world of its own that sends device
memory to itself.
"""

import ctypes
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple, Optional

import numpy as np

from .device import use
from .world import first_of, library_name, load_mpi, node_comm

# Starting Python, CUDA and MPI takes seconds, many where the file system is slow.
SECONDS = 60.0
# Below and above the sizes at which libraries go from one protocol to the next.
ITEMS = (64, 16 * 1024, 1024 * 1024)
# Settings of libraries that have no function to ask.
PROMISES = {
    "MPICH_GPU_SUPPORT_ENABLED": "1",  # HPE Cray MPICH
    "MV2_USE_CUDA": "1",  # MVAPICH2
    "I_MPI_OFFLOAD": "1",  # Intel MPI
}
# What launchers tell their processes; the child must not believe that it is one of them.
LAUNCHERS = re.compile(r"(OMPI|PMIX?|PRTE|ORTE|SLURM|HYDRA|MPI|MPIEXEC|MV2_COMM|PALS|FLUX|ALPS)_")
# Of these the user's choice of protocols stays, which is what is to be tried.
PROTOCOLS = re.compile(r"OMPI_(ALLOW|MCA_(mpi|opal|pml|btl|mtl|coll|common|mca_base)(_|$))")


class Claim(NamedTuple):
    """What a library says: True, False or None for nothing; and that in words."""

    support: Optional[bool]
    text: str


def claim(environ=os.environ):
    """Claim of the MPI library of this process."""
    name = library_name(load_mpi())
    for path in _libraries():
        query = getattr(ctypes.CDLL(path), "MPIX_Query_cuda_support", None)
        if query is not None:
            if query():
                return Claim(True, f"{name} says that it takes device memory")
            return Claim(False, f"{name} takes no device memory")
    for variable, value in PROMISES.items():
        if environ.get(variable) == value:
            return Claim(True, f"{variable}={value}")
    return Claim(None, f"{name} does not say whether it takes device memory")


def _libraries():
    """Files of the MPI libraries that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {line.split(maxsplit=5)[-1].strip() for line in file if "/libmpi" in line}
    return sorted(path for path in paths if re.search(r"/libmpi[^/]*\.so[^/]*$", path))


def try_on_every_node(comm, index):
    """Run the child on one rank of each node, on its GPU of this index. Collective.

    Returns why device memory is not to be trusted to MPI, the same on every rank, or None.
    """
    node, reason = node_comm(comm), None
    if node.rank == 0:
        reason = run_child([sys.executable, "-m", __name__, str(index)])
        reason = reason and f"a child process that tried it on {socket.gethostname()} {reason}"
    node.Free()
    return first_of(comm, reason)


def run_child(command, seconds=SECONDS):
    """Run a command outside of the launcher's job; None when it ended well, else how it ended.

    close_fds=False lets Python start it without a fork, which would upset network drivers. Its
    messages go to a file: a pipe would be waited for if it left children of its own.
    """
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=errors, close_fds=False,
        )
        status = _status(child, seconds)
        errors.seek(0)
        text = errors.read(10**6).decode("utf-8", "replace")
    if status is None:
        return f"did not end within {seconds:g} seconds"
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    said = [line.strip() for line in text.splitlines() if re.search("[a-z]", line)]
    return f"failed: {said[-1][:200] if said else status}" if status else None


def _status(child, seconds):
    """Exit status, None for a child that had to be killed."""
    end = time.monotonic() + seconds
    while child.poll() is None:
        if time.monotonic() > end:
            child.kill()
            return None
        time.sleep(0.02)
    return child.returncode


def _environment(environ=os.environ):
    """The environment without the launcher's part, and with the path of this Python."""
    kept = {
        name: value
        for name, value in environ.items()
        if not LAUNCHERS.match(name) or PROTOCOLS.match(name)
    }
    kept["OMPI_MCA_ess_singleton_isolated"] = "1"  # Open MPI 4: start no daemon for it
    kept["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return kept


def main(index):
    """Send device memory of a GPU to this process through MPI; raises where it goes wrong."""
    import cupy

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an answer, not a case
    use(index)
    MPI = load_mpi()
    MPI.Init()
    for count in ITEMS:
        expected = np.arange(count, dtype=np.float32)
        sent = cupy.asarray(expected)
        got = cupy.asarray(-expected), cupy.asarray(-expected)
        cupy.cuda.Device().synchronize()
        comm = MPI.COMM_WORLD
        MPI.Request.Waitall([comm.Irecv(got[0], comm.rank), comm.Isend(sent, comm.rank)])
        comm.Alltoallv([sent, [count]], [got[1], [count]])
        if not all((array.get() == expected).all() for array in got):
            sys.exit(f"{count} items of device memory did not arrive as they were sent")
    MPI.Finalize()


if __name__ == "__main__":
    main(int(sys.argv[1]))
