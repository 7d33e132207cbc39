"""Events of a run count images, so they mean the same at any batch size."""


def latest(before, after, every):
    """Last multiple of ``every`` (0: never) in (before, after], None when there is none."""
    event = after // every * every if every > 0 else 0
    return event if event > before else None


def crossed(before, after, every):
    """True when a multiple of ``every`` (0: never) lies in (before, after]."""
    return latest(before, after, every) is not None
