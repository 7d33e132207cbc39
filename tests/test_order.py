"""Visibility order against the intervals in which rays lie in the cells."""

import numpy as np
import pytest
from exchanges import SelfExchange

from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.order import visibility_order
from splaxel_mpi.partition.tree import Tree


def some_tree(cells, seed=0):
    points = np.random.default_rng(seed).normal(size=(2000, 3)) * [5, 3, 2]
    return build(points, None, cells, SelfExchange())


def intervals(tree, center, directions):
    """[in, out) of each ray in each cell, (rays, cells), z >= 0, straight from the boxes: the
    coordinates lower <= c + z d < upper."""
    boxes = tree.boxes()[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (boxes - center) / directions[:, None, None]
    still = directions[:, None] == 0
    inside = (boxes[:, :, 0] <= center) & (center < boxes[:, :, 1])
    enter = np.where(still, np.where(inside, -np.inf, np.inf), z.min(axis=2))
    leave = np.where(still, np.where(inside, np.inf, -np.inf), z.max(axis=2))
    return np.maximum(enter.max(axis=2), 0), leave.min(axis=2)


@pytest.mark.parametrize("cells", [1, 2, 5, 8, 64])
@pytest.mark.parametrize("place", ["inside", "outside", "on a face"])
def test_order_agrees_with_every_ray(cells, place):
    tree = some_tree(cells, seed=cells)
    random = np.random.default_rng(cells)
    center = random.normal(size=3) * (50 if place == "outside" else 2)
    if place == "on a face" and cells > 1:
        center[tree.axis[0]] = tree.split[0]
    directions = random.normal(size=(500, 3))
    directions[:50, 0] = 0  # parallel to faces
    enter, leave = intervals(tree, center, directions)
    order = visibility_order(tree, center)
    assert sorted(order) == list(range(cells)) and order.dtype == np.int32
    for ray in range(len(directions)):
        crossed = [cell for cell in order if enter[ray, cell] < leave[ray, cell]]
        assert crossed
        starts, ends = enter[ray, crossed], leave[ray, crossed]
        # the same division gives both sides of a face, so intervals meet exactly
        assert starts[0] == 0 and ends[-1] == np.inf
        assert (starts[1:] == ends[:-1]).all()


def test_center_on_the_face_sees_the_right_cell_first():
    one = np.array([0], np.int32)
    tree = Tree(one, np.array([1.5]), one - 1, one - 2)
    assert list(visibility_order(tree, np.array([1.5, 0, 0]))) == [1, 0]
    assert list(visibility_order(tree, np.array([1.4, 0, 0]))) == [0, 1]
