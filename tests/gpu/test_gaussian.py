"""Strategy gaussian on GPUs, on one rank or under mpirun, where ranks may share one.

    mpirun -n 3 python -m mpi4py -m pytest -m gpu tests/gpu/test_gaussian.py
"""

import numpy as np
import pytest

from chain import DEFAULT_STOP, EXACT, NEAR
from scenes import look_at, random_gaussians
from splaxel_mpi.compose.strips import cut, row_instances, tile_boxes, touched
from splaxel_mpi.mpi import device
from strip_run import compare_with_plain

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture
def backend(comm):
    from splaxel_mpi.backends.cuda import CudaBackend

    device.bind(comm, share=True)
    return CudaBackend()


@pytest.mark.parametrize("strips", ["predicted", "measured"])
@pytest.mark.parametrize("stop, bars", [(0.0, EXACT[np.float32]), (1e-4, DEFAULT_STOP)])
def test_ranks_equal_plain_on_the_host(comm, backend, strips, stop, bars):
    from splaxel_mpi.mpi.staged import StagedExchange

    compare_with_plain(StagedExchange(comm), np.float32, stop, bars, stop > 0, backend,
                       strips=strips)


@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_routes_are_those_of_the_host(backend, count, ranks):
    camera = look_at([2.5, -2, 0.5], [0, 0, 0], 297, 161)
    gaussians = random_gaussians(count, 3, np.float32).map(backend.to_device)
    splats, host = backend.project(gaussians, camera, 1, NEAR), backend.to_host
    found = tile_boxes(splats, camera, backend.xp)
    splats.data = host(splats.data)
    expected = tile_boxes(splats, camera, np)
    for name, array in vars(expected).items():
        np.testing.assert_array_equal(host(getattr(found, name)), array, err_msg=name)
    rows = row_instances(expected, camera, np)
    np.testing.assert_array_equal(host(row_instances(found, camera, backend.xp)), rows)
    starts = cut(rows + 1, camera, ranks)
    pairs = touched(found, starts, camera, backend.xp)
    for array, other in zip(pairs, touched(expected, starts, camera, np)):
        np.testing.assert_array_equal(host(array), other)
