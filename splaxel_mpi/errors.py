"""Mistakes of a user, shown as one line."""


class UserError(Exception):
    """What is wrong, where, and what to do."""
