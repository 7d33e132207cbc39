"""The k-d tree from means on a device is the tree of the host, bit for bit."""

import numpy as np
import pytest
from exchanges import SelfExchange
from test_kdtree import city, same

from splaxel_mpi.partition.assign import cells_of
from splaxel_mpi.partition.kdtree import build

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("cells", [1, 2, 5, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weights", [None, "integer", "float"])
def test_same_tree(cells, dtype, weights):
    import cupy

    points = city(30_000, dtype=dtype)
    points[:500] = points[0]  # equal coordinates, and zeros of both signs
    points[500:600, 0], points[600:700, 0] = 0.0, -0.0
    if weights:
        weights = np.random.default_rng(1).integers(0, 50, len(points))
        weights = weights * 0.37 if weights is None or dtype == np.float64 else weights
    want = build(points, weights, cells, SelfExchange())
    on_device = None if weights is None else cupy.asarray(weights)
    found = build(cupy.asarray(points), on_device, cells, SelfExchange())
    assert same(found, want)
    cells_there = cells_of(found, cupy.asarray(points), cupy).get()
    np.testing.assert_array_equal(cells_there, cells_of(want, points))


def test_few_points_and_a_sample():
    import cupy

    points = city(5000)
    rows = np.arange(0, 5000, 7)
    want = build(points, None, 9, SelfExchange(), rows)
    for sample in (rows, cupy.asarray(rows)):
        assert same(build(cupy.asarray(points), None, 9, SelfExchange(), sample), want)
    for count in (0, 1, 3):
        want = build(points[:count], None, 9, SelfExchange())
        assert same(build(cupy.asarray(points[:count]), None, 9, SelfExchange()), want)


def test_bad_means_are_refused():
    import cupy

    points = cupy.asarray(city(100))
    points[7, 1] = np.nan
    with pytest.raises(ValueError, match="1 of 100 means are not finite"):
        build(points, None, 4, SelfExchange())
    with pytest.raises(ValueError, match="2 of 100 weights are negative or not finite"):
        weights = cupy.ones(100)
        weights[:2] = -1
        build(cupy.asarray(city(100)), weights, 4, SelfExchange())
