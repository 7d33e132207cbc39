"""The metrics of a run as arrays, one series at a time."""

from collections.abc import Mapping

import numpy as np

from ..evaluate.series import damage, open_series
from .frames import data_frame


class Metrics(Mapping):
    """An open metrics.h5: name -> array, (rows,) or (rows, ranks). Use as a context manager.

    Only what is asked for is read. The file may be one that a job is writing: this object keeps
    the state that it opened; open another one for the rows written since. Raises UserError for a
    file that is missing or not a readable metrics file.
    """

    def __init__(self, path):
        self.path = path
        self.file, self.items_by_name = open_series(path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    @property
    def rows(self):
        """Rows of every series."""
        return len(self.items_by_name["images_seen"])

    def __len__(self):
        return len(self.items_by_name)

    def __iter__(self):
        return iter(self.items_by_name)

    def __contains__(self, name):
        return name in self.items_by_name

    def __getitem__(self, name):
        """All rows of a series. KeyError where the run has none of that name."""
        return self.read(name)

    def read(self, name, rows=slice(None)):
        """Some rows of a series: int64 for images_seen and step, float64 for all others, NaN
        where nothing was measured. rows: a slice."""
        item = self.items_by_name[name]
        with damage(self.path):
            return item[rows]

    def points(self, name, rows=slice(None)):
        """(images seen (n,) int64, values (n,) or (n, ranks)) of the rows in which a series was
        measured; both empty where the run has no series of that name."""
        if name not in self:
            return np.empty(0, np.int64), np.empty(0)
        images, values = self.read("images_seen", rows), self.read(name, rows)
        measured = ~np.isnan(values.reshape(len(values), -1)).all(axis=1)
        return images[measured], values[measured]

    def frame(self, names=None, rows=slice(None)):
        """Rows as a pandas.DataFrame with the images seen as index; a series over ranks gets a
        column "<name>/<rank>" for each. names: all of one value a row by default. Raises
        UserError where pandas is not installed."""
        if names is None:
            names = [name for name, item in self.items_by_name.items() if item.ndim == 1]
        columns = {name: self.read(name, rows) for name in names if name != "images_seen"}
        return data_frame(columns, self.read("images_seen", rows), "images_seen")
