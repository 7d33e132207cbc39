"""Migration: nothing is lost, and neither order nor values depend on the rank count."""

import numpy as np
import pytest
from exchanges import SelfExchange, exchange_of, run_ranks
from regrouped import regroup

from splaxel_mpi.partition import migrate
from splaxel_mpi.partition.assign import cells_of, cells_of_rank, rank_of_cell
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians


def scene(count, dtype=np.float32, seed=0):
    """Gaussians with random parameters, shuffled 63-bit ids and per-row extras."""
    random = np.random.default_rng(seed)
    arrays = {name: random.normal(size=(count, width)) for name, width in GROUPS.items()}
    arrays["means"][::7] = arrays["means"][: len(arrays["means"][::7])]  # some at one place
    ids = random.permutation(count).astype(np.int64) + (1 << 62)
    gaussians = Gaussians(**{name: a.astype(dtype) for name, a in arrays.items()}, ids=ids)
    extras = {
        "first.shN": random.normal(size=(count, 45)).astype(dtype),
        "second": random.random((count, 3, 2)),
        "count": random.integers(0, 99, count).astype(np.int32),
        "seen": random.integers(0, 2, count).astype(np.uint8),
        "flag": random.random(count) < 0.5,
        "nothing": np.zeros((count, 0), np.float32),
    }
    return gaussians, extras


def pick(gaussians, extras, rows):
    return gaussians.take(rows), {name: array[rows] for name, array in extras.items()}


def columns(gaussians, extras):
    return {**dict(gaussians.groups()), "ids": gaussians.ids, **extras}


def check_same(first, second):
    first, second = columns(*first), columns(*second)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype and array.shape == second[name].shape, name
        assert array.tobytes() == second[name].tobytes(), name


def curve(means):
    """Place of every position along the Morton curve through all of them, bit by bit."""
    means = means.astype(np.float64)
    low, size = means.min(0), np.ptp(means, axis=0)
    cells = np.minimum((means - low) * ((2**21 - 1) / size), 2**21 - 1).astype(int)
    return [
        sum((int(value) >> bit & 1) << (3 * bit + axis)
            for axis, value in enumerate(row) for bit in range(21))
        for row in cells
    ]


def check_rank(result, whole, tree, rank, ranks):
    """A rank's part holds exactly its rows of the whole scene, by cell, curve and id."""
    gaussians, extras, offsets = result
    cell = cells_of(tree, whole[0].means)
    own = cells_of_rank(rank, tree.cells, ranks)
    place, ids = curve(whole[0].means), whole[0].ids
    rows = [np.flatnonzero(cell == c) for c in own]
    rows = [np.array(sorted(r, key=lambda k: (place[k], ids[k])), int) for r in rows]
    assert offsets.dtype == np.int64
    assert list(offsets) == list(np.cumsum([0] + [len(r) for r in rows]))
    check_same((gaussians, extras), pick(*whole, np.concatenate(rows + [np.zeros(0, int)])))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("cells", [1, 5, 8, 64])
def test_every_gaussian_reaches_its_owner(ranks, cells):
    whole = scene(1501)
    tree = build(whole[0].means, None, cells, SelfExchange())
    # rank 0 has most, rank 1 nothing, and nobody holds them in order
    owner = np.random.default_rng(1).integers(0, ranks, 1501) * (np.arange(1501) % 3 == 0)
    owner[owner == 1] = 0

    def one(exchange):
        mine = pick(*whole, np.flatnonzero(owner == exchange.rank)[::-1])
        result = regroup(*mine, tree, exchange)
        assert exchange.calls.get(("alltoallv", "migration"), 0) <= 1
        return result

    for rank, result in enumerate(run_ranks(ranks, one)):
        check_rank(result, whole, tree, rank, ranks)


def test_rank_zero_can_scatter_and_a_second_call_changes_nothing():
    whole = scene(333, np.float64)
    tree = build(whole[0].means, None, 5, SelfExchange())

    def one(exchange):
        mine = pick(*whole, np.arange(333 if exchange.rank == 0 else 0))
        first = regroup(*mine, tree, exchange)
        exchange.largest = 0
        again = regroup(first[0], first[1], tree, exchange)
        check_same(first[:2], again[:2])
        assert (first[2] == again[2]).all()
        assert exchange.largest < 10  # rows that stay do not travel
        return first

    for rank, result in enumerate(run_ranks(4, one)):
        check_rank(result, whole, tree, rank, 4)


def test_no_gaussians_at_all():
    whole = scene(0)
    tree = build(np.zeros((0, 3)), None, 5, SelfExchange())
    for gaussians, extras, offsets in run_ranks(3, lambda e: regroup(*whole, tree, e)):
        assert len(gaussians) == 0 and not offsets.any()
        check_same((gaussians, extras), whole)


def test_large_moves_go_in_rounds(monkeypatch):
    monkeypatch.setattr(migrate, "LEAST_ROUND_BYTES", 10_000)
    whole = scene(700)
    tree = build(whole[0].means, None, 6, SelfExchange())

    def one(exchange):
        result = regroup(*pick(*whole, np.arange(exchange.rank, 700, 3)), tree, exchange)
        assert exchange.calls["alltoallv", "migration"] > 5
        assert exchange.largest * 8 < 12_000  # a row a peer above the bound
        return result

    for rank, result in enumerate(run_ranks(3, one)):
        check_rank(result, whole, tree, rank, 3)


def test_ranks_with_other_arrays_are_refused_on_every_rank():
    tree = build(scene(50)[0].means, None, 2, SelfExchange())

    def one(exchange):
        gaussians, extras = scene(50)
        if exchange.rank == 1:
            extras["count"] = extras["count"].astype(np.int64)
        with pytest.raises(ValueError, match="differ in name, type or shape"):
            regroup(gaussians, extras, tree, exchange)
        return True

    assert all(run_ranks(2, one))


def test_extras_of_another_length_are_refused():
    gaussians, extras = scene(50)
    extras["count"] = extras["count"][:-1]
    tree = build(gaussians.means, None, 2, SelfExchange())
    with pytest.raises(ValueError, match="count has 49 rows for 50"):
        regroup(gaussians, extras, tree, SelfExchange())


@pytest.mark.mpi
@pytest.mark.parametrize("cells", [1, 5, 8, 64])
def test_mpi_migration(comm, cells):
    whole = scene(2001, seed=cells)
    owner = np.random.default_rng(1).integers(0, comm.size, 2001)
    owner[owner == 1] = 0
    mine = pick(*whole, np.flatnonzero(owner == comm.rank))
    exchange = exchange_of(comm)
    tree = build(mine[0].means, None, cells, exchange)
    result = regroup(*mine, tree, exchange)
    check_rank(result, whole, tree, comm.rank, comm.size)
    cell = cells_of(tree, result[0].means).astype(np.int64)
    assert (rank_of_cell(cell, cells, comm.size) == comm.rank).all()
    assert comm.allreduce(len(result[0])) == 2001
    gathered = np.concatenate(comm.allgather(result[0].ids))
    alone = regroup(*whole, tree, SelfExchange())
    assert (gathered == alone[0].ids).all()  # in rank order: the order of one rank
