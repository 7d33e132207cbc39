"""What settings are made of: sections, and the types of values that occur in several."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

# a run is a folder of its own, so its name must stay one plain component of a path
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
# bounds counts of images and Gaussians: exact in float64, and a typing slip shows
MOST = 10**12
MOST_BYTES = 2**63 - 1  # what files and memory can have


def run_name(text):
    """A plain name of a folder."""
    if not RUN_NAME.fullmatch(text):
        raise ValueError("expected letters, digits, '.', '_', '-' (at most 100, no '.' first)")
    return text


def path_text(text):
    """Anything that may be a path."""
    if not text.strip() or "\0" in text:
        raise ValueError("expected a path")
    return text


def holdout_count(value):
    """0, or 2 and more."""
    if value == 1:
        raise ValueError("expected 0 or at least 2 (1 would leave nothing to train on)")
    return value


def byte_count(value):
    """Bytes from a whole number or from text such as "2G" (powers of 1024)."""
    if isinstance(value, str):
        match = SIZE.fullmatch(value.strip())
        if not match:
            raise ValueError('expected bytes, or text such as "500M" or "2G"')
        value = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
        if value > MOST_BYTES:
            raise ValueError(f"expected at most {MOST_BYTES} bytes")
        value = int(value)
    return value


Path = Annotated[str, AfterValidator(path_text)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(ge=1, le=MOST)]
Rate = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Settings are strict: nothing unknown, nothing converted but whole numbers to floats."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, validate_assignment=True
    )
