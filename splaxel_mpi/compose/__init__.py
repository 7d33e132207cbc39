"""Exchange strategies; each file is one, found by its name."""

from .overlap import Overlap

STRATEGIES = {strategy.name: strategy for strategy in (Overlap,)}


def make_compositor(name, backend, exchange, layout, background):
    """The compositor of a strategy name."""
    return STRATEGIES[name](backend, exchange, layout, background)
