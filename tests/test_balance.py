"""Balance: what it is judged by, when a new tree comes, and that results do not know of it."""

import numpy as np
import pytest
from exchanges import SelfExchange, run_ranks
from runs import last_checkpoint, shared_folder, state_of, train, train_on_root
from scenes import random_gaussians
from states import share
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.partition.assign import cells_of, rank_of_cell
from splaxel_mpi.partition.balance import (
    KIND,
    cell_loads,
    first_tree,
    gaussian_weights,
    imbalance,
    new_tree,
    rebalance,
)
from splaxel_mpi.settings import Partition
from splaxel_mpi.train.state import State

pytestmark = pytest.mark.timeout(300)

COUNT = 4000


def state_on(exchange, tree, seed=0):
    """This rank's part of a scene under a tree; Gaussians are seen 0 to 99 times."""
    state = State.fresh(random_gaussians(COUNT, seed, np.float32), None)
    state.gaussians.ids[:] = np.arange(COUNT)
    state.count[:] = np.arange(COUNT) % 50
    state.seen_count[:] = 7 * np.arange(COUNT) % 50
    state = share(state, np.arange(exchange.rank, COUNT, exchange.ranks))
    state.migrate(tree, exchange)
    return state


def means_of(seed=0):
    return random_gaussians(COUNT, seed, np.float32).means


def test_imbalance_is_the_largest_over_the_mean():
    assert imbalance(np.array([1.0, 1, 1, 1]), 4) == 0
    assert imbalance(np.array([1.5, 0.5, 1, 1]), 4) == pytest.approx(0.5)
    # two cells on each rank: their sums count
    assert imbalance(np.array([1.5, 0.5, 1, 1]), 2) == 0
    # 5 cells on 2 ranks: 2 and 3 are what the tree means to give
    assert imbalance(np.ones(5), 2) == pytest.approx(0)
    # ranks without a cell are not to have anything
    assert imbalance(np.array([3.0, 1]), 5) == pytest.approx(0.5)
    assert imbalance(np.zeros(3), 3) == 0


@pytest.mark.parametrize("cells", [2, 4, 5, 8])
@pytest.mark.parametrize("skew", [0.0, 0.2, 0.5, 1.0])
def test_a_first_tree_is_as_skewed_as_asked(cells, skew):
    """Within two Gaussians of 4000 / 8."""
    means = means_of()
    trees = run_ranks(3, lambda e: first_tree(means[e.rank :: 3], cells, skew, e))
    loads = np.bincount(cells_of(trees[0], means), minlength=cells).astype(float)
    assert imbalance(loads, cells) == pytest.approx(skew, abs=0.005)
    assert loads[0] == loads.max()
    assert all((tree.split == trees[0].split).all() for tree in trees)


def test_weights_mix_counts_and_views():
    seen = np.array([0, 10, 20, 90], np.int32)
    assert gaussian_weights(seen, 0.0, SelfExchange()) is None
    assert gaussian_weights(0 * seen, 0.5, SelfExchange()) is None
    np.testing.assert_allclose(gaussian_weights(seen, 1.0, SelfExchange()), seen / 30)
    half = gaussian_weights(seen, 0.5, SelfExchange())
    np.testing.assert_allclose(half, 0.5 + seen / 60)
    parts = run_ranks(3, lambda e: gaussian_weights(seen[e.rank :: 3], 0.5, e))
    assert (np.concatenate([parts[0], parts[1], parts[2]]) == half[[0, 3, 1, 2]]).all()


@pytest.mark.parametrize("ranks, cells", [(1, 4), (3, 3), (4, 4), (3, 7), (4, 2)])
@pytest.mark.parametrize("mix", [0.0, 0.6])
def test_a_skewed_scene_is_redistributed(ranks, cells, mix):
    """Every Gaussian reaches the owner of its new cell, with its statistics, and the tree is that
    of one rank."""
    settings = Partition(imbalance=0.2, seen_weight=mix)
    skewed = first_tree(means_of(), cells, 1.0, SelfExchange())
    whole = state_on(SelfExchange(), skewed)
    expected = new_tree(whole.gaussians.means, whole.seen, cells, settings, SelfExchange())

    def one(exchange):
        state = state_on(exchange, skewed)
        tree, done = rebalance(state, skewed, settings, exchange)
        again, nothing = rebalance(state, tree, settings, exchange)
        assert again is tree and nothing is None
        return state, tree, done

    before = imbalance(cell_loads(whole, skewed, mix, SelfExchange()), ranks)
    results = run_ranks(ranks, one)
    if before <= 0.2:  # all cells on one rank: nothing to balance
        assert all(tree is skewed and done is None for _, tree, done in results)
        return
    for rank, (state, tree, done) in enumerate(results):
        assert (tree.split == expected.split).all() and (tree.axis == expected.axis).all()
        assert done == results[0][2] and done.total == COUNT and done.bytes >= 0
        assert done.before == pytest.approx(before) and done.after < 0.02
        cell = cells_of(tree, state.gaussians.means)
        assert (rank_of_cell(cell.astype(int), cells, ranks) == rank).all()
        ids = state.gaussians.ids
        assert (state.seen == ids % 50 + 7 * ids % 50).all()
    ids = np.sort(np.concatenate([state.gaussians.ids for state, *_ in results]))
    assert (ids == np.arange(COUNT)).all()
    old, new = (cells_of(t, means_of()).astype(int) for t in (skewed, expected))
    moved = np.count_nonzero(rank_of_cell(old, cells, ranks) != rank_of_cell(new, cells, ranks))
    assert results[0][2].moved == moved


