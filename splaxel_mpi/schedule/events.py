"""Events of a run count images, so they mean the same at any batch size."""


def crossed(before, after, every):
    """True when a multiple of ``every`` (0: never) lies in (before, after]."""
    return every > 0 and after // every > before // every
