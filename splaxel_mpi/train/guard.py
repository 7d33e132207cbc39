"""Watch for numbers that are no longer finite, at a price that no step notices.

A Gaussian whose parameters are not finite is not drawn: it would vanish without a word. Three
things are looked at. Of every view: its loss, and the sum of its splat gradients. Of every step:
flags that Adam raises while it has the values at hand. Now and then, and before anything is
stored or decided by them: all parameters and moments. Ranks learn of it together, every SETTLE
steps and at every event, so that no step has a collective of its own.
"""

import logging
from dataclasses import dataclass

import numpy as np

from ..arrays import module_of
from ..errors import UserError
from ..scene.gaussians import GROUPS

log = logging.getLogger(__name__)

KIND = "guard"  # under which an exchange counts the traffic
SETTLE = 32  # steps that a broken number may stay unnoticed by other ranks


@dataclass
class Notice:
    """What a rank saw go wrong in a step."""

    images: int  # image count after the step
    views: list  # names: of the views that showed it, else of the whole batch
    what: list  # "the loss", "the gradient", "the update of means", ...

    @property
    def serious(self):
        """True where it matters even if no Gaussian is broken: sums of gradients may overflow."""
        return "the loss" in self.what

    def __str__(self):
        views = ", ".join(self.views)
        return f"{' and '.join(self.what)} not finite at image {self.images} (views {views})"


class Guard:
    """One rank's watch.

    world: World; policy: setting train.on_nonfinite; state: State at the start. flags: (groups,)
    int32 that Backend.adam_groups raises; every: steps that ranks may go on without agreeing.
    """

    # steps that do not wait for their device: each agreement does, and Steps.troubled tells
    SELDOM = 1024

    def __init__(self, world, policy, state):
        self.world, self.policy, self.every = world, policy, SETTLE
        self.flags = world.backend.zeros(len(GROUPS), np.int32)
        self.clean = state.images_seen  # image count of the last look at everything
        # since ranks last agreed: (views, images, sums, flags) of each step, and losses
        self.steps, self.losses = [], []

    def due(self, step):
        """Whether ranks are to agree after so many steps even without an event."""
        return step % self.every == 0

    def watch(self, views, images, sums):
        """Keep what tells of a step; nothing waits for a device here.

        views: list of View; images: count after the step; sums: for each view the sum of its
        splat gradients on this rank, numbers or arrays () of the backend. Steps that do not
        have them never give any.
        """
        xp, known = self.world.backend.xp, len(sums) == len(views)
        sums = xp.stack([xp.asarray(value) for value in sums]) if known else None
        self.steps.append((views, images, sums, self.flags.copy()))

    def hear(self, shares):
        """Keep losses as they become known: (k, 3), of views in the order of watch."""
        self.losses.append(shares)

    def settle(self, state, look):
        """Let ranks agree on whether all is well, and act where it is not. Collective; steps are
        settled.

        state: State; look: also look at all parameters and moments. Returns the number of
        Gaussians dropped over all ranks: then the rows of the state are to be migrated anew.
        Raises UserError on all ranks under policy "stop", or where none would be left.
        """
        notice = self._notice()
        bad = broken_rows(state) if look or notice else None
        wrong = bad is not None and (bad.problems or (notice and notice.serious))
        wrong = np.array([bool(wrong)], np.int64)
        trouble = bool(self.world.exchange.allreduce(KIND, wrong, "max")[0])
        dropped = self._act(state, notice, bad) if trouble else 0
        if look or trouble:
            self.clean = state.images_seen
        return dropped

    def _notice(self):
        """Notice of the first step in which something was wrong, None where all is well."""
        steps, losses = self.steps, self.losses
        self.steps, self.losses = [], []
        if not steps:
            return None
        xp, host = self.world.backend.xp, self.world.backend.to_host
        ends = np.cumsum([len(views) for views, *_ in steps])[:-1]
        losses = np.split(np.concatenate(losses), ends)
        # one transfer from a device for each kind, not for each step
        sums = [np.zeros(len(views)) for views, *_ in steps]
        if steps[0][2] is not None:
            sums = np.split(host(xp.concatenate([sums for _, _, sums, _ in steps])), ends)
        flags = host(xp.stack([flags for *_, flags in steps]))
        for k, (views, images, *_) in enumerate(steps):
            notice = _read(views, images, losses[k], sums[k], flags[k])
            if notice:
                self.flags[:] = 0
                return notice
        return None

    def _act(self, state, notice, bad):
        """Tell what is wrong; stop or drop. Collective."""
        world = self.world
        bad = broken_rows(state) if bad is None else bad
        mine = (int(bad.rows.sum()), len(state.gaussians), self._text(state, notice, bad))
        found = world.comm.allgather(mine)
        text = "; ".join(line for *_, line in found if line)
        broken, total = (sum(rank[k] for rank in found) for k in range(2))
        if self.policy == "stop":
            raise UserError(
                f"{text}: training diverged; lower train.rates, or set train.on_nonfinite=prune "
                "to go on without such Gaussians; checkpoints stay whole, --resume goes on from "
                "the last"
            )
        if world.is_root:
            log.warning("%s: %d of %d Gaussians dropped", text, broken, total)
        if broken == total:
            raise UserError(f"no Gaussian is left after image {state.images_seen}: {text}")
        if broken:
            state.replace(~bad.rows, None)
        return broken

    def _text(self, state, notice, bad):
        """What this rank has to tell, or nothing."""
        parts = [str(notice)] if notice else []
        count = int(bad.rows.sum())
        if count:
            first = int(self.world.backend.to_host(state.gaussians.ids[bad.rows][:1])[0])
            when = "" if notice else f" between images {self.clean} and {state.images_seen}"
            problems = ", ".join(bad.problems)
            parts.append(f"{count} Gaussians (first id {first}) broken{when}: {problems}")
        return f"rank {self.world.rank}: {', '.join(parts)}" if parts else ""


