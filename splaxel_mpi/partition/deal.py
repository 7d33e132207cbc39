"""No cells: Gaussians dealt to ranks at random, as the exchange of Gaussians wants them.

Any view then finds about the same number on every rank, wherever it looks.
"""

import numpy as np

from ..scene.identity import hash64
from .tree import Tree

STREAM = 0x6465616C  # keeps this use of the hash apart from others


class Dealt(Tree):
    """All of space as one cell that every rank shares; its Gaussians go by a hash of their ids."""

    dealt = True

    @staticmethod
    def single():
        """The only one there is."""
        return Dealt(*vars(Tree.single()).values())


def dealt_ranks(ids, ranks, xp=np):
    """Rank of each Gaussian: (n,) int64.

    ids: (n,) int64. Depends on id and rank count alone, and shares differ by about the root of
    their size.
    """
    return (hash64(ids, 0, 0, STREAM, xp) % np.uint64(ranks)).astype(np.int64)
