"""Densifiers; each file is one, found by its name."""

from .adc import AdaptiveDensity

METHODS = {method.name: method for method in (AdaptiveDensity,)}


def make_densifier(settings, extent, seed):
    """The densifier of the densify section, None for method none."""
    return None if settings.method == "none" else METHODS[settings.method](settings, extent, seed)
