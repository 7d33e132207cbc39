"""Schedulers; each file is one, found by its name."""

from .fixed import Fixed

SCHEDULERS = {scheduler.name: scheduler for scheduler in (Fixed,)}


def make_scheduler(name, train, seed):
    """The scheduler of a train.order name."""
    return SCHEDULERS[name](train, seed)
