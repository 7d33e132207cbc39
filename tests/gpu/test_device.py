"""Binding on a real GPU."""

import subprocess

import pytest

from splaxel_mpi import backends
from splaxel_mpi.mpi import device

pytestmark = pytest.mark.gpu


def test_the_uuid_is_what_nvidia_smi_shows():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    uuid, name = device.identity(0)
    if listed:
        assert uuid in listed and name in listed
    assert uuid.startswith("GPU-") and len(uuid) == 40


def test_binding_names_the_gpu(comm):
    lines = device.bind(comm, False, {})
    uuid, name = device.identity(0)
    assert len(lines) == 1 and lines[0].startswith(f"rank 0: GPU 0 {name} {uuid} on ")


def test_binding_before_mpi():
    import cupy

    assert device.bind_early({"OMPI_COMM_WORLD_LOCAL_RANK": "0"}) == 0
    assert cupy.cuda.Device().id == 0
    count, reason = backends.gpu_count()
    assert count == device.visible() >= 1 and f"sees {count} GPU" in reason
