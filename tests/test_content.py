"""Content boxes: they hold what is drawn in a cell, and tell which cells a view needs."""

import numpy as np
import pytest
from exchanges import SelfExchange, exchange_of, run_ranks
from regrouped import regroup
from scipy.optimize import linprog
from scipy.spatial.transform import Rotation

from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.content import ContentBoxes, half_extents
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import Gaussians


def scene(count=3000, seed=0, dtype=np.float64):
    """Flat cloud of elongated Gaussians with ids 0 to count - 1."""
    random = np.random.default_rng(seed)
    out = Gaussians.empty(count, dtype)
    out.means[:] = random.normal(size=(count, 3)) * [10, 6, 2]
    out.scales[:] = random.normal(size=(count, 3)) - 2
    out.quats[:] = random.normal(size=(count, 4))
    out.ids[:] = np.arange(count)
    return out


def rotations(quats):
    return Rotation.from_quat(quats[:, [1, 2, 3, 0]]).as_matrix()


def extents(gaussians):
    """Corners of the boxes from the covariance R S S R^T."""
    matrix = rotations(gaussians.quats) * np.exp(gaussians.scales)[:, None]
    half = 3.33 * np.sqrt(np.einsum("nij,nij->ni", matrix, matrix))
    return gaussians.means - half, gaussians.means + half


def parts_of(gaussians, tree, ranks):
    return run_ranks(ranks, lambda e: regroup(gaussians if e.rank == 0 else gaussians.take([]),
                                              {}, tree, e))


def boxes_of(gaussians, tree, ranks, margin):
    parts = parts_of(gaussians, tree, ranks)

    def one(exchange):
        boxes = ContentBoxes(margin)
        part, _, offsets = parts[exchange.rank]
        boxes.update(part, offsets, tree, exchange)
        assert not boxes.stale(part, offsets, tree, exchange)
        return boxes

    results = run_ranks(ranks, one)
    assert all((other.boxes == results[0].boxes).all() for other in results)
    return results[0]


def random_camera(random):
    rotation = Rotation.random(random_state=random.integers(1 << 30)).as_matrix()
    center = random.normal(size=3) * [15, 10, 5]
    return Camera(640, 400, 500.0, 510.0, 300.0, 210.0, rotation, -rotation @ center)


def test_half_extents_are_those_of_the_ellipsoid():
    gaussians = scene(500)
    low, high = extents(gaussians)
    # two ways to the same sums of squares
    half = half_extents(gaussians.scales, gaussians.quats)
    np.testing.assert_allclose(half, (high - low) / 2, rtol=1e-10)
    random = np.random.default_rng(1).normal(size=(500, 2000, 3))
    sphere = random / np.linalg.norm(random, axis=2, keepdims=True)
    surface = np.einsum("nij,nj,nkj->nki", rotations(gaussians.quats),
                        3.33 * np.exp(gaussians.scales), sphere)
    ratio = np.abs(surface).max(axis=1) / half
    assert ratio.max() <= 1 + 1e-12 and ratio.min() > 0.9


@pytest.mark.parametrize("cells,ranks", [(1, 1), (5, 1), (5, 3), (8, 3), (2, 4)])
def test_boxes_hold_all_extents_cut_to_the_cells(cells, ranks):
    gaussians = scene()
    tree = build(gaussians.means, None, cells, SelfExchange())
    boxes = boxes_of(gaussians, tree, ranks, 0.0).boxes
    low, high = extents(gaussians)
    for cell, (lower, upper) in enumerate(tree.boxes()):
        meets = ((low < upper) & (high >= lower)).all(axis=1)
        np.testing.assert_allclose(boxes[cell, 0], np.maximum(low[meets].min(axis=0), lower))
        np.testing.assert_allclose(boxes[cell, 1], np.minimum(high[meets].max(axis=0), upper))


def test_margin_widens_but_not_beyond_the_cell():
    gaussians = scene()
    tree = build(gaussians.means, None, 4, SelfExchange())
    tight, wide = (boxes_of(gaussians, tree, 2, margin).boxes for margin in (0.0, 0.05))
    grown = 0.05 * np.linalg.norm(tight[:, 1] - tight[:, 0], axis=1)[:, None]
    cells = tree.boxes()
    np.testing.assert_allclose(wide[:, 0], np.maximum(tight[:, 0] - grown, cells[:, 0]))
    np.testing.assert_allclose(wide[:, 1], np.minimum(tight[:, 1] + grown, cells[:, 1]))
    with pytest.raises(ValueError, match="margin"):
        ContentBoxes(-0.1)


