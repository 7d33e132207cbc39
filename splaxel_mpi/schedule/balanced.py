"""Scheduler balanced: batches in which every rank has about the same work (design section 7)."""

import numpy as np

from .windows import Windowed

# Swaps stop at this share of what the partition allows: prediction is not better than that.
GOAL = 0.995
# Exchanges that are tried for each view and batch mate, at most: 20 to 100 rounds of eight views
# reach the goal on the benchmark city, and the time stays linear in the views.
TRIES = 800
CANDIDATES = 16  # views of a batch that a round tries to swap; all pairs of 64 cost 16 times more
GAIN = 1e-9  # of the mean load: smaller gains are rounding


class Balanced(Windowed):
    """Heaviest view first into the batch with the lowest resulting maximum, then swaps that
    lower the maxima of two batches, then batches in random order.

    A batch that lies only in part in the window gets its part of the work. Inside a batch views
    are ordered so that each chunk, too, is as even as may be.
    """

    name = "balanced"
    predicts = True

    def arrange(self, work, start, random):
        """See Windowed.arrange."""
        unmarked = np.zeros(len(work), bool)
        rooms = self.rooms(start, len(work))
        if self.size == 1:
            return np.arange(len(work)), unmarked
        members = greedy(work, rooms)
        whole = [batch for batch in members if len(batch) == self.size]
        if whole:
            whole = swap(work, np.array(whole), random)
            whole = list(_even_chunks(work, random.permutation(whole), self.chunk))
        order = [whole.pop() if room == self.size else part for room, part in zip(rooms, members)]
        return np.concatenate(order).astype(np.int64), unmarked


def greedy(work, rooms):
    """Views dealt to batches of given sizes: a list of int64 arrays.

    work: (n, ranks); rooms: sizes that add up to n. The heaviest view, by its busiest rank, goes
    first, into the batch whose busiest rank then has least for the batch's size.
    """
    room, open_ = np.array(rooms, np.int64), np.arange(len(rooms))
    loads, share = np.zeros((len(rooms), work.shape[1])), 1.0 / room
    members = [[] for _ in rooms]
    for view in np.argsort(-work.max(axis=1), kind="stable").tolist():
        resulting = (loads + work[view]).max(axis=1) * share
        k = int(resulting.argmin())
        loads[k] += work[view]
        members[open_[k]].append(view)
        room[k] -= 1
        if not room[k]:
            open_, room, share = (np.delete(array, k) for array in (open_, room, share))
            loads = np.delete(loads, k, axis=0)
    return [np.array(batch, np.int64) for batch in members]


def swap(work, members, random):
    """Exchange views between batches while that lowers the sum of their maxima.

    members: (batches, size) views; random: numpy Generator. Each round pairs batches at random,
    tries some views of one against some of the other and makes the best exchange of each pair.
    Ends at GOAL or after TRIES. Returns (batches, size).
    """
    members, loads = members.copy(), work[members].sum(axis=1)
    total = loads.sum(axis=0)
    least = max(total.max(), GAIN)  # no order makes the sum of maxima smaller
    tried = min(CANDIDATES, members.shape[1])
    rounds = TRIES * members.shape[1] // tried**2
    for _ in range(rounds if len(members) > 1 else 0):
        if least >= GOAL * loads.max(axis=1).sum():
            break
        pairs = random.permutation(len(members))[: len(members) // 2 * 2].reshape(-1, 2)
        places = np.argpartition(random.random((2, *members.shape)), tried - 1, axis=2)
        _exchange(work, members, loads, pairs, places[..., :tried])
    return members


def _exchange(work, members, loads, pairs, places):
    """One round of swap(); changes members and loads. pairs: (k, 2) batches; places: (2, batches,
    tried) places in them that are tried."""
    (a, b), tried = pairs.T, places.shape[2]
    from_a, from_b = places[0][a], places[1][b]
    views_a = np.take_along_axis(members[a], from_a, axis=1)
    views_b = np.take_along_axis(members[b], from_b, axis=1)
    change = work[views_b][:, None] - work[views_a][:, :, None]  # (k, tried, tried, ranks)
    sums = (loads[a][:, None, None] + change).max(axis=3)
    sums += (loads[b][:, None, None] - change).max(axis=3)
    sums = sums.reshape(len(a), -1)
    best, rows = sums.argmin(axis=1), np.arange(len(a))
    gain = loads[a].max(axis=1) + loads[b].max(axis=1) - sums[rows, best]
    rows = rows[gain > GAIN * loads.mean()]
    i, j = np.divmod(best[rows], tried)
    moved = change[rows, i, j]
    a, b, one, other = a[rows], b[rows], views_a[rows, i], views_b[rows, j]
    members[a, from_a[rows, i]], members[b, from_b[rows, j]] = other, one
    loads[a] += moved
    loads[b] -= moved


def _even_chunks(work, members, chunk):
    """Batches (batches, size) with views in an order that makes chunks even: a chunk begins with
    the heaviest view that is left and takes the one that adds least to its maximum."""
    batches, size = members.shape
    if chunk == 1 or chunk >= size:
        return members
    views, rows = work[members], np.arange(batches)
    weight, left = views.max(axis=2), np.ones((batches, size), bool)
    out = np.empty_like(members)
    for place in range(size):
        if place % chunk == 0:
            load, pick = 0.0, np.where(left, weight, -1.0).argmax(axis=1)
        else:
            # of those that add equally little the heaviest
            rise = (views + load[:, None]).max(axis=2) - 1e-6 * weight
            pick = np.where(left, rise, np.inf).argmin(axis=1)
        out[:, place] = members[rows, pick]
        left[rows, pick] = False
        load = load + views[rows, pick]
    return out
