"""Schedulers: every view once an epoch, batches that fill the ranks, and orders that repeat."""

import numpy as np
import pytest

from splaxel_mpi.schedule import SCHEDULERS, figures, make_scheduler
from splaxel_mpi.schedule.balanced import greedy, swap
from splaxel_mpi.schedule.base import Predictor
from splaxel_mpi.schedule.conflict_free import buckets, fill
from splaxel_mpi.schedule.costs import CostFit, ratio

NAMES = sorted(SCHEDULERS)


class Known(Predictor):
    """Work from a table (views, ranks), which may change."""

    def __init__(self, work):
        self.work, self.asked = np.asarray(work, np.float64), []
        self.shape = (self.work.shape[1],) * 2

    def prepare(self, views):
        work = self.work[views]
        self.asked.append(len(views))
        return lambda: work


def city(views=512, ranks=8, seed=0):
    """Work of ranks on a ring: a view sees some neighbours, most of the nearest; ranks near 0
    are seen more often."""
    random = np.random.default_rng(seed)
    at = ranks * random.random((views, 1)) ** 1.3
    away = np.abs((np.arange(ranks) - at + ranks / 2) % ranks - ranks / 2)
    reach = random.uniform(0.5, 3, (views, 1))
    return np.maximum(reach - away, 0) * random.uniform(0.5, 2, (views, 1))


