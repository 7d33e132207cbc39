"""Contract of a scheduler: which views make the next batch, and which of them run together."""


class Scheduler:
    """Deals training views to batches; every epoch shows every view once.

    Methods are called on every rank with the same arguments and are collective where the
    scheduler predicts; every rank gets the same answer. It follows from the arguments of the
    constructor, the predictions and the image counts of the calls. What was arranged and not
    yet shown belongs to a checkpoint (``state``): so a resumed run continues where the other
    stopped, bit for bit, whatever has become of the predictions.
    """

    name = ""
    predicts = False  # whether it needs a predictor

    def begin(self, images_seen):
        """A step begins: have its views ready, and those that follow in the making."""

    def batch(self, images_seen, size):
        """Indices of the next ``size`` views after ``images_seen`` images, a list."""
        raise NotImplementedError

    def chunks(self, images_seen, size):
        """Views of batch(images_seen, size) that share their collectives, as a list of counts
        that add up to size."""
        raise NotImplementedError

    def figures(self, images_seen):
        """How well the views around this image count fill the ranks: name -> number, see
        figures.summary; empty where nothing is predicted."""
        return {}

    def observe(self, view, gaussians, pixels):
        """What this rank drew in a view, see Predictor.observe. Local."""

    def timed(self, seconds):
        """What was observed since the last call took this rank so long. Local."""

    def repartitioned(self, images_seen):
        """Cells have changed: arrange anew what has not been shown."""

    def state(self):
        """What a checkpoint keeps, two dicts of arrays by name: the same on every rank, and
        this rank's own. Empty where the arguments of the constructor tell everything."""
        return {}, {}

    def restore(self, shared, own, images_seen):
        """Continue after images_seen images from what state() gave, before the first begin().

        own: empty for another rank count than the one that wrote it.
        """


class Predictor:
    """Contract of what tells schedulers the work that views make."""

    shape = (0, 0)  # cells, ranks

    def prepare(self, views):
        """Take what is known now about views (n,) int64. Collective.

        Returns a function without arguments: the work of each rank on each view, (n, ranks)
        float64 in any one unit, 0 where a rank takes no part. It may run in a thread beside
        training, so it sends nothing and depends on nothing that changes.
        """
        raise NotImplementedError

    def observe(self, view, gaussians, pixels):
        """Keep what this rank's cells drew in a view. A cell that drew nothing, or whose tiles
        are all saturated, takes no part in the next prediction of that view. Local.

        view: index; gaussians, pixels: (own cells,), ghosts included.
        """

    def timed(self, seconds):
        """What was observed since the last call took this rank so long. Local."""

    def forget(self):
        """Cells have changed: what was observed means nothing now."""

    def state(self):
        """This rank's arrays for a checkpoint, by name."""
        return {}

    def restore(self, state):
        """Take what state() gave; what does not fit is ignored."""
