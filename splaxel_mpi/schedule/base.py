"""Contract of a scheduler: which views make the next batch."""


class Scheduler:
    """Deals training views to batches; every epoch shows every view once.

    Created with (train, seed): train: (n,) indices of training views; seed: int. The answer
    depends on the arguments alone, so a resumed run continues where the other stopped and
    every rank computes the same batch.
    """

    name = ""

    def batch(self, images_seen, size):
        """Indices of the next ``size`` views after ``images_seen`` images."""
        raise NotImplementedError
