"""Which cells a splat reaches: nothing may be missed, by brute force over pixels and cells."""

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splaxel_mpi.backends.base import DEPTH, EXTENT_X, EXTENT_Y, SPLAT, U, V, Splats
from splaxel_mpi.backends.host_project import HostProject
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.camera import Camera


class Host(HostProject):
    def __init__(self, real=np.float64, threads=1):
        self.real, self.threads = np.dtype(real), threads


def random_tree(rng, cells, faces=None):
    """A tree of random axes and splits; faces: per axis, values that splits are drawn from."""
    nodes = {"axis": [], "split": [], "left": [], "right": []}
    numbered = iter(range(cells))

    def grow(count, low, high):
        if count == 1:
            return -1 - next(numbered)
        node, axis = len(nodes["axis"]), int(rng.integers(3))
        split = rng.uniform(low[axis], high[axis])
        if faces is not None and low[axis] < faces[axis] < high[axis]:
            split = faces[axis]
        for name, value in (("axis", axis), ("split", split), ("left", 0), ("right", 0)):
            nodes[name].append(value)
        below, above = high.copy(), low.copy()
        below[axis] = above[axis] = split
        nodes["left"][node] = grow(count // 2, low, below)
        nodes["right"][node] = grow(count - count // 2, above, high)
        return node

    grow(cells, np.full(3, -3.0), np.full(3, 3.0))
    types = {"axis": np.int32, "split": np.float64, "left": np.int32, "right": np.int32}
    return Tree(**{name: np.array(nodes[name], kind) for name, kind in types.items()})


def cell_of(tree, point):
    """The cell that holds a point."""
    child = 0 if len(tree.axis) else -1
    while child >= 0:
        low = point[tree.axis[child]] < tree.split[child]
        child = tree.left[child] if low else tree.right[child]
    return -1 - child


def random_splats(rng, camera, count, real):
    """Boxes of all sizes, some past the image border, at depths across the tree."""
    data = np.zeros((count, SPLAT), real)
    data[:, U] = rng.uniform(-10, camera.width + 10, count)
    data[:, V] = rng.uniform(-10, camera.height + 10, count)
    data[:, EXTENT_X] = np.exp(rng.uniform(-1, 3, count))
    # edge-on discs are long and thin on the screen
    data[:, EXTENT_Y] = np.exp(rng.uniform(-1, 3, count))
    data[:, DEPTH] = np.exp(rng.uniform(-2, 2, count))
    return Splats(np.arange(count, dtype=np.int32), data, np.arange(count))


def point_of(camera, u, v, depth):
    view = depth * np.array([(u - camera.cx) / camera.fx, (v - camera.cy) / camera.fy, 1])
    return camera.center + camera.rotation.T @ view


def owners(tree, camera, splats):
    return np.array([cell_of(tree, point_of(camera, row[U], row[V], row[DEPTH]))
                     for row in splats.data.astype(np.float64)], np.int32)


def holds(box, center, directions, depth, real):
    """Per pixel, whether the ray interval of a cell holds a depth (design section 4)."""
    inside = np.zeros(len(directions), real)
    outside = np.full(len(directions), np.inf, real)
    empty = np.zeros(len(directions), bool)
    for axis in range(3):
        slope = directions[:, axis]
        for side, face in enumerate(box[:, axis]):
            if np.isinf(face):
                continue
            offset = face - center[axis]
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = real(offset) / slope
            enters = slope > 0 if side == 0 else slope < 0
            leaves = slope < 0 if side == 0 else slope > 0
            inside = np.where(enters, np.maximum(inside, crossing), inside)
            outside = np.where(leaves, np.minimum(outside, crossing), outside)
            beyond = center[axis] < face if side == 0 else not center[axis] < face
            empty |= (slope == 0) & beyond
    return (inside <= depth) & (depth < outside) & ~empty


def drawn_by(splat, camera, boxes, real):
    """Cells whose interval holds the splat at a pixel centre of its box."""
    x = np.arange(camera.width) + 0.5
    y = np.arange(camera.height) + 0.5
    x = x[abs(x - splat[U]) <= splat[EXTENT_X]]
    y = y[abs(y - splat[V]) <= splat[EXTENT_Y]]
    x, y = (part.ravel().astype(real) for part in np.meshgrid(x, y))
    turn = camera.rotation.T.astype(real)
    slope_x = (x - real(camera.cx)) / real(camera.fx)
    slope_y = (y - real(camera.cy)) / real(camera.fy)
    directions = np.stack([turn[a, 0] * slope_x + turn[a, 1] * slope_y + turn[a, 2]
                           for a in range(3)], axis=1)
    return {cell for cell, box in enumerate(boxes)
            if holds(box, camera.center, directions, splat[DEPTH], real).any()}


def turned_camera(rng, kind):
    """random: anywhere; straight: axes of the world, so that directions have exact zeros."""
    turn = np.eye(3)
    if kind == "random":
        turn = Rotation.random(random_state=int(rng.integers(1 << 30))).as_matrix()
    center = rng.uniform(-2, 2, 3)
    return Camera(48, 40, 40.0, 42.0, 24.5, 19.5, turn, -turn @ center)


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["random", "straight"])
@pytest.mark.parametrize("on_face", [False, True])
def test_nothing_is_missed(real, kind, on_face):
    rng = np.random.default_rng(3)
    useless = useful = 0
    for cells in (2, 3, 8, 8, 21, 21):
        camera = turned_camera(rng, kind)
        tree = random_tree(rng, cells, camera.center if on_face else None)
        splats = random_splats(rng, camera, 60, real)
        own = owners(tree, camera, splats)
        own[::7] = rng.integers(0, cells, len(own[::7]))  # a mean that has left its cell
        index, cell = Host(real).reach(splats, own, camera, tree)
        assert index.dtype == cell.dtype == np.int32
        pairs = list(zip(index.tolist(), cell.tolist()))
        assert pairs == sorted(set(pairs))
        assert not (own[index] == cell).any()
        boxes = tree.boxes()
        for k, splat in enumerate(splats.data):
            needed = drawn_by(splat, camera, boxes, real) - {int(own[k])}
            reported = set(cell[index == k].tolist())
            assert needed <= reported, (cells, k, needed - reported)
            useful += len(needed)
            useless += len(reported - needed)
    assert useful > 40
    # cells that the quad touches between pixel centres
    assert useless < 0.25 * useful


def test_face_through_a_splat_and_beside_it():
    camera = Camera(64, 64, 50.0, 50.0, 32.0, 32.0, np.eye(3), np.zeros(3))
    tree = Tree(*(np.array([value], kind) for value, kind in
                  ((0, np.int32), (0.1, np.float64), (-1, np.int32), (-2, np.int32))))
    data = np.zeros((4, SPLAT))
    data[:, DEPTH] = 2
    data[:, EXTENT_X] = data[:, EXTENT_Y] = 4
    data[:, V] = 32
    # the face x = 0.1 is seen at u = 34.5 at depth 2
    data[:, U] = [34.0, 20.0, 50.0, 30.2]
    splats = Splats(np.arange(4, dtype=np.int32), data, np.arange(4))
    index, cell = Host().reach(splats, np.array([0, 0, 1, 0], np.int32), camera, tree)
    # the last one's box ends at 34.2, between two centres: the pixel at 34.5 is not drawn
    assert list(zip(index, cell)) == [(0, 1)]
    index, cell = Host().reach(splats, np.ones(4, np.int32), camera, tree)
    assert list(zip(index, cell)) == [(0, 0), (1, 0), (3, 0)]
    index, _ = Host().reach(splats, np.zeros(4, np.int32), camera, Tree.single())
    assert len(index) == 0


def test_boxes_without_a_pixel_centre_reach_nothing():
    camera = Camera(64, 64, 50.0, 50.0, 32.0, 32.0, np.eye(3), np.zeros(3))
    tree = random_tree(np.random.default_rng(1), 8)
    data = np.zeros((2, SPLAT))
    data[:, DEPTH], data[:, EXTENT_X:] = 1, 0.3
    data[:, U], data[:, V] = [30.0, -5.0], [30.5, 30.5]
    splats = Splats(np.arange(2, dtype=np.int32), data, np.arange(2))
    index, _ = Host().reach(splats, np.zeros(2, np.int32), camera, tree)
    assert len(index) == 0


def test_threads_and_room_do_not_change_the_result():
    rng = np.random.default_rng(8)
    camera = turned_camera(rng, "random")
    tree = random_tree(rng, 40)
    splats = random_splats(rng, camera, 3001, np.float32)
    splats.data[:, EXTENT_X:] = 60  # reaches many cells: more pairs than are expected at first
    own = np.zeros(3001, np.int32)
    one, three = (Host(np.float32, threads).reach(splats, own, camera, tree)
                  for threads in (1, 3))
    assert len(one[0]) > 3001
    np.testing.assert_array_equal(one, three)


def test_wrong_arguments():
    rng = np.random.default_rng(8)
    camera = turned_camera(rng, "random")
    tree = random_tree(rng, 3)
    splats = random_splats(rng, camera, 5, np.float64)
    with pytest.raises(ValueError, match="own must be"):
        Host().reach(splats, np.zeros(5, np.int64), camera, tree)
    with pytest.raises(ValueError, match="splats.data must be .*float32"):
        Host(np.float32).reach(splats, np.zeros(5, np.int32), camera, tree)
    count = 40  # a chain: node k holds cell k and the rest
    chain = Tree(np.zeros(count, np.int32), np.arange(count, dtype=np.float64),
                 -1 - np.arange(count, dtype=np.int32),
                 np.append(np.arange(1, count), -1 - count).astype(np.int32))
    with pytest.raises(ValueError, match="deeper than 31 levels"):
        Host().reach(splats, np.zeros(5, np.int32), camera, chain)
