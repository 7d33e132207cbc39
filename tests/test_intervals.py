"""Depth intervals of cells: they tile every ray, and cells composed equal one list."""

import numpy as np
import pytest
import reference
from splats import Raster, random_seeds, random_splats

from splaxel_mpi.backends.base import Splats
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.camera import Camera

pytestmark = pytest.mark.timeout(120)
REALS = (np.float32, np.float64)


def random_tree(cells, seed, spread=10.0):
    """A k-d tree with random axes and splits inside a cube around the origin."""
    random = np.random.default_rng(seed)
    axis, split, left, right = [], [], [], []

    def grow(count, first, low, high):
        if count == 1:
            return -1 - first
        node = len(axis)
        a = int(random.integers(3))
        s = random.uniform(low[a] + 0.2 * (high[a] - low[a]), high[a] - 0.2 * (high[a] - low[a]))
        for column, value in ((axis, a), (split, s), (left, 0), (right, 0)):
            column.append(value)
        below, above = high.copy(), low.copy()
        below[a], above[a] = s, s
        left[node] = grow(count // 2, first, low, below)
        right[node] = grow(count - count // 2, first + count // 2, above, high)
        return node

    grow(cells, 0, np.full(3, -spread), np.full(3, spread))
    return Tree(
        np.array(axis, np.int32), np.array(split), np.array(left, np.int32),
        np.array(right, np.int32),
    )


def rotation(seed):
    """A random rotation matrix."""
    q, r = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))
    q *= np.sign(np.diag(r))
    return q * np.linalg.det(q)


def make_camera(center, turn, width=37, height=21, principal=(0.0, 0.0)):
    return Camera(
        width, height, 30.0, 31.0, width / 2 + principal[0], height / 2 + principal[1], turn,
        -turn @ np.asarray(center, np.float64),
    )


def cover(camera, depths, real):
    """One opaque-enough splat over the whole image per depth."""
    n = len(depths)
    data = np.zeros((n, 12), real)
    data[:, 0], data[:, 1] = camera.width / 2, camera.height / 2
    data[:, 2] = data[:, 4] = 1e-8
    data[:, 5], data[:, 9] = 0.5, depths
    data[:, 10] = data[:, 11] = 1e5
    ids = np.arange(n, dtype=np.int64)
    return Splats(ids.astype(np.int32), data, ids)


def count_cells(camera, tree, depth, real):
    """How many cells draw a splat of this depth, at every pixel."""
    splats, raster = cover(camera, [depth], real), Raster(real)
    count = np.zeros((camera.height, camera.width), int)
    for box in tree.boxes():
        lists = raster.tile_lists(splats, camera, box)
        partial = raster.rasterize(splats, lists, camera, 0.0)
        image = reference.to_image(lists.tiles, partial.pixels, camera)
        count += image[..., 3] < 0.75
    return count


def face_depths(camera, tree, real):
    """Depths at which rays of a few pixels cross faces, exactly as float values."""
    depths = set()
    for box in tree.boxes():
        for bound in reference.ray_intervals(camera, box, real):
            picked = bound[::9, ::13].ravel()
            depths |= set(picked[np.isfinite(picked) & (picked > 0.01)].tolist())
    return sorted(depths)


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("seed", range(4))
def test_every_depth_lies_in_one_cell(real, seed):
    random = np.random.default_rng(seed)
    tree = random_tree(int(random.integers(2, 9)), seed)
    camera = make_camera(random.uniform(-8, 8, 3), rotation(seed))
    on_faces = face_depths(camera, tree, real)
    chosen = random.permutation(on_faces)[:12].tolist()
    for depth in [*np.exp(random.uniform(-3, 4, 12)), *chosen]:
        assert (count_cells(camera, tree, depth, real) == 1).all(), depth


@pytest.mark.parametrize("real", REALS)
@pytest.mark.parametrize("axis", range(3))
def test_camera_on_a_face(real, axis):
    """The centre lies exactly on a split, and rays run along it (d == 0)."""
    turn = np.eye(3)[[(axis + 1) % 3, (axis + 2) % 3, axis]]
    tree = random_tree(7, 3)
    for node in range(len(tree.axis)):
        for moved in (turn, rotation(5)):
            center = np.array([0.25, -0.5, 0.125])
            center[tree.axis[node]] = tree.split[node]
            # pixel centres (x + 0.5) on the principal point: a column and a row with d == 0
            camera = make_camera(center, moved, 37, 21)
            for depth in (0.02, 0.5, 3.0, 40.0):
                assert (count_cells(camera, tree, depth, real) == 1).all()


@pytest.mark.parametrize("real", REALS)
def test_faces_seen_edge_on(real):
    """Rays with d == 0 beside a face, on either side of it."""
    tree = Tree(
        np.array([0, 1], np.int32), np.array([1.0, -1.0]), np.array([-1, -2], np.int32),
        np.array([1, -3], np.int32),
    )
    for x in (0.5, 1.0, 1.5):
        for y in (-1.5, -1.0, -0.5):
            camera = make_camera((x, y, 0), np.eye(3), 37, 21)
            for depth in (0.1, 1.0, 17.0):
                assert (count_cells(camera, tree, depth, real) == 1).all()


def compose(partials, order):
    """Front-to-back composition of images (height, width, 4) in visibility order."""
    total = np.zeros(partials[0].shape)
    total[..., 3] = 1
    for cell in order:
        total[..., :3] += total[..., 3:] * partials[cell][..., :3]
        total[..., 3:] *= partials[cell][..., 3:]
    return total


