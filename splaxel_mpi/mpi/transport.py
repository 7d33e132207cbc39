"""Choice of a transport by its name, or by what works here."""

import importlib
import logging

import numpy as np

from ..errors import UserError
from .base import Exchange
from .world import first_of, load_mpi

log = logging.getLogger(__name__)

# For device arrays, best first. On two GPUs of a host NCCL and a CUDA-aware MPI use the same
# links; the first needs no library beside MPI, and the last works everywhere.
BEST_FIRST = ("cuda-aware", "nccl", "staged")
# Items that a rank sends in the trial of a transport: small messages, then large ones.
TRIAL_ITEMS = (200, 600_000)


def make_exchange(name, backend, comm, measure_wait=False):
    """Exchange of comm for a backend's arrays. Collective.

    name: setting mpi.transport; "auto" takes the best that works, the same on every rank, and
    rank 0 says in one line what and why. backend: Backend, whose arrays travel. A transport is
    the module of its name in this package ("-" as "_"), with a subclass of Exchange that carries
    the name. Raises UserError when there is none, or it cannot work here.
    """
    kind = None if name == "auto" else _find(name)
    if backend.xp is np:
        why = f"the {backend.name} backend computes in host memory"
        if name not in ("auto", "host"):
            why += f", where mpi.transport={name} has nothing to do"
        exchange = _find("host")(comm, measure_wait)
    elif kind is None:
        exchange, why = _choose(backend, comm, measure_wait)
    else:
        exchange, why = _asked(kind, backend, comm, measure_wait), "asked for"
    if comm.rank == 0:
        log.info("transport: %s (%s)", exchange.name, why)
    return exchange


def exchange_alone(backend):
    """Exchange of this rank with itself for a backend's arrays. Not collective."""
    name = "host" if backend.xp is np else "staged"
    return _find(name)(load_mpi().COMM_SELF)


def _asked(kind, backend, comm, measure_wait):
    """The transport that the user named."""
    if kind.name == "host":
        raise UserError(
            f"mpi.transport: host moves host memory, but the {backend.name} backend computes on "
            "devices; set mpi.transport=staged or auto"
        )
    reason = kind.unfit(comm, backend)
    if reason:
        raise UserError(f"mpi.transport: {kind.name} cannot be used: {reason}; set "
                        "mpi.transport=auto")
    return kind(comm, measure_wait)


def _choose(backend, comm, measure_wait):
    """(exchange, why): the first of BEST_FIRST that nothing speaks against."""
    if comm.size == 1:
        return _find("staged")(comm, measure_wait), "one rank sends nothing"
    reasons = []
    for name in BEST_FIRST:
        kind = _find(name)
        reason = kind.unfit(comm, backend) or kind.untrusted(comm, backend)
        exchange = None
        if not reason:
            exchange, reason = _tried(kind, backend, comm, measure_wait)
        if not reason:
            return exchange, "; ".join(reasons) or "a child process and all ranks tried it"
        reasons.append(f"not {name}: {reason}")
    raise UserError(f"no transport works between these ranks: {'; '.join(reasons)}")


def _tried(kind, backend, comm, measure_wait):
    """(exchange, None), or (None, reason) where making it or its first use goes wrong."""
    exchange = mistake = None
    try:
        exchange = kind(comm, measure_wait)
        for items in TRIAL_ITEMS:
            if not _arrives(exchange, backend, max(1, items // comm.size)):
                mistake = "data did not arrive as they were sent"
    except Exception as error:  # each library has errors of its own
        mistake = f"{type(error).__name__}: {' '.join(str(error).split())}"
    mistake = first_of(comm, mistake)
    if mistake:
        return None, mistake
    for figures in (exchange.bytes, exchange.seconds, exchange.waited, exchange.flight):
        figures.clear()
    return exchange, None


def _arrives(exchange, backend, items):
    """Whether every rank gets from every other what it sent, some more to each next rank."""
    ranks, rank = np.arange(exchange.ranks), exchange.rank
    segments = [np.arange(items + to, dtype=backend.real) + 1000 * rank + to for to in ranks]
    expected = [np.arange(items + rank, dtype=backend.real) + 1000 * r + rank for r in ranks]
    data = backend.to_device(np.concatenate(segments))
    out, _ = exchange.alltoallv("trial", data, items + ranks, np.full(len(ranks), items + rank))
    return bool((backend.to_host(out) == np.concatenate(expected)).all())


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
