"""Choice of a transport by its name."""

import importlib
import logging

import numpy as np

from ..errors import UserError
from .base import Exchange

log = logging.getLogger(__name__)


def make_exchange(name, backend, comm, measure_wait=False):
    """Exchange of comm for a backend's arrays.

    name: setting mpi.transport; "auto" takes what fits the backend. backend: Backend, whose
    arrays travel. A transport is the module of its name in this package ("-" as "_"), with a
    subclass of Exchange that carries the name. Raises UserError when there is none.
    """
    why = "asked for"
    if name == "auto":
        name, why = "host", f"the {backend.name} backend computes in host memory"
        if backend.xp is not np:
            name, why = "staged", f"arrays of the {backend.name} backend go through host memory"
    elif name == "host" and backend.xp is not np:
        raise UserError(
            f"mpi.transport: host moves host memory, but the {backend.name} backend computes on "
            "devices; set mpi.transport=staged or auto"
        )
    kind = _find(name)
    if comm.rank == 0:
        log.info("transport: %s (%s)", name, why)
    return kind(comm, measure_wait)


def _find(name):
    module = f"{__package__}.{name.replace('-', '_')}"
    try:
        found = vars(importlib.import_module(module)).values()
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        found = ()
    for kind in found:
        if isinstance(kind, type) and issubclass(kind, Exchange) and kind.name == name:
            return kind
    raise UserError(f"mpi.transport: no transport called '{name}'")
