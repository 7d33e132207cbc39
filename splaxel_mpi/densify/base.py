"""Contract of a densifier: how the set of Gaussians changes during training."""


class Densifier:
    """Grows and prunes Gaussians at events that count images.

    Created with (settings, extent, seed): the densify section, the scene extent and the seed of
    the run. Decisions and draws depend on a Gaussian's own arrays, its id, the image count and
    the seed, never on ranks, so any rank count makes the same scene.
    """

    name = ""
    opens = ()  # counts of apply() that let light through where there was none

    def due(self, before, after, total):
        """True when an event lies between two image counts (before < event <= after)."""
        raise NotImplementedError

    def apply(self, state, before, after, total, exchange):
        """Change the rows of ``state`` in place. Collective over the ranks of ``exchange``.

        Returns a dict of counts: cloned, split, pruned, opaque (among them), reset. Rows are
        then out of cell order; the caller migrates them.
        """
        raise NotImplementedError
