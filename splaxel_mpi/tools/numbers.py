"""Numbers on the command line: what is no number, or out of range, is said in one line."""

import math
import re

import click

FACTORS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\+?\d{1,2})?)([kMG]?)")


class Number(click.FloatRange):
    """A click.FloatRange without what it lets through: nan, which is in every range, and
    infinity, which is in every one that has an open end."""

    def convert(self, value, param, context):
        """A finite float. Fails in one line for anything else."""
        number = super().convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, context)
        return number


class Count(click.ParamType):
    """A whole number from 1 to ``most``, such as 250000, 250k, 4M or 1.5G."""

    name = "count"

    def __init__(self, most):
        self.most = most

    def convert(self, value, param, context):
        """An int from text. Fails in one line for anything else."""
        if isinstance(value, int):
            return value
        match = COUNT.fullmatch(value)
        count = float(match[1]) * FACTORS[match[2]] if match else 0.0
        if not 1 <= count <= self.most:
            self.fail(f"{value!r} is not a count such as 250k or 4M, from 1 to {self.most}", param,
                      context)
        return round(count)
