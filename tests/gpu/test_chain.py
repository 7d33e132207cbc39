"""The whole chain on a GPU: image and gradients equal those of the host."""

import numpy as np
import pytest

from chain import DEFAULT_STOP, EXACT, compare

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def exchange():
    """One rank, device arrays staged through the host."""
    from mpi4py import MPI

    from splaxel_mpi.mpi.staged import StagedExchange

    return StagedExchange(MPI.COMM_SELF)


@pytest.fixture(scope="module")
def backend():
    from splaxel_mpi.backends.cuda import CudaBackend

    return CudaBackend()


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 8])
def test_gpu_equals_host(exchange, backend, cells):
    bars = EXACT[np.float32]
    compare(exchange, cells, np.float32, 0.0, bars, seed=cells, backend=backend)


def test_default_stop_stays_close(exchange, backend):
    compare(exchange, 3, np.float32, 1e-4, DEFAULT_STOP, True, seed=5, backend=backend)
