"""Schedulers; each file is one, found by its name."""

from .balanced import Balanced
from .conflict_free import ConflictFree
from .fixed import Fixed
from .one_view import OneView
from .windows import WINDOW

SCHEDULERS = {kind.name: kind for kind in (Fixed, OneView, ConflictFree, Balanced)}


def make_scheduler(name, train, seed, batch=1, window=WINDOW, chunk=1, predictor=None):
    """The scheduler of a train.order name; parameters as for windows.Windowed.

    predictor: base.Predictor, or a function without arguments that makes one, called only for
    schedulers that predict.
    """
    return SCHEDULERS[name](train, seed, batch, window, chunk, predictor)
