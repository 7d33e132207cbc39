"""The whole chain on a GPU: image and gradients equal those of the host."""

import numpy as np
import pytest

from chain import DEFAULT_STOP, EXACT, compare
from test_saturation import CAMERAS, Scene, nearest

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


@pytest.mark.parametrize("reevaluate", ["residual", "always"])
def test_masks_are_the_hosts(exchange, backend, reevaluate):
    """A cell fades after the first visit, so that masks are taken back until the image is whole
    again. Transmittances differ in their last digits, so a tile at the threshold itself may be
    masked on one side alone: 1 % of them."""
    host, gpu = (
        Scene(reevaluate, stop=1e-4, real=np.float32, **where)
        for where in ({}, dict(exchange=exchange, backend=backend))
    )
    for visit in range(7):
        expected, found = host.visit()[2], gpu.visit()[2]
        assert expected[1] > 0 or visit == 0
        np.testing.assert_allclose(found, expected, atol=0.01 * expected[:2].sum())
        if visit in (0, 6):
            image = gpu.run.image(CAMERAS[0], 0)
            assert np.abs(image - host.run.image(CAMERAS[0], 0)).max() <= 1e-3
        if visit == 0:
            host.fade(nearest(host))
            gpu.fade(nearest(host))
