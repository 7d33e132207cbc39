"""Fits the cost of a pixel against that of a Gaussian to the times of a run."""

import numpy as np

KIND = "schedule"  # under which an exchange counts the traffic
STEPS = 32  # of all ranks together: fewer leave the fit to noise
DISTINCT = 1e-6  # least eigenvalue of the scaled products: below, steps are too much alike


class CostFit:
    """Least squares of seconds = a Gaussians + b pixels + c over the steps of all ranks.

    Only products of sums are kept, so any number of steps takes the same room.
    """

    def __init__(self):
        self.products = np.zeros((4, 4))

    def add(self, gaussians, pixels, seconds):
        """One step of this rank: what it drew, and how long it computed."""
        row = np.array([gaussians, pixels, 1.0, seconds], np.float64)
        self.products += np.outer(row, row)

    def pixel_cost(self, exchange, otherwise):
        """b / a from the steps of all ranks so far; ``otherwise`` where they tell too little.
        Collective."""
        products = exchange.allreduce(KIND, self.products)
        return ratio(products, otherwise)


def ratio(products, otherwise):
    """b / a of the fit; products: (4, 4) sums of the outer products of (Gaussians, pixels, 1,
    seconds). ``otherwise`` where steps are few or much alike, or a cost comes out as zero."""
    if products[2, 2] < STEPS:
        return otherwise
    from scipy.optimize import nnls  # slow to import, and most runs do not measure costs

    scale = np.sqrt(np.maximum(np.diag(products), 1e-300))
    scaled = products / np.outer(scale, scale)
    # least squares from the products alone: with M = L L^T, |L^T x - y| is the same problem
    values, vectors = np.linalg.eigh(scaled[:3, :3])
    if values[0] < DISTINCT:
        return otherwise
    root = np.sqrt(values)[:, None] * vectors.T
    right = (vectors.T @ scaled[:3, 3]) / np.sqrt(values)
    a, b, _ = nnls(root, right)[0] / scale[:3]
    return float(b / a) if a > 0 and b > 0 else otherwise