@pytest.mark.parametrize("change", ["moves", "grows", "enters another cell", "is lost"])
def test_stale_once_the_margin_is_used_up(change):
    gaussians = scene(dtype=np.float32)
    tree = build(gaussians.means, None, 4, SelfExchange())
    part, _, offsets = regroup(gaussians, {}, tree, SelfExchange())
    boxes = ContentBoxes(0.05)
    assert boxes.stale(part, offsets, tree, SelfExchange())  # nothing computed yet
    boxes.update(part, offsets, tree, SelfExchange())
    row = int(part.means[:, 0].argmax())
    slack = 0.05 * np.linalg.norm(boxes.boxes[3, 1] - boxes.boxes[3, 0]) / 1.1
    part.means[row, 0] += 0.5 * slack
    assert not boxes.stale(part, offsets, tree, SelfExchange())
    if change == "moves":
        part.means[row, 0] += slack + 10
    elif change == "grows":
        part.scales[row] += 4
    elif change == "enters another cell":
        part.means[row] = part.means[0] - [100, 0, 0]
    else:
        part.means[row, 1] = np.nan
    assert boxes.stale(part, offsets, tree, SelfExchange())


def test_cells_without_content_have_empty_boxes_and_take_no_part():
    gaussians = scene(3)
    tree = build(scene().means, None, 16, SelfExchange())
    gaussians.scales[:] = -10
    boxes = boxes_of(gaussians, tree, 2, 0.05)
    held = (boxes.boxes[:, 0] <= boxes.boxes[:, 1]).all(axis=1)
    assert 1 <= held.sum() <= 3
    assert (boxes.boxes[~held] == [[[np.inf] * 3, [-np.inf] * 3]]).all()
    random = np.random.default_rng(0)
    seen = {int(c) for _ in range(50) for c in boxes.participants(random_camera(random))}
    assert seen == set(np.flatnonzero(held))


def test_gaussians_that_are_not_finite_are_refused_on_every_rank():
    gaussians = scene(300)
    tree = build(gaussians.means, None, 4, SelfExchange())
    gaussians.scales[17, 1] = np.nan
    parts = parts_of(gaussians, tree, 2)

    def one(exchange):
        part, _, offsets = parts[exchange.rank]
        with pytest.raises(UserError, match="not finite"):
            ContentBoxes().update(part, offsets, tree, exchange)
        return True

    assert all(run_ranks(2, one))


def frustum_meets(box, camera, near):
    """Whether a box and the frustum of the image widened by 2 pixels share a point: a linear
    program over points of the box."""
    x = (np.array([-2, camera.width + 2]) - camera.cx) / camera.fx
    y = (np.array([-2, camera.height + 2]) - camera.cy) / camera.fy
    # rows a . (view position) <= 0, and -z <= -near
    rows = [[-1, 0, x[0]], [1, 0, -x[1]], [0, -1, y[0]], [0, 1, -y[1]], [0, 0, -1]]
    limits = np.array([0, 0, 0, 0, -near]) - rows @ camera.translation
    return linprog(np.zeros(3), rows @ camera.rotation, limits, bounds=box.T).status == 0


@pytest.mark.parametrize("near", [0.0, 4.0])
def test_participants_are_the_cells_that_the_frustum_meets(near):
    gaussians = scene()
    tree = build(gaussians.means, None, 16, SelfExchange())
    boxes = boxes_of(gaussians, tree, 1, 0.0)
    random = np.random.default_rng(5)
    met = 0
    for _ in range(12):
        camera = random_camera(random)
        expected = [c for c in range(16) if frustum_meets(boxes.boxes[c], camera, near)]
        found = boxes.participants(camera, near)
        assert found.dtype == np.int32 and list(found) == expected
        met += len(expected)
    assert 0.1 < met / (12 * 16) < 0.9


@pytest.mark.mpi
@pytest.mark.parametrize("cells", [5, 8])
def test_mpi_boxes_equal_those_of_one_rank(comm, cells):
    gaussians = scene()
    tree = build(gaussians.means, None, cells, SelfExchange())
    exchange = exchange_of(comm)
    mine = gaussians.take(np.arange(comm.rank, len(gaussians), comm.size))
    part, _, offsets = regroup(mine, {}, tree, exchange)
    boxes = ContentBoxes(0.02)
    boxes.update(part, offsets, tree, exchange)
    whole, _, offsets = regroup(gaussians, {}, tree, SelfExchange())
    alone = ContentBoxes(0.02)
    alone.update(whole, offsets, tree, SelfExchange())
    assert (boxes.boxes == alone.boxes).all()