def test_a_check_that_finds_balance_sends_next_to_nothing():
    tree = first_tree(means_of(), 8, 0.0, SelfExchange())

    def one(exchange):
        state = state_on(exchange, tree)
        exchange.calls.clear()
        exchange.largest = 0
        assert rebalance(state, tree, Partition(), exchange) == (tree, None)
        return exchange.calls, exchange.largest

    for calls, largest in run_ranks(4, one):
        assert calls == {("allreduce", KIND): 1} and largest == 16


def test_what_no_tree_can_divide_stays():
    """All Gaussians at one place: a new tree would be as bad, at every check again."""
    tree = first_tree(means_of(), 4, 0.0, SelfExchange())

    def one(exchange):
        state = state_on(exchange, tree)
        state.gaussians.means[:] = 1.0
        state.migrate(tree, exchange)
        assert max(exchange.allgather(KIND, np.array([len(state.gaussians)]))) == COUNT
        return rebalance(state, tree, Partition(), exchange) == (tree, None)

    assert all(run_ranks(4, one))


def test_a_tree_that_does_not_fit_is_not_taken(caplog):
    """Equal work may need more memory on some rank: its budget comes first."""
    tree = first_tree(means_of(), 2, 1.0, SelfExchange())
    settings = Partition(seen_weight=1.0)

    def one(exchange):
        state = state_on(exchange, tree)
        state.count[:], state.seen_count[:] = state.gaussians.means[:, 0] > 0, 0
        if exchange.rank == 1:
            state.budget.rank = COUNT // 2
        return rebalance(state, tree, settings, exchange)

    assert all(found == (tree, None) for found in run_ranks(2, one))
    assert "partition.seen_weight" in caplog.text


def test_children_are_seen_as_their_parents_were():
    state = state_on(SelfExchange(), first_tree(means_of(), 1, 0.0, SelfExchange()))
    seen, keep = state.seen.copy(), np.ones(COUNT, bool)
    keep[5] = False
    parents = np.array([5, 9])
    state.replace(keep, state.gaussians.take(parents), parents)
    state.clear_statistics()
    np.testing.assert_array_equal(state.seen, np.append(seen[keep], seen[parents]))
    assert not state.count.any() and not state.norm.any()


@pytest.mark.mpi(min_size=2)
def test_trained_scene_does_not_know_of_repartitioning(comm, city, tmp_path_factory):
    """With a skewed tree and new ones training follows one rank's path, densification included.
    float64, epsilon 1e-8: see test_ranks_follow_the_path_of_one."""
    folder = shared_folder(comm, tmp_path_factory)
    exact = ["backend.precision=float64", "render.stop=0", "train.images=32",
             "train.epsilon=1e-8"]
    moving = ["partition.skew=0.6", "partition.check=8", "partition.imbalance=0.05",
              "partition.seen_weight=0.5"]
    many = train(city, folder / "many", comm, *exact, *moving)
    one = train_on_root(city, folder / "one", comm, *exact)
    assert "repartitioned after 8 images: imbalance " in (many / "log.txt").read_text()
    found, expected = state_of(last_checkpoint(many)), state_of(last_checkpoint(one))
    for name in ("gaussians/ids", "densify/seen_count", "densify/gradient_count"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN"):
        a, b = found[f"gaussians/{name}"], expected[f"gaussians/{name}"]
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max(), name
    assert expected["densify/seen_count"].max() > 10
    series = read_series(many / "metrics.h5")
    assert np.nanmax(series["imbalance_before"]) > 0.5 > 0.1 > np.nanmin(series["imbalance_after"])
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_resume_after_repartitioning_is_the_unbroken_run(comm, city, tmp_path_factory):
    """Same rank count: bit for bit, the new trees included."""
    from test_train import assert_same, stop_half_way

    folder = shared_folder(comm, tmp_path_factory)
    moving = ["partition.skew=0.6", "partition.check=16", "partition.imbalance=0.02",
              "partition.seen_weight=0.5"]
    first = train(city, folder / "first", comm, *moving)
    assert (first / "log.txt").read_text().count("repartitioned") >= 2
    (folder / "resumed").mkdir(exist_ok=True)
    if comm.rank == 0:
        stop_half_way(first, folder / "resumed")
    comm.barrier()
    train(city, folder / "resumed", comm, *moving, resume=True)
    assert_same(last_checkpoint(first), last_checkpoint(folder / "resumed" / "small"))
