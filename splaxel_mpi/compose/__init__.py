"""Exchange strategies; each file is one, found by its name."""

from .overlap import Overlap
from .owner import Owner

STRATEGIES = {strategy.name: strategy for strategy in (Overlap, Owner)}


def make_compositor(settings, backend, exchange, layout, background):
    """The compositor that the exchange section of the settings asks for."""
    strategy = STRATEGIES[settings.strategy]
    return strategy(backend, exchange, layout, background, settings.precision)
