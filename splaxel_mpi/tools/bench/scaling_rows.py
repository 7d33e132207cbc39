"""What `splaxel-mpi bench scaling --json` wrote, checked before tables and figures use it."""

import json
from pathlib import Path
from typing import Annotated, Dict, List, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ...errors import UserError
from .options import KINDS

Amount = Annotated[float, Field(ge=0)]
Rate = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Entry(BaseModel):
    """What figures of all rows are made of; there may be more."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class LinkFigures(Entry):
    """See links.Link, which takes no more than these."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    bandwidth: Rate
    latency: Amount
    source: str


class Modelled(Entry):
    """What the model says of a measured row."""

    images_per_second: Rate


class Row(Entry):
    """What every row has."""

    scaling: Literal["strong", "weak"]
    gaussians: Count
    ranks: Annotated[int, Field(ge=1, le=1 << 31)]
    transport: Optional[str] = None


class NotRun(Row):
    """Of a city, of one of its variants and kinds of views, or of a transport."""

    source: Literal["not run"]
    reason: str
    kind: Literal[KINDS] = KINDS[0]
    variant: Literal["ours", "paper", "gaussian"] = "ours"


class Figures(Row):
    """Of a row that has some. kind is part of a file's name."""

    kind: Literal[KINDS]
    variant: Literal["ours", "paper", "gaussian"]
    images_per_second: Rate
    total_bytes: Amount
    active: Amount
    balance: Amount
    link: Optional[LinkFigures] = None


class MeasuredRow(Figures):
    """shares: of the time, by stage."""

    source: Literal["measured"]
    shares: Dict[str, Amount]
    modelled: Optional[Modelled] = None


class ModelledRow(Figures):
    """Of ranks that were not measured."""

    source: Literal["modelled"]
    link: LinkFigures


ROWS = TypeAdapter(List[Annotated[Union[NotRun, MeasuredRow, ModelledRow],
                                  Field(discriminator="source")]])


def read(file):
    """Rows of a report of `bench scaling`, dicts. Raises UserError for another file."""
    try:
        rows = json.loads(Path(file).read_text(encoding="utf-8"))["rows"]
        ROWS.validate_python(rows)
        return rows
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        what = f": rows.{where}: {first['msg']}" if where else ""
    except (ValueError, TypeError, KeyError, RecursionError):
        what = ""
    raise UserError(f"{file}: not a report of `splaxel-mpi bench scaling --json`{what}")
