"""Scheduler fixed: views shuffled by seed and epoch alone."""

from .windows import Windowed


class Fixed(Windowed):
    """The permutation of each epoch as it is; batches run on across its end."""

    name = "fixed"
