"""Scheduler conflict-free: the paper's consolidation of views (section 4.4, figure 16)."""

import numpy as np

from .bits import packed
from .windows import Windowed


class ConflictFree(Windowed):
    """Views that no rank has in common share a bucket and run together.

    A view joins the first bucket that has none of its participants, else it opens one. Buckets
    are shuffled and then fill batches, the first that still fits next; where none fits one is
    divided. A batch runs bucket after bucket and makes one update.
    """

    name = "conflict-free"
    predicts = True

    def chunks(self, images_seen, size):
        """See Scheduler.chunks: buckets, as far as they lie in the batch."""
        opens = self._between(images_seen, size, "opens").astype(bool)
        return np.diff(np.append(np.flatnonzero(np.append(True, opens[1:])), size)).tolist()

    def waits(self, start, opens):
        """See Windowed.waits: after every bucket."""
        return np.diff(np.append(np.flatnonzero(opens), len(opens))).tolist()

    def arrange(self, work, start, random):
        """See Windowed.arrange."""
        found = buckets(work > 0)
        found = [found[k] for k in random.permutation(len(found))]
        filled = fill(found, self.rooms(start, len(work)))
        opens = np.zeros(len(work), bool)
        opens[np.cumsum([0] + [len(bucket) for bucket in filled[:-1]])] = True
        return np.concatenate(filled), opens


def buckets(participants):
    """Greedy buckets of views with disjoint participants, in the order of the views.

    participants: (n, ranks) bool. Returns a list of int64 arrays of views, bucket after bucket
    in the order in which they were opened.
    """
    masks = packed(participants)
    taken, found = np.zeros_like(masks), []
    for view, mask in enumerate(masks):
        free = ~(taken[: len(found)] & mask).any(axis=1)
        place = int(free.argmax()) if free.any() else len(found)
        if place == len(found):
            found.append([])
        taken[place] |= mask
        found[place].append(view)
    return [np.array(bucket, np.int64) for bucket in found]


def fill(found, rooms):
    """Buckets in an order in which they fill rooms (sizes of batches, in order) exactly."""
    waiting, out = list(found), []
    for room in rooms:
        while room:
            fits = (k for k, bucket in enumerate(waiting) if len(bucket) <= room)
            bucket = waiting.pop(next(fits, 0))
            if len(bucket) > room:
                bucket, rest = np.split(bucket, [room])
                waiting.insert(0, rest)
            out.append(bucket)
            room -= len(bucket)
    return out
