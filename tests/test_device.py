"""Which backend and which GPU a rank takes, on machines without one: what CuPy says is made up."""

import sys
import types

import pytest

import splaxel_mpi.backends as backends
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import device, launcher
from splaxel_mpi.settings import BackendSection


class NoDriver(Exception):
    pass


def fake_cupy(monkeypatch, count):
    """A CuPy that sees `count` GPUs, or that finds no driver (None)."""

    def get_count():
        if count is None:
            raise NoDriver("cudaErrorInsufficientDriver: too old")
        return count

    runtime = types.SimpleNamespace(getDeviceCount=get_count, CUDARuntimeError=NoDriver)
    cupy = types.ModuleType("cupy")
    cupy.__version__, cupy.cuda = "14.2", types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", cupy)


@pytest.mark.parametrize(
    "environment, place",
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}, 3),
        ({"MPI_LOCALRANKID": "2"}, 2),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "1"}, 1),
        ({"SLURM_LOCALID": "5", "SLURM_STEP_ID": "0"}, 5),
        # a batch shell: mpirun's processes inherit it, all the same
        ({"SLURM_LOCALID": "0"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "x"}, None),
    ],
)
def test_place_on_the_node(environment, place):
    assert launcher.local_rank(environment) == place


@pytest.mark.parametrize(
    "place, ranks, count, share, index",
    [
        (0, 1, 1, False, 0),
        (2, 4, 4, False, 2),
        (1, 2, 4, False, 1),
        # a launcher that shows each rank its own
        (3, 4, 1, False, 0),
        (5, 8, 4, True, 1),
    ],
)
def test_gpu_of_a_place(place, ranks, count, share, index):
    assert device.select(place, ranks, count, share) == index


def test_too_few_gpus():
    with pytest.raises(UserError, match="8 ranks on a node of 4 GPUs: start 4 .*share_gpu"):
        device.select(0, 8, 4, False)
    with pytest.raises(UserError, match="a rank sees no GPU"):
        device.select(0, 1, 0, True)


def test_binding_before_mpi(monkeypatch):
    used = []
    monkeypatch.setattr(device, "use", used.append)
    monkeypatch.setattr(device, "visible", lambda: 4)
    assert device.bind_early({}) is None
    assert device.bind_early({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}) == 2
    monkeypatch.setattr(device, "visible", lambda: 1)
    assert device.bind_early({"MPI_LOCALRANKID": "2"}) == 0
    monkeypatch.setattr(device, "visible", lambda: 0)
    assert device.bind_early({"MPI_LOCALRANKID": "2"}) is None
    assert used == [2, 0]


def test_early_binding_survives_whatever_cupy_does(monkeypatch):
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    assert device.visible() == 0
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: True)
    fake_cupy(monkeypatch, None)
    assert device.visible() == 0
    fake_cupy(monkeypatch, 3)
    assert device.visible() == 3


def gpus(monkeypatch, count, identities):
    """Make this process see `count` GPUs with these identities; returns what becomes current."""
    used = []
    monkeypatch.setattr(device, "use", used.append)
    monkeypatch.setattr(device, "visible", lambda: count)
    monkeypatch.setattr(device, "identity", lambda index: (identities[index], "NVIDIA H200"))
    return used


@pytest.mark.mpi
def test_each_rank_gets_its_own(comm, monkeypatch):
    used = gpus(monkeypatch, comm.size, [f"GPU-{k}" for k in range(comm.size)])
    lines = device.bind(comm, False, {})
    assert used == [comm.rank]
    if comm.rank:
        assert lines is None
    else:
        assert len(lines) == comm.size
        last = comm.size - 1
        assert lines[-1].startswith(f"rank {last}: GPU {last} NVIDIA H200 GPU-{last} on ")


@pytest.mark.mpi
def test_a_launcher_may_show_each_rank_one(comm, monkeypatch):
    used = gpus(monkeypatch, 1, [f"GPU-{comm.rank}"])
    environment = {"OMPI_COMM_WORLD_LOCAL_RANK": str(comm.rank)}
    lines = device.bind(comm, False, environment)
    assert used == [0] and (comm.rank or f"GPU-{comm.size - 1} " in lines[-1])


@pytest.mark.mpi
def test_sharing_is_refused_on_every_rank_unless_asked_for(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    used = gpus(monkeypatch, 1, ["GPU-a"])
    with pytest.raises(UserError, match=f"{comm.size} ranks would share GPU-a.*share_gpu=true"):
        device.bind(comm, False, {})
    device.bind(comm, True, {})
    assert used == [0, 0]
    used = gpus(monkeypatch, comm.size - 1 or 1, ["GPU-a", "GPU-b", "GPU-c"])
    if comm.size > 2:
        with pytest.raises(UserError, match=f"{comm.size} ranks on a node of {comm.size - 1}"):
            device.bind(comm, False, {})
        device.bind(comm, True, {})
        assert used == [comm.rank % (comm.size - 1)]


@pytest.mark.mpi
def test_all_take_the_host_where_one_must(comm):
    assert device.agree(comm, "host", "asked for") == ("host", "asked for")
    last = comm.size - 1
    mine = ("host", "no driver") if comm.rank == last else ("cuda", "there is one")
    name, reason = device.agree(comm, *mine)
    assert name == "host"
    assert reason == (f"rank {last} has to: no driver" if last else "no driver")


def test_choice_of_the_backend(monkeypatch):
    auto, cuda = BackendSection(), BackendSection(name="cuda")
    assert backends.choose_backend(BackendSection(name="host")) == ("host", "asked for")
    fake_cupy(monkeypatch, 2)
    assert backends.choose_backend(auto) == ("cuda", "CuPy 14.2 sees 2 GPUs")
    assert backends.choose_backend(cuda) == ("cuda", "asked for")
    double = BackendSection(precision="float64")
    assert backends.choose_backend(double)[0] == "host"
    with pytest.raises(UserError, match="backend.precision: the cuda backend computes in float32"):
        backends.choose_backend(BackendSection(name="cuda", precision="float64"))


def test_no_gpu(monkeypatch):
    auto, cuda = BackendSection(), BackendSection(name="cuda")
    fake_cupy(monkeypatch, None)
    name, reason = backends.choose_backend(auto)
    assert name == "host" and "sees no GPU: cudaErrorInsufficientDriver" in reason
    with pytest.raises(UserError, match="cuda is asked for, but CuPy 14.2 sees no GPU"):
        backends.choose_backend(cuda)
    fake_cupy(monkeypatch, 0)
    assert backends.choose_backend(auto) == ("host", "CuPy 14.2 sees 0 GPUs")
    monkeypatch.setitem(sys.modules, "cupy", None)  # as if it were not installed
    assert backends.choose_backend(auto)[0] == "host"
    with pytest.raises(UserError, match="CuPy .*: install CuPy .*or set backend.name=host") as info:
        backends.choose_backend(cuda)
    assert "\n" not in str(info.value)


def test_cuda_backend_has_every_stage():
    from splaxel_mpi.backends.base import Backend
    from splaxel_mpi.backends.cuda import CudaBackend

    stages = [name for name, value in vars(Backend).items() if callable(value)]
    missing = [name for name in stages if getattr(CudaBackend, name) is getattr(Backend, name)]
    assert missing == ["to_host", "to_device", "zeros"]  # the same for every backend
    assert CudaBackend.name == "cuda" and "cupy" not in vars(CudaBackend)
