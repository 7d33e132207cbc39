"""What a rank finds on its machine: facts only, judged by findings.py."""

import importlib.metadata
import os
import platform
import socket
from dataclasses import dataclass, field
from typing import Optional

from ... import __version__
from ...backends import choose_backend
from ...backends.cuda_module import cache_folder
from ...errors import UserError
from ...mpi import device, launcher
from .storage import file_system, writable

# threads that libraries beside this package start, each in every rank
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class Gpu:
    """The GPU that a rank takes."""

    uuid: str
    model: str
    index: int
    peers: list  # indices of the visible GPUs whose memory it reaches without the host
    visible: int  # GPUs that the rank sees


@dataclass
class Facts:
    """Of one rank."""

    rank: int
    host: str
    software: dict  # name -> version
    cores: list  # that it may use, ascending
    node_cores: int  # of its machine
    threads: int  # of a rank that trains
    variables: dict  # THREAD_VARIABLES that are set -> text
    backend: str  # "host" or "cuda"
    reason: str  # why that backend
    mistake: Optional[str] = None  # why it has none
    gpu: Optional[Gpu] = None
    extension: Optional[str] = None  # what is wrong with the compiled part
    hdf5: dict = field(default_factory=dict)  # version, parallel, error
    cache: Optional[str] = None  # folder of compiled kernels
    cache_kind: str = ""  # its file system
    cache_writable: bool = True


def gather(settings, node_ranks, library, union):
    """Facts of this process.

    settings: config.Config; node_ranks: ranks of this node; library: name of the MPI library;
    union: cores that the ranks of this node may use together.
    """
    backend, reason, mistake = "host", "", None
    try:
        backend, reason = choose_backend(settings.backend)
    except UserError as error:
        mistake = str(error)
    cache = cache_folder() if backend == "cuda" else None
    return Facts(
        launcher.rank(), socket.gethostname(), _software(library), sorted(os.sched_getaffinity(0)),
        os.cpu_count() or 1, settings.backend.threads or max(1, union // node_ranks),
        {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        backend, reason, mistake, _gpu(node_ranks) if backend == "cuda" else None, _extension(),
        _hdf5(), cache and str(cache), file_system(cache).kind if cache else "",
        writable(cache) is None if cache else True,
    )


def _software(library):
    return {"splaxel-mpi": __version__, "Python": platform.python_version(), "MPI": library,
            "numpy": importlib.metadata.version("numpy")}


def _gpu(node_ranks):
    """The GPU that training would bind this rank to, None where it would bind none."""
    try:
        count = device.visible()
        index = device.select(launcher.local_rank() or 0, node_ranks, count, True)
        uuid, model = device.identity(index)
        return Gpu(uuid, model, index, device.peers(index), count)
    except UserError:
        return None


def _extension():
    from ...backends.host_library import library

    try:
        library()
    except (RuntimeError, OSError) as error:
        return " ".join(str(error).split())
    return None


def _hdf5():
    """Version of the library and whether it has MPI; error: why it cannot be used."""
    try:
        import h5py

        return {"version": h5py.version.hdf5_version, "parallel": bool(h5py.get_config().mpi),
                "error": None}
    except (ImportError, OSError, RuntimeError) as error:
        return {"version": "", "parallel": False, "error": " ".join(str(error).split())}