def visibility_order(tree, center):
    """Cells front to back: near child first."""
    order, stack = [], [0 if len(tree.axis) else -1]
    while stack:
        child = stack.pop()
        if child < 0:
            order.append(-1 - child)
            continue
        near, far = tree.left[child], tree.right[child]
        if center[tree.axis[child]] >= tree.split[child]:
            near, far = far, near
        stack += [far, near]
    return order


def composition_seeds(partials, order, seeds):
    """(dL/dC_m, dL/dT_m) of every cell for dL/dC = seeds and background 0 (design section 5)."""
    front = np.ones(seeds.shape[:2])
    result = {}
    for place, cell in enumerate(order):
        behind = compose(partials, order[place + 1 :])
        result[cell] = np.concatenate(
            [front[..., None] * seeds, (front * (seeds * behind[..., :3]).sum(axis=2))[..., None]],
            axis=2,
        )
        front = front * partials[cell][..., 3]
    return result


@pytest.mark.parametrize("real, image_bar, gradient_bar",
                         [(np.float32, 1e-5, 1e-4), (np.float64, 1e-12, 1e-10)])
@pytest.mark.parametrize("cells, opacity", [(2, 0.9), (3, 0.3), (8, 0.9), (8, 0.98)])
def test_cells_composed_equal_one_list(real, image_bar, gradient_bar, cells, opacity):
    """Every cell draws all splats inside its intervals (ghosts included): image and gradient
    are those of one list, at stop 0. The bars are those of design section 10."""
    tree = random_tree(cells, cells)
    camera = make_camera((1.0, -2.0, -6.0), rotation(2), 75, 40)
    splats = random_splats(camera, 700, real, seed=cells, opacity=(0.02, opacity))
    splats.data[:, 9] *= 0.5
    raster, seeds = Raster(real), random_seeds(camera)[..., :3]

    def draw(box):
        lists = raster.tile_lists(splats, camera, box)
        partial = raster.rasterize(splats, lists, camera, 0.0)
        return lists, partial, reference.to_image(lists.tiles, partial.pixels, camera)

    def back(lists, partial, wanted):
        gradient = reference.to_tiles(wanted.astype(real), lists.tiles, camera)
        return raster.rasterize_backward(splats, lists, partial, gradient, camera, 0.0)

    drawn = [draw(box) for box in tree.boxes()]
    assert sum(item[0].intervals is not None for item in drawn) >= 2
    lists, partial, whole = draw(None)
    images = [item[2] for item in drawn]
    order = visibility_order(tree, camera.center)
    image = compose(images, order)
    assert np.abs(image - whole).max() / np.abs(whole).max() < image_bar
    expected = back(lists, partial, np.concatenate([seeds, np.zeros_like(seeds[..., :1])], axis=2))
    wanted = composition_seeds(images, order, seeds)
    found = sum(back(*drawn[cell][:2], wanted[cell]) for cell in range(cells))
    error = np.linalg.norm(found - expected, axis=0) / np.linalg.norm(expected, axis=0)
    assert error.max() < gradient_bar


@pytest.mark.parametrize("real", REALS)
def test_cell_equals_reference(real):
    """One cell with per-pixel intervals against the plain reference."""
    tree = random_tree(6, 11)
    camera = make_camera((0.5, 0.25, -3.0), rotation(4), 50, 40)
    splats = random_splats(camera, 200, np.float64, seed=4)
    splats.data[:, 9] *= 0.3
    splats = Splats(splats.rows, splats.data.astype(real), splats.ids)
    for box in tree.boxes():
        raster = Raster(real)
        lists = raster.tile_lists(splats, camera, box)
        partial = raster.rasterize(splats, lists, camera, 1e-4)
        image = reference.to_image(lists.tiles, partial.pixels, camera)
        expected = reference.rasterize(splats, camera, 1e-4, box)
        error = np.abs(image - expected).max(axis=2)
        # float: a pixel next to a face, cut-off or stop may differ by one splat
        assert (error > (1e-4 if real == np.float32 else 1e-12)).mean() < 2e-3


@pytest.mark.parametrize("real", REALS)
def test_cells_list_only_what_they_may_draw(real):
    """Pairs outside [min in, max out) of a tile are not listed; a tile that a cell fills for
    all listed depths keeps no intervals."""
    camera = make_camera((0, 0, 0), np.eye(3), 64, 48)
    splats = cover(camera, np.linspace(1, 30, 59), real)
    front = np.array([[-np.inf] * 3, [np.inf, np.inf, 10.25]])
    lists = Raster(real).tile_lists(splats, camera, front)
    depths = splats.data[lists.items, 9]
    assert len(lists.tiles) == 12 and depths.max() == 10.0 and lists.intervals is None
    beside = np.array([[1000.0, -np.inf, -np.inf], [np.inf] * 3])
    assert len(Raster(real).tile_lists(splats, camera, beside).tiles) == 0
    slanted = np.array([[-np.inf] * 3, [2.0, np.inf, np.inf]])
    lists = Raster(real).tile_lists(splats, camera, slanted)
    rows = lists.intervals.rows.reshape(3, 4)
    assert (rows[:, :2] == -1).all() and (rows[:, 2:] >= 0).all()
