"""Times as SLURM writes them."""

import re

TIMES = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def seconds_of(text):
    """Seconds of a time as SLURM writes it: "minutes", "minutes:seconds",
    "hours:minutes:seconds", "days-hours", "days-hours:minutes", "days-hours:minutes:seconds".

    Raises ValueError for anything else, and for no time at all.
    """
    match = TIMES.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is no time: expected H:MM:SS, D-HH:MM:SS or minutes")
    days, *parts = match.groups()
    parts = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not 0 < total < 10**9:
        raise ValueError(f"{text!r} is no time to train in")
    return total
