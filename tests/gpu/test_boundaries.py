"""The settings of boundary on a GPU: what is drawn equals the host's; content boxes of device
arrays."""

import numpy as np
import pytest
from chain import EXACT, compare
from exchanges import SelfExchange
from regrouped import regroup
from scenes import random_gaussians
from splats import Raster
from test_boundaries import cell_and_splats
from splaxel_mpi.partition.content import ContentBoxes
from splaxel_mpi.partition.kdtree import build

from .test_lists import Lists, check_host_intervals, to_device

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_bounds_count_in_covered_tiles_alone():
    """The lists and intervals of the host, to the bit, for some, none and all tiles covered."""
    import cupy

    camera, boxes, splats = cell_and_splats(np.float32)
    host, lists, random = Raster(np.float32, 2), Lists(), np.random.default_rng(0)
    device, with_intervals = to_device(splats), 0
    for share in (0.5, 0.0, 1.0):
        covered = (random.random(camera.tile_count) < share).astype(np.uint8)
        mask = (random.random(camera.tile_count) < 0.8).astype(np.uint8)
        for box in boxes:
            for live in (None, mask):
                expected = host.tile_lists(splats, camera, box, live, covered)
                found = lists.tile_lists(
                    device, camera, box, live if live is None else cupy.asarray(live),
                    covered=cupy.asarray(covered),
                )
                for name in ("tiles", "offsets", "items"):
                    np.testing.assert_array_equal(
                        getattr(found, name).get(), getattr(expected, name), name
                    )
                assert (found.intervals is None) == (expected.intervals is None)
                if expected.intervals is not None:
                    check_host_intervals(found, expected.intervals)
                    check_free_tiles(found, camera, covered)
                    with_intervals += 1
    assert with_intervals > 5


def check_free_tiles(found, camera, covered):
    """All of space in uncovered tiles; empty outside the image."""
    tiles, across = found.tiles.get(), camera.tiles[0]
    free = np.flatnonzero(covered[tiles] == 0)
    pixel = np.arange(256)
    x = tiles[free, None] % across * 16 + pixel % 16
    y = tiles[free, None] // across * 16 + pixel // 16
    far = np.where((x < camera.width) & (y < camera.height), np.float32(3e38), np.float32(-3e38))
    intervals = found.intervals.get()[free]
    np.testing.assert_array_equal(intervals[:, 0], -far)
    np.testing.assert_array_equal(intervals[:, 1], far)


@pytest.mark.parametrize("cells", [2, 5])
@pytest.mark.parametrize("boundary", ["filter", "none"])
def test_gpu_equals_host(boundary, cells):
    """Images and gradients, at the bars of design section 10."""
    from mpi4py import MPI

    from splaxel_mpi.backends.cuda import CudaBackend
    from splaxel_mpi.mpi.staged import StagedExchange

    compare(StagedExchange(MPI.COMM_SELF), cells, np.float32, 0.0, EXACT[np.float32], seed=cells,
            backend=CudaBackend(), boundary=boundary)


def test_content_boxes_of_device_arrays():
    """The boxes of the host up to the rounding of exponentials in float32, and stale alike."""
    import cupy

    gaussians, exchange = random_gaussians(5000, 1, np.float32), SelfExchange()
    tree = build(gaussians.means, None, 5, exchange)
    gaussians, _, offsets = regroup(gaussians, {}, tree, exchange)
    device, boxes = gaussians.map(cupy.asarray), [ContentBoxes(0.01), ContentBoxes(0.01)]
    for one, rows in zip(boxes, (gaussians, device)):
        assert one.refresh(rows, offsets, tree, exchange)
        assert not one.refresh(rows, offsets, tree, exchange)
    np.testing.assert_allclose(boxes[1].boxes, boxes[0].boxes, atol=1e-5)
    device.means[7] += 20
    assert boxes[1].refresh(device, offsets, tree, exchange)
