"""Densifiers; each file is one, found by its name."""

from .adc import AdaptiveDensity
from .mcmc import MarkovChain

METHODS = {method.name: method for method in (AdaptiveDensity, MarkovChain)}


def make_densifier(settings, extent, seed, backend=None):
    """The densifier of the densify section, None for method none."""
    if settings.method == "none":
        return None
    return METHODS[settings.method](settings, extent, seed, backend)
