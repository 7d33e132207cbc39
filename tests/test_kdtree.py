"""The k-d tree: balance, the same bits for every rank count, awkward inputs."""

import numpy as np
import pytest
from exchanges import SelfExchange, exchange_of, run_ranks

from splaxel_mpi.partition.assign import cells_of, cells_of_rank, rank_of_cell
from splaxel_mpi.partition.base import partitioner
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.tree import Tree


def city(count, seed=0, dtype=np.float32):
    """Points like a city: flat, clustered, with far outliers."""
    random = np.random.default_rng(seed)
    block = random.normal(size=(40, 3)) * [300, 200, 5]
    points = block[random.integers(0, 40, count)] + random.normal(size=(count, 3)) * [20, 30, 10]
    points[: count // 100] *= 50
    return np.ascontiguousarray(points[random.permutation(count)].astype(dtype))


def shares(points, ranks, seed=0):
    """The points dealt to ranks unevenly; rank 1 (if any) gets none."""
    owner = np.random.default_rng(seed).integers(0, ranks, len(points)) ** 2 % ranks
    owner[owner == 1] = 0
    return [np.flatnonzero(owner == rank) for rank in range(ranks)]


def same(first, second):
    """Whether two trees agree in every bit."""
    pairs = ((getattr(first, f), getattr(second, f)) for f in ("axis", "split", "left", "right"))
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def check_valid(tree, cells):
    """Every cell appears once, numbered left to right; children lie inside their parents."""
    assert tree.cells == cells and np.isfinite(tree.split).all()
    seen, stack = [], [0 if cells > 1 else -1]
    while stack:
        child = stack.pop()
        if child < 0:
            seen.append(-1 - child)
        else:
            stack += [tree.right[child], tree.left[child]]
    assert seen == list(range(cells))
    boxes = tree.boxes()
    assert (boxes[:, 0] <= boxes[:, 1]).all()


@pytest.mark.parametrize("cells", [1, 2, 3, 5, 8, 64, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_balance_is_within_one_percent(cells, dtype):
    points = city(200_001, dtype=dtype)
    tree = build(points, None, cells, SelfExchange())
    check_valid(tree, cells)
    counts = np.bincount(cells_of(tree, points), minlength=cells)
    assert np.abs(counts / (len(points) / cells) - 1).max() < 0.01


@pytest.mark.parametrize("cells", [2, 3, 5, 8, 64])
@pytest.mark.parametrize("count", [7, 65, 331, 999])
def test_small_counts_are_within_one_gaussian(cells, count):
    points = city(count, seed=count)
    counts = np.bincount(cells_of(build(points, None, cells, SelfExchange()), points))
    assert np.abs(np.pad(counts, (0, cells - len(counts))) - count / cells).max() <= 1


@pytest.mark.parametrize("kind", ["integer", "float"])
def test_weights_are_balanced_instead_of_counts(kind):
    points = city(100_000)
    weights = 1 + np.random.default_rng(1).integers(0, 50, len(points)) * (points[:, 0] > 0)
    weights = weights if kind == "integer" else weights * 0.37
    tree = build(points, weights, 5, SelfExchange())
    sums = np.bincount(cells_of(tree, points), weights)
    assert np.abs(sums / (weights.sum() / 5) - 1).max() < 0.01
    counts = np.bincount(cells_of(tree, points))
    assert counts.max() > 2 * counts.min()


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_tree_does_not_depend_on_ranks_or_order(ranks, weighted):
    points = city(20_011, seed=3)
    weights = np.random.default_rng(2).random(len(points)) if weighted else None
    expected = build(points, weights, 13, SelfExchange())
    rows = shares(points, ranks)

    def one(exchange):
        mine = rows[exchange.rank][::-1]
        return build(points[mine], None if weights is None else weights[mine], 13, exchange)

    assert all(same(tree, expected) for tree in run_ranks(ranks, one))


def test_only_histograms_travel_and_levels_share_collectives():
    points = city(300_000)

    def one(exchange):
        build(points[exchange.rank :: 2], None, 64, exchange)
        return exchange

    exchange = run_ranks(2, one)[0]
    assert sum(exchange.calls.values()) <= 1 + 6 * 5  # extents and at most 4 rounds a level
    assert exchange.largest <= 32 * 1024  # bins of the 32 nodes of the last level


def test_points_on_a_split_belong_to_the_right():
    points = np.repeat(np.float32([[0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [0.7, 0, 0]]), 5, axis=0)
    tree = build(points, None, 2, SelfExchange())
    assert 0.2 < tree.split[0] <= np.float64(np.float32(0.3))
    assert (cells_of(tree, points) == np.repeat([0, 0, 1, 1], 5)).all()
    assert (cells_of(tree, points) == cells_of(tree, points.astype(np.float64))).all()
    on_face = np.array([[tree.split[0], 0, 0], [np.nextafter(tree.split[0], -1), 0, 0]])
    assert (cells_of(tree, on_face) == [1, 0]).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_negative_zero_is_zero(sign):
    points = np.zeros((6, 3))
    points[:, 1] = [-1, -1, -1, sign * 0.0, 0.0, -0.0]
    tree = build(points, None, 2, SelfExchange())
    assert (cells_of(tree, points) == [0, 0, 0, 1, 1, 1]).all()


def test_near_ties_between_axes_go_to_the_first():
    points = np.zeros((100, 3))
    ramp = np.linspace(0, 1, 100)
    points[:, 0], points[:, 1], points[:, 2] = ramp, ramp * (1 + 1e-7), ramp[::-1]
    assert build(points, None, 2, SelfExchange()).axis[0] == 0
    points[:, 1] *= 1 + 1e-5
    assert build(points, None, 2, SelfExchange()).axis[0] == 1


@pytest.mark.parametrize("cells", [2, 5, 8, 64])
def test_coincident_points_give_a_valid_tree(cells):
    for value in (0.0, -3.5, 1e30):
        points = np.full((50, 3), value, np.float32)
        tree = build(points, None, cells, SelfExchange())
        check_valid(tree, cells)
        assert len(np.unique(cells_of(tree, points))) == 1


def test_planes_of_equal_coordinates_are_split_between():
    points = np.random.default_rng(0).integers(0, 4, (4000, 3)).astype(np.float32)
    tree = build(points, None, 8, SelfExchange())
    check_valid(tree, 8)
    counts = np.bincount(cells_of(tree, points), minlength=8)
    assert counts.min() > 400  # 2 x 2 x 2 planes a cell, 500 on average


@pytest.mark.parametrize("cells", [1, 2, 5, 64])
def test_no_gaussians_at_all(cells):
    trees = run_ranks(3, lambda exchange: build(np.zeros((0, 3)), None, cells, exchange))
    check_valid(trees[0], cells)
    assert all(same(tree, trees[0]) for tree in trees)
    assert isinstance(trees[0], Tree)


def test_weightless_gaussians():
    points = city(1000)
    check_valid(build(points, np.zeros(1000), 8, SelfExchange()), 8)
    weights = np.zeros(1000, np.int64)
    weights[17] = 5
    check_valid(build(points, weights, 8, SelfExchange()), 8)


def test_one_heavy_gaussian_is_kept_alone():
    points = city(1000)
    weights = np.ones(1000)
    weights[17] = 1e6
    tree = build(points, weights, 2, SelfExchange())
    check_valid(tree, 2)
    cell = cells_of(tree, points)
    lighter = cell[17] != cell
    before = np.count_nonzero(points[:, tree.axis[0]] < points[17, tree.axis[0]])
    assert np.count_nonzero(lighter) == max(before, 999 - before)


@pytest.mark.parametrize("weights", [None, "ones"])
def test_every_rank_refuses_means_that_are_not_finite(weights):
    def one(exchange):
        points = city(100)
        if exchange.rank == 1:
            points[3, 1], points[5, 0] = np.nan, np.inf
        with pytest.raises(ValueError, match="2 of 300 means are not finite"):
            build(points, None if weights is None else np.ones(100), 4, exchange)
        return True

    assert all(run_ranks(3, one))


def test_bad_weights_and_cells_are_refused():
    points = city(10)
    for bad in (-1.0, np.nan, np.inf):
        weights = np.ones(10)
        weights[4] = bad
        with pytest.raises(ValueError, match="1 of 10 weights"):
            build(points, weights, 2, SelfExchange())
    with pytest.raises(ValueError, match="at least one cell"):
        build(points, None, 0, SelfExchange())
    with pytest.raises(ValueError, match="weights for 10 means"):
        build(points, np.ones(9), 2, SelfExchange())


def test_sample_restricts_what_counts():
    points = city(5000)
    mask = np.random.default_rng(0).random(5000) < 0.2
    expected = build(points[mask], None, 6, SelfExchange())
    assert same(build(points, None, 6, SelfExchange(), sample=mask), expected)
    assert same(build(points, None, 6, SelfExchange(), np.flatnonzero(mask)), expected)


@pytest.mark.parametrize("cells,ranks", [(1, 1), (5, 2), (2, 5), (8, 8), (64, 7), (3, 4)])
def test_cells_and_ranks_match(cells, ranks):
    owned = [list(cells_of_rank(rank, cells, ranks)) for rank in range(ranks)]
    assert sum(owned, []) == list(range(cells))
    assert all(rank_of_cell(cell, cells, ranks) == rank
               for rank, cells_ in enumerate(owned) for cell in cells_)
    sizes = [len(cells_) for cells_ in owned]
    assert max(sizes) - min(sizes) <= 1


def test_partitioners_are_found_by_name():
    points = city(100)
    tree = partitioner("kdtree").build(points, None, 3, SelfExchange())
    assert same(tree, build(points, None, 3, SelfExchange()))
    with pytest.raises(ValueError, match="'octree' is unknown"):
        partitioner("octree")


@pytest.mark.mpi
@pytest.mark.parametrize("cells", [5, 8, 64])
def test_mpi_ranks_build_the_tree_of_one_rank(comm, cells):
    points = city(30_001, seed=cells)
    mine = shares(points, comm.size)[comm.rank]
    tree = build(points[mine], None, cells, exchange_of(comm))
    assert same(tree, build(points, None, cells, SelfExchange()))
    assert all(same(tree, other) for other in comm.allgather(tree))
    counts = np.bincount(cells_of(tree, points), minlength=cells)
    assert np.abs(counts / (len(points) / cells) - 1).max() < 0.01
