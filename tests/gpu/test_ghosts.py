"""Splats of a chunk and their ghosts on the GPU: what tests/test_ghosts.py asks of the host."""

import numpy as np
import pytest
from test_ghosts import check_parts, check_routes, check_sums, route, there_and_back

from splaxel_mpi.backends import cuda_ghosts
from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.backends.host import HostBackend

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.mark.parametrize("ranks, rank", [(1, 0), (2, 0), (2, 1)])
@pytest.mark.parametrize("share", [0.0, 0.7])
def test_ghosts_are_those_of_single_splats(ranks, rank, share):
    check_routes(CudaBackend(), ranks, rank, share)


# room for everything; for the splats but not for ghosts behind them; for neither, so that views
# and their ghosts are done again
@pytest.mark.parametrize("least", [1 << 16, 300, 5])
@pytest.mark.parametrize("ranks, rank", [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_ghosts_come_and_their_gradients_go(ranks, rank, least, monkeypatch):
    monkeypatch.setattr(cuda_ghosts, "LEAST_ROOM", least)
    backend = CudaBackend()
    for _ in range(2):
        found = there_and_back(backend, ranks, rank)
        check_parts(found)
        check_sums(found)


def test_without_ghosts():
    """Boundaries that have none ask for the ends of cells alone."""
    backend = CudaBackend()
    layout, want = route(backend, 1, 0, 0.0)
    projected = want.state.projected
    found = backend.start_route(projected, layout, [None] * 3, wanted=False).take()
    assert found.ends == want.ends and found.counts is None
    parts = backend.place_ghosts(found, None, None)
    rows = backend.gradient_rows(found, 9)
    for v, (view, of_view) in enumerate(zip(parts, rows)):
        for k, (part, gradient) in enumerate(zip(view, of_view)):
            assert len(part) == len(gradient) == found.ends[v][k + 1] - found.ends[v][k]
            gradient[...] = 10 * v + k
    for v, sums in enumerate(backend.add_gradients(found, rows, None, 9)):
        sizes = np.diff(found.ends[v])
        assert (sums.get() == np.repeat(10 * v + np.arange(3), sizes)[:, None]).all()


def test_a_value_that_is_not_finite_shows():
    backend, random = CudaBackend(), np.random.default_rng(0)
    values = random.normal(size=(100_003, 9)).astype(np.float32)
    values[0, 0], values[-1, -1] = 3e38, 3e38  # their sum overflows, which is not asked
    for place, value in ((None, 0), ((7, 3), np.nan), ((100_002, 8), -np.inf)):
        if place:
            values[place] = value
        found = float(backend.finite_sum(backend.to_device(values)))
        assert np.isfinite(found) == (place is None)
        values[0, 0] = 1.0
    assert float(backend.finite_sum(backend.zeros((0, 9)))) == 0
    assert np.isnan(HostBackend(np.float32).finite_sum(values))


def test_arrays_travel_together():
    backend, random = CudaBackend(), np.random.default_rng(1)
    arrays = [random.integers(0, 9, shape).astype(kind) for shape, kind in
              [((3, 5), np.uint8), ((0,), np.int32), ((7,), np.int64), ((2, 3), np.float32),
               ((5,), bool)]]
    placed = backend.to_device_together(arrays)
    for back in (map(backend.to_host, placed), backend.start_reading(placed).take()):
        for array, one in zip(arrays, back):
            assert one.dtype == array.dtype
            np.testing.assert_array_equal(one, array)
    assert backend.to_device_together([]) == [] and backend.start_reading([]).take() == []
