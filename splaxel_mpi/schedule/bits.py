"""Sets of ranks as bits."""

import numpy as np

WORD = 64


def packed(participants):
    """Rows of bool (n, ranks) as rows of 64-bit words, (n, words) uint64."""
    count, ranks = participants.shape
    padded = np.zeros((count, max(1, -(-ranks // WORD)) * WORD), bool)
    padded[:, :ranks] = participants
    return np.packbits(padded, axis=1).view(np.uint64)
