"""What a run does when memory ends: need less, or stop with everything that was trained."""

import logging

import numpy as np

from ..errors import UserError

log = logging.getLogger(__name__)


def relieve(trainer):
    """After a step: where a rank had to use its reserve, let the next steps need less.

    First the views of a batch are taken one by one (chunk and in_flight are 1); where they are,
    the scene stops growing. Without room for a new reserve the run ends here, with a
    checkpoint. Collective; the host backend has no reserve. Raises UserError.
    """
    world, state = trainer.world, trainer.state
    memory, exchange = world.backend.memory, world.exchange
    if world.backend.xp is np or not _any(exchange, memory.spent):
        return
    memory.renew()
    if _any(exchange, memory.reserve is None):
        text = _advice(trainer, "no room for a view is left beside the Gaussians")
        raise UserError(text + _store(trainer))
    if trainer.steps.shrink():
        world.backend.forget_sizes()
        log.warning("memory is full after image %d: train.chunk and train.in_flight are 1 from "
                    "here on", state.images_seen)
    else:
        state.budget.rank = max(1, len(state.gaussians))


def give_up(trainer, error, whole):
    """Raise UserError for a MemoryError, after a checkpoint where that is possible.

    whole: parameters are those of whole steps. A single rank can store them; of several, one
    that fails alone cannot: the others wait in a collective, and the last checkpoint stands.
    """
    text = _advice(trainer, " ".join(str(error).split()) or "the system has none left")
    if whole and trainer.state.intact and trainer.world.ranks == 1:
        text += _store(trainer)
    raise UserError(text) from error


def _any(exchange, value):
    """True on all ranks where it is on one."""
    if exchange.ranks == 1:
        return bool(value)
    return bool(exchange.allreduce("memory", np.array([value], np.int64), "max")[0])


def _advice(trainer, what):
    state = trainer.state
    return (
        f"out of memory after image {state.images_seen} ({what}): this rank holds "
        f"{len(state.rows)} Gaussians, {state.budget.rank} were thought to fit; use more ranks, "
        "lower train.chunk, train.in_flight or backend.memory, or set densify.limit"
    )


def _store(trainer):
    """Write a checkpoint; what a message says of it."""
    try:
        trainer.store()
    except MemoryError:
        return ""
    return f"; image {trainer.state.images_seen} is stored, go on from it with --resume"