def _read(views, images, shares, sums, flags):
    """Notice of one step, None where nothing is wrong."""
    names = [view.name for view in views]
    loss, gradient = ~np.isfinite(shares).all(axis=1), ~np.isfinite(sums)
    what = ["the loss"] if loss.any() else []
    what += ["the gradient"] if gradient.any() else []
    updates = [name for name, flag in zip(GROUPS, flags) if flag]
    what += [f"the update of {', '.join(updates)}"] if updates else []
    shown = [name for name, wrong in zip(names, loss | gradient) if wrong]
    return Notice(images, shown or names, what) if what else None


@dataclass
class BrokenRows:
    """Gaussians that cannot be drawn or trained, and why."""

    rows: np.ndarray  # (n,) bool
    problems: list  # texts, empty where no row is marked


def broken_rows(state):
    """Gaussians of a state with a number that is not finite, a quaternion of no length or a
    scale whose variance overflows: BrokenRows.

    Such rows are never drawn and so never mend. Takes one pass over parameters and moments.
    """
    xp = module_of(state.norm)
    rows, problems = xp.zeros(len(state.gaussians), bool), []

    def mark(wrong, problem):
        if bool(wrong.any()):
            rows[wrong] = True
            problems.append(problem)

    arrays = list(state.gaussians.groups())
    arrays += [(f"first moments of {name}", state.first[name]) for name in GROUPS]
    arrays += [(f"second moments of {name}", state.second[name]) for name in GROUPS]
    for name, array in arrays:
        if not _sum_is_finite(array):
            mark(~xp.isfinite(array).all(axis=1), f"{name} not finite")
    quats, scales = state.gaussians.quats, state.gaussians.scales
    with np.errstate(over="ignore", invalid="ignore"):
        length = xp.einsum("ij,ij->i", quats, quats)
    mark((length == 0) | xp.isposinf(length), "quats without direction")
    most = np.log(np.finfo(scales.dtype).max) / 2  # the kernels square e^scale
    if len(scales) and not bool(scales.max() <= most):
        mark((scales > most).any(axis=1), "scales beyond the range of numbers")
    return BrokenRows(rows, problems)


def _sum_is_finite(array):
    """False where a value is not finite; also where finite ones overflow, which costs a closer
    look and nothing else."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(float(array.sum())))
