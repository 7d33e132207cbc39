"""Choices among the Gaussians of all ranks: those of one sorted list, however they are held."""

import numpy as np
import pytest
from exchanges import SelfExchange, run_ranks

from splaxel_mpi.densify.choice import falling, rising, scene_sums, smallest


def check(keys, ids, count, ranks, owner):
    """The choice of ranks that hold some rows each is the head of the list by (key, id)."""
    def one(exchange):
        mine = owner == exchange.rank
        return mine, smallest(keys[mine], ids[mine], count, exchange)

    chosen = np.zeros(len(keys), bool)
    for mine, found in run_ranks(ranks, one):
        chosen[np.flatnonzero(mine)[found]] = True
    expected = np.lexsort((ids, keys))[:count]
    np.testing.assert_array_equal(np.flatnonzero(chosen), np.sort(expected))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("spread", [1, 4, 3000, 2**63])  # few values: ties, that ids decide
def test_choice_is_that_of_one_sorted_list(ranks, spread):
    random = np.random.default_rng(ranks)
    keys = random.integers(0, spread - 1, 1500, endpoint=True, dtype=np.uint64).astype(np.int64)
    keys &= np.iinfo(np.int64).max
    starts = np.array([0, 2**62, 2**63 - 500], np.int64)
    ids = random.permutation((starts[:, None] + np.arange(500)).ravel())
    owner = random.integers(0, ranks, 1500)
    owner[owner == 1] = 0  # rank 1 has none
    for count in (0, 1, 77, 1499, 1500, 9999):
        check(keys, ids, count, ranks, owner)


def test_numbers_order_as_their_keys():
    values = np.array([0.0, 5e-324, 1e-300, 0.1, 0.1 + 1e-17, 1.0, 3e30, np.inf])
    for real in (np.float32, np.float64):
        numbers = values.astype(real)
        assert (np.diff(rising(numbers)) >= 0).all() and (rising(numbers) >= 0).all()
        np.testing.assert_array_equal(np.diff(rising(numbers)) > 0, np.diff(numbers) > 0)
        np.testing.assert_array_equal(np.argsort(falling(numbers), kind="stable")[0],
                                      len(values) - 1)
        assert (falling(numbers) >= 0).all()


def test_nothing_to_choose_from():
    none = np.zeros(0, np.int64)
    assert len(smallest(none, none, 5, SelfExchange())) == 0
    assert scene_sums(SelfExchange(), 3, 2**40) == [3, 2**40]
