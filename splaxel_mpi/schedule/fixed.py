"""Scheduler fixed: views shuffled by seed and epoch alone."""

import numpy as np

from .base import Scheduler


class Fixed(Scheduler):
    """A permutation for each epoch; batches run on across its end."""

    name = "fixed"

    def __init__(self, train, seed):
        self.train, self.seed = np.asarray(train, np.int64), seed
        self.epoch, self.order = None, None

    def batch(self, images_seen, size):
        """See Scheduler.batch."""
        return [self._at(position) for position in range(images_seen, images_seen + size)]

    def _at(self, position):
        epoch, place = divmod(position, len(self.train))
        if epoch != self.epoch:
            shuffle = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self.epoch, self.order = epoch, self.train[shuffle.permutation(len(self.train))]
        return int(self.order[place])