def shown(scheduler, start, stop, size):
    """Views and chunk sizes of images start to stop, as training asks for them."""
    views, chunks = [], []
    for at in range(start, stop, size):
        count = min(size, stop - at)
        scheduler.begin(at)
        views += scheduler.batch(at, count)
        scheduler.batch(at + count, min(size, stop - at - count))
        chunks.append(scheduler.chunks(at, count))
        assert sum(chunks[-1]) == count and min(chunks[-1]) > 0
    return views, chunks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count, size, window", [
    (1, 1, 4), (5, 8, 16), (64, 8, 64), (67, 8, 24), (100, 7, 7), (100, 1, 10), (33, 32, 4096),
])
def test_every_epoch_shows_every_view_once(name, count, size, window):
    train = np.arange(count) * 3 + 1
    work = np.zeros((3 * count + 1, 8))
    work[train] = city(count)
    scheduler = make_scheduler(name, train, 5, size, window, 2, Known(work))
    views, _ = shown(scheduler, 0, 4 * count, size)
    epochs = [views[start : start + count] for start in range(0, 4 * count, count)]
    assert all(sorted(epoch) == train.tolist() for epoch in epochs)
    assert count < 30 or len({tuple(epoch) for epoch in epochs}) == 4
    again, _ = shown(make_scheduler(name, train, 5, size, window, 2, Known(work)), 0, 99, size)
    assert again == shown(make_scheduler(name, train, 5, size, window, 2, Known(work)), 0, 99,
                          size)[0]


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_order(name):
    work = city(200)
    orders = [shown(make_scheduler(name, range(200), seed, 8, 64, 2, Known(work)), 0, 200, 8)[0]
              for seed in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("name", ["fixed", "one-view"])
def test_order_of_seed_and_epoch_alone(name):
    work = city(100)
    wanted = shown(make_scheduler("fixed", range(100), 3), 0, 300, 1)[0]
    for size, window in ((8, 32), (20, 4096)):
        scheduler = make_scheduler(name, range(100), 3, size, window, 2, Known(work))
        assert shown(scheduler, 0, 300, size)[0] == wanted


def test_views_stay_in_their_window():
    """Beyond a window the order is that of the permutation."""
    plain = make_scheduler("fixed", range(300), 1)
    random = [plain.batch(at, 60) for at in range(0, 300, 60)]
    arranged = make_scheduler("balanced", range(300), 1, 10, 60, 2, Known(city(300)))
    views, _ = shown(arranged, 0, 300, 10)
    for k, part in enumerate(random):
        assert sorted(views[60 * k : 60 * k + 60]) == sorted(part)
        assert views[60 * k : 60 * k + 60] != part


@pytest.mark.parametrize("ranks, size", [(8, 8), (64, 64), (8, 4)])
def test_balanced_reaches_the_bound_of_the_partition(ranks, size):
    """0.95 of the bound and 1.6 times conflict-free (design section 10); smaller batches than
    ranks cannot reach it and are only compared."""
    work, found = city(1024, ranks), {}
    for name in NAMES:
        scheduler = make_scheduler(name, range(1024), 0, size, 4096, 2, Known(work))
        views, chunks = shown(scheduler, 0, 1024, size)
        waits = {"conflict-free": sum(chunks, []), "one-view": [1] * 1024}
        found[name] = figures.balance(work[views], waits.get(name, [size] * (1024 // size)))
    limit = figures.bound(work)
    assert all(value <= limit + 1e-12 for value in found.values())
    assert found["balanced"] >= (0.95 if size == ranks else 0.75) * limit
    assert found["balanced"] >= 1.6 * found["conflict-free"]
    assert found["conflict-free"] > found["one-view"]


def test_batches_across_the_end_of_an_epoch_are_balanced_too():
    """100 views in batches of 8: every second batch border falls into another epoch."""
    work = city(100, 4)
    scheduler = make_scheduler("balanced", range(100), 0, 8, 4096, 2, Known(work))
    views, _ = shown(scheduler, 0, 800, 8)
    assert figures.balance(work[views], [8] * 100) >= 0.95 * figures.bound(work)


def test_chunks_of_a_balanced_batch_are_evened():
    """Complementary views meet in a chunk: half of the ranks each."""
    work = np.zeros((64, 4))
    work[:32, :2], work[32:, 2:] = 1, 1
    scheduler = make_scheduler("balanced", range(64), 0, 8, 64, 2, Known(work))
    views, chunks = shown(scheduler, 0, 64, 8)
    assert figures.balance(work[views], sum(chunks, [])) == 1


def test_greedy_fills_rooms_by_their_size():
    work = np.random.default_rng(0).random((100, 4))
    parts = greedy(work, [3, 32, 32, 32, 1])
    assert [len(part) for part in parts] == [3, 32, 32, 32, 1]
    assert sorted(np.concatenate(parts)) == list(range(100))
    loads = [work[part].sum(axis=0).max() for part in parts[1:4]]
    assert max(loads) < 1.1 * min(loads)


def test_swaps_lower_the_maxima_and_keep_the_views():
    work = city(256)
    start = np.arange(256).reshape(32, 8)
    after = swap(work, start, np.random.default_rng(0))
    assert sorted(after.ravel()) == list(range(256))
    maxima = [work[members].sum(axis=1).max(axis=1).sum() for members in (start, after)]
    assert maxima[1] < 0.8 * maxima[0]


def test_views_without_work_are_dealt_too():
    scheduler = make_scheduler("balanced", range(40), 0, 8, 40, 2, Known(np.zeros((40, 4))))
    assert sorted(shown(scheduler, 0, 40, 8)[0]) == list(range(40))
    assert scheduler.figures(8)["schedule_balance"] == 1


def test_buckets_are_the_papers():
    """Figure 16: a view joins the first bucket with none of its participants."""
    sets = [{0, 2}, {0}, {1, 3}, {1}, {2, 3}, {0, 1, 2, 3}, {3}]
    participants = np.array([[rank in one for rank in range(4)] for one in sets])
    found = [bucket.tolist() for bucket in buckets(participants)]
    assert found == [[0, 2], [1, 3, 4], [5], [6]]


def test_more_ranks_than_bits_of_a_word():
    participants = np.zeros((4, 130), bool)
    participants[0, 129] = participants[1, 1] = participants[2, 129] = participants[3, 65] = True
    assert [bucket.tolist() for bucket in buckets(participants)] == [[0, 1, 3], [2]]


def test_buckets_fill_batches():
    found = [np.arange(3), np.arange(3, 6), np.arange(6, 8), np.arange(8, 9), np.arange(9, 12)]
    filled = [bucket.tolist() for bucket in fill(found, [4, 5, 3])]
    assert filled == [[0, 1, 2], [8], [3, 4, 5], [6, 7], [9, 10, 11]]
    assert [bucket.tolist() for bucket in fill(found[:2], [2, 4])] == [[0, 1], [2], [3, 4, 5]]


def test_conflict_free_buckets_are_disjoint_and_run_together():
    work = city(256, 16)
    scheduler = make_scheduler("conflict-free", range(256), 0, 16, 4096, 2, Known(work))
    views, chunks = shown(scheduler, 0, 512, 16)
    lengths = sum(chunks, [])
    starts = np.cumsum([0, *lengths[:-1]])
    taking_part = np.add.reduceat((work[views] > 0).astype(int), starts, axis=0)
    assert taking_part.max() == 1
    assert len(lengths) < 400  # of 512 views


def test_one_view_is_a_chunk():
    scheduler = make_scheduler("one-view", range(10), 0, 4, 10, 2, Known(city(10)))
    scheduler.begin(0)
    assert scheduler.chunks(0, 4) == [1, 1, 1, 1]
    fixed = make_scheduler("fixed", range(10), 0, 5, 10, 2)
    assert fixed.chunks(0, 5) == [2, 2, 1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [8, 40, 96, 104, 504])
def test_resumed_runs_continue_bit_for_bit(name, at):
    """Also when predictions have changed meanwhile: what was arranged is stored."""
    table = Known(city(100))
    unbroken = make_scheduler(name, range(100), 2, 8, 32, 2, table)
    before = shown(unbroken, 0, at, 8)[0]
    shared, own = unbroken.state()
    limit = 2 * 32  # what may be arranged before the predictions change
    wanted = shown(unbroken, at, at + limit // 2, 8)
    resumed = make_scheduler(name, range(100), 2, 8, 32, 2, Known(city(100, seed=9)))
    resumed.restore({key: array.copy() for key, array in shared.items()}, own, at)
    first = shown(resumed, at, at + 8, 8)
    assert first[0] == wanted[0][:8] and first[1] == wanted[1][:1]
    resumed = make_scheduler(name, range(100), 2, 8, 32, 2, table)
    resumed.restore(shared, own, at)
    assert shown(resumed, at, at + limit // 2, 8) == wanted
    assert len(before) == at


@pytest.mark.parametrize("old", NAMES)
@pytest.mark.parametrize("new", NAMES)
def test_another_scheduler_batch_and_rank_count_finish_the_epoch(old, new):
    first = make_scheduler(old, range(100), 2, 8, 40, 2, Known(city(100, 8)))
    views, _ = shown(first, 0, 48, 8)
    second = make_scheduler(new, range(100), 2, 5, 60, 2, Known(city(100, 5)))
    second.restore(*first.state(), 48)
    views += shown(second, 48, 73, 5)[0]
    third = make_scheduler(old, range(100), 2, 3, 40, 2, Known(city(100, 3)))
    third.restore(*second.state(), 73)
    views += shown(third, 73, 200, 3)[0]
    assert sorted(views[:100]) == sorted(views[100:]) == list(range(100))


@pytest.mark.parametrize("change", [
    lambda state: state.update(order=state["order"][::-1] * 0),
    lambda state: state.update(order=state["order"][:-1]),
    lambda state: state.update(bounds=np.array([], np.int64)),
    lambda state: state.update(bounds=state["bounds"] + 3),
    lambda state: state.pop("opens"),
])
def test_a_state_of_other_views_is_ignored(change):
    scheduler = make_scheduler("balanced", range(100), 0, 8, 32, 2, Known(city(100)))
    shown(scheduler, 0, 40, 8)
    shared, own = scheduler.state()
    change(shared)
    other = make_scheduler("balanced", range(100), 0, 8, 32, 2, Known(city(100)))
    other.restore(shared, own, 40)
    assert len(set(shown(other, 40, 96, 8)[0])) == 56


def test_new_cells_rearrange_what_is_left():
    """After a repartition the views that were shown stay shown, the rest follows the new work."""
    table = Known(city(128))
    scheduler = make_scheduler("balanced", range(128), 0, 8, 64, 2, table)
    views, _ = shown(scheduler, 0, 24, 8)
    table.work = city(128, seed=7)
    scheduler.repartitioned(24)
    rest, _ = shown(scheduler, 24, 128, 8)
    assert sorted(views + rest) == list(range(128))
    work = table.work[rest]
    assert figures.balance(work, [8] * 13) >= 0.9 * figures.bound(work)


def test_predictions_are_asked_a_window_ahead():
    """Never for more than the window that follows."""
    table = Known(city(100))
    scheduler = make_scheduler("balanced", range(100), 0, 10, 50, 2, table)
    for at, asked in ((0, 2), (10, 2), (40, 2), (50, 3), (90, 3), (100, 4)):
        scheduler.begin(at)
        assert len(table.asked) == asked


def test_a_failure_in_the_thread_is_told():
    class Broken(Known):
        def prepare(self, views):
            return lambda: 1 / 0

    scheduler = make_scheduler("balanced", range(8), 0, 4, 8, 2, Broken(city(8)))
    scheduler.begin(0)
    with pytest.raises(ZeroDivisionError):
        scheduler.batch(0, 4)


def test_figures_by_hand():
    work = np.array([[1.0, 0, 0], [0, 2, 0], [3, 3, 0], [0, 0, 0]])
    assert figures.bound(work) == pytest.approx((9 / 3) / 5)
    assert figures.active(work, [1] * 4) == pytest.approx((1 + 1 + 2 + 0) / 12)
    assert figures.active(work, [2, 2]) == pytest.approx((2 + 2) / 6)
    assert figures.balance(work, [2, 2]) == pytest.approx((1 + 2) / (2 + 3))
    # pairs: 01 apart, 02 not, 12 not, and the view without participants from all three
    assert figures.disjoint(work) == pytest.approx(4 / 6)


def test_disjoint_agrees_with_all_pairs():
    work = city(300, 70)
    part = work > 0
    apart = ~(part[:, None] & part[None]).any(axis=2)
    expected = (apart.sum() - np.diag(apart).sum()) / (300 * 299)
    assert figures.disjoint(work) == pytest.approx(expected)


def test_costs_are_found_from_times():
    """seconds = 2e-8 Gaussians + 5e-9 pixels + 1e-3, with 5 % noise: the ratio within 10 %."""
    class Two:
        def allreduce(self, kind, data):
            return 2 * data

    random, fit = np.random.default_rng(0), CostFit()
    assert fit.pixel_cost(Two(), 0.7) == 0.7
    for gaussians, pixels in random.uniform(1e4, 1e6, (300, 2)):
        seconds = 2e-8 * gaussians + 5e-9 * pixels + 1e-3
        fit.add(gaussians, pixels, seconds * random.uniform(0.95, 1.05))
    assert fit.pixel_cost(Two(), 0.7) == pytest.approx(0.25, rel=0.1)
    assert ratio(np.full((4, 4), 100.0), 0.7) == 0.7  # all steps alike tell nothing
