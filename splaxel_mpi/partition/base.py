"""Contract of a partitioner: how space is cut into cells."""


class Partitioner:
    """One way to cut all of space into cells of about equal weight."""

    name = ""

    def build(self, means, weights, cells, exchange, sample=None):
        """A tree of the given number of cells, identical on every rank.

        means: (n, 3) float32 or float64, positions of this rank's Gaussians in the world;
        weights: (n,) integer or float, not negative, or None for one each; cells: at least 1;
        exchange: mpi.base.Exchange; sample: (n,) boolean or row indices, the rows that count
        (None: all). The tree depends on the set of (mean, weight) over all ranks alone, not on
        who holds what. Returns partition.tree.Tree. Raises ValueError on every rank when any
        rank's input is not finite or a weight is negative.
        """
        raise NotImplementedError


def partitioner(name):
    """The partitioner of that name. Raises ValueError for an unknown one."""
    from splaxel_mpi.partition.kdtree import KdTree

    known = {choice.name: choice for choice in (KdTree,)}
    if name not in known:
        raise ValueError(f"partitioner {name!r} is unknown; choose from {', '.join(known)}")
    return known[name]()
