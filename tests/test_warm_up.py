"""What is made ready before the first step, and who makes it."""

import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from splaxel_mpi import config
from splaxel_mpi.backends import cuda_compile, cuda_module
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.mpi import world
from splaxel_mpi.mpi.transport import exchange_alone
from splaxel_mpi.train import warm_up
from splaxel_mpi.train.job import make_renderer
from splaxel_mpi.train.world import World

SETTINGS = config.parse("data:\n  path: scene\n", "test", [])


@pytest.mark.parametrize("cells", [1, 2])
def test_the_rehearsal_draws_and_learns(cells):
    """On any backend: the scene is visible, grows, and a step moves it."""
    world.init()
    backend = HostBackend(np.float32, threads=1)
    rehearsal = warm_up.Rehearsal(SETTINGS, backend, make_renderer, cells)
    rehearsal.grow()
    assert len(rehearsal.state.gaussians) > warm_up.COUNT
    before = rehearsal.state.gaussians.means.copy()
    rehearsal.step()
    assert rehearsal.state.step == 1
    assert (rehearsal.state.gaussians.means != before).any(axis=1).mean() > 0.1


def test_jobs_run_at_the_same_time_and_their_mistakes_come_out():
    device = SimpleNamespace(use=lambda: used.append(threading.current_thread()))
    used, meeting = [], threading.Barrier(3)
    with cuda_compile.in_background(device, [lambda: meeting.wait(10)] * 2, 2):
        meeting.wait(10)  # both jobs, during the block
    assert len(set(used)) == 2 and threading.current_thread() not in used
    with pytest.raises(ZeroDivisionError):
        with cuda_compile.in_background(device, [lambda: 1 / 0], 1):
            pass


def test_the_folder_of_kernels(tmp_path):
    assert cuda_module.cache_folder({"CUPY_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cuda_module.cache_folder({}).name == "kernel_cache"
    assert cuda_module.cache_folder({"CUPY_CACHE_IN_MEMORY": "1"}) is None
    path = cuda_compile.probe_folder(tmp_path / "new")
    assert os.path.dirname(path) == str(tmp_path / "new")
    (tmp_path / "file").touch()
    assert cuda_compile.probe_folder(tmp_path / "file" / "below") is None
    assert cuda_compile.probe_folder(None) is None


@pytest.mark.mpi
@pytest.mark.parametrize("cache", ["shared", "apart", "file"])
def test_one_rank_of_a_node_compiles(comm, monkeypatch, tmp_path, caplog, cache):
    """The others wait for it, unless they cannot find what it made."""
    order = []
    folder = comm.bcast(str(tmp_path)) if cache == "shared" else str(tmp_path)
    if cache == "file":
        folder = str(tmp_path / "file")
        open(folder, "w").close()
    monkeypatch.setenv("CUPY_CACHE_DIR", folder)
    place = os.path.join(comm.bcast(str(tmp_path)), "done")

    def prepare(settings, world, make_renderer):
        order.append(os.path.exists(place))
        if comm.rank == 0:
            open(place, "w").close()

    monkeypatch.setattr(warm_up, "_prepare", prepare)
    monkeypatch.setattr(warm_up, "_build_sorts", lambda backend: order.append("sorts"))
    ranks = World(comm, comm, exchange_alone(HostBackend(np.float32)), SimpleNamespace(name="cuda"))
    with caplog.at_level("INFO"):
        warm_up.warm_up(SETTINGS, ranks, make_renderer)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (comm.rank == 0)
    alone = cache == "shared" or comm.size == 1 and cache == "apart"
    if comm.rank == 0:
        assert order == [False] and ("kept in" in lines[0]) == alone
        assert ("cannot be written" in lines[0]) == (cache == "file")
    elif alone:
        assert order == ["sorts", True], "waits for rank 0"
    else:
        assert len(order) == 1
