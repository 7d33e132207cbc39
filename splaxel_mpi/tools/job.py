"""SLURM batch scripts for a configuration (splaxel-mpi job)."""

import itertools
import re
import shlex
from dataclasses import dataclass

from .. import config
from ..errors import UserError
from ..times import seconds_of

# Bytes of a Gaussian in a checkpoint: 59 parameters and two moments of each in float32, and its
# statistics (docs/file-formats.md).
STORED = 740
# Bytes a second that a parallel file system takes at least, from many ranks; a guess on the low
# side, since a lead that is too long costs little.
WRITTEN = 500e6
# Seconds: SLURM looks every half minute for jobs to signal, and a step and a check come first.
LEAST_LEAD = 120
# Gaussians that a scene is thought to have where densify.limit does not say.
USUAL = 10_000_000
# Starts after which something else than the clock ends the job again and again.
MOST_STARTS = 100
# Values that neither the shell nor a list of them takes apart.
PLAIN = re.compile(r"[A-Za-z0-9._+/:-]+")


@dataclass
class Job:
    """What to ask SLURM for; see `splaxel-mpi job --help`."""

    nodes: int = 1
    gpus: int = 0  # of a node
    ranks: int = 0  # of a node; 0: its GPUs, or 4
    cores: int = 0  # of a rank; 0: 8 beside a GPU, else 4
    time: str = "12:00:00"
    launcher: str = "pmix"
    account: str = None
    partition: str = None
    requeue: bool = True
    shared: bool = False
    lead: int = 0  # seconds; 0: by the size of a checkpoint
    command: str = None  # that made the script


def script(path, overrides, job, varied=()):
    """Text of a batch script that trains configuration ``path``.

    overrides: "key=value" texts; varied: "key=value,value,..." texts, whose combinations become
    tasks of an array, each a run of its own. Raises UserError for settings that the job
    contradicts, and for a time too short to stop in.
    """
    settings = config.load(path, overrides)
    job.ranks = job.ranks or job.gpus or 4
    job.cores = job.cores or (8 if job.gpus else 4)
    overrides = [*overrides, *_backend(settings, job)]
    variants = _variants(path, overrides, settings, varied)
    job.lead = job.lead or _lead(settings)
    try:
        seconds = seconds_of(job.time)
    except ValueError as error:
        raise UserError(f"--time: {error}") from None
    if seconds < 2 * job.lead:
        raise UserError(
            f"--time {job.time} is too short: {job.lead} s before its end the run is told to "
            "write its checkpoint; ask for twice that at least, or give a shorter --lead"
        )
    parts = [_opening(path, settings, job), *_requests(settings, job, variants),
             _body(path, overrides, job, variants)]
    return "\n".join(parts)


def _backend(settings, job):
    """Overrides that keep a run on GPUs from using CPUs where the GPUs are not to be had."""
    name = settings.backend.name
    if job.gpus and name == "host":
        raise UserError("backend.name is host: leave --gpus-per-node out, or set "
                        "backend.name=cuda")
    if not job.gpus and name == "cuda":
        raise UserError("backend.name is cuda: say how many GPUs a node has with "
                        "--gpus-per-node")
    if job.gpus and job.ranks > job.gpus and not settings.mpi.share_gpu:
        raise UserError(f"{job.ranks} ranks would share {job.gpus} GPUs of a node: set "
                        "mpi.share_gpu=true, or leave --ranks-per-node out")
    return ["backend.name=cuda"] if job.gpus and name == "auto" else []


def _variants(path, overrides, settings, varied):
    """Texts of overrides, one for each task of an array; empty without ``varied``."""
    axes = []
    for text in varied:
        key, equals, values = text.partition("=")
        if not equals or not all(map(PLAIN.fullmatch, values.split(","))):
            raise UserError(f"--vary {text}: expected KEY=VALUE,VALUE,... of plain values")
        axes.append([f"{key}={value}" for value in values.split(",")])
    found = []
    for chosen in itertools.product(*axes) if axes else ():
        tail = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", one.partition("=")[2]) for one in chosen)
        chosen = [*chosen, f"run.name={settings.run.name}-{tail}"]
        config.load(path, [*overrides, *chosen])  # a mistake is found here, not in the queue
        found.append(" ".join(chosen))
    if len(set(found)) < len(found):
        raise UserError("--vary names a combination twice")
    return found


def _lead(settings):
    """Seconds before the end at which the run is told to stop: two writes of its checkpoint."""
    gaussians = settings.densify.limit or USUAL
    return LEAST_LEAD + int(2 * gaussians * STORED / WRITTEN)


def _opening(path, settings, job):
    place = f"{job.nodes} node{'s' * (job.nodes > 1)}, {job.ranks} ranks a node, "
    place += "a GPU for each" if job.gpus == job.ranks else f"{job.gpus or 'no'} GPUs"
    lines = ["#!/bin/bash", f"# Trains {path} under SLURM: {place}.", "#"]
    if job.command:
        lines += ["# Made by", f"#   {job.command}"]
    lines += [
        "# Submit it with sbatch, from the folder that relative paths start at. "
        "jobs/profile.sh says",
        "# what this machine needs (jobs/profile.sh.example).",
    ]
    if not settings.checkpoint.every:
        lines += [
            "#",
            "# checkpoint.every is 0: a node that dies takes all since the last stop with it.",
        ]
    return "\n".join(lines) + "\n"


def _requests(settings, job, variants):
    """Each #SBATCH line with what it is for."""
    name = settings.run.name + ("-array" if variants else "")
    yield _line("its name in squeue and in the name of the log", "job-name", name)
    if job.account:
        yield _line("who pays", "account", job.account)
    if job.partition:
        yield _line("the queue", "partition", job.partition)
    yield _line("the run goes on in another job where this ends too early", "time", job.time)
    yield _line("any number will do, also when a run is resumed", "nodes", job.nodes)
    if job.gpus:
        yield _line("GPUs of a node: a rank for each", "gpus-per-node", job.gpus)
    yield _line("ranks of a node", "ntasks-per-node", job.ranks)
    why = "photographs are decoded while the GPU works" if job.gpus else "the threads of a rank"
    yield _line(f"cores of a rank: {why}", "cpus-per-task", job.cores)
    if not job.shared:
        yield _line("nobody else on these nodes: ranks wait for the slowest", "exclusive")
        yield _line("all their memory, which caches photographs", "mem", 0)
    if variants:
        yield _line("a task for each line of `variants` below", "array",
                    f"0-{len(variants) - 1}")
        log = "%x-%A_%a.log"
    else:
        log = "%x-%j.log"
    yield _line("what is printed goes here", "output", log)
    yield _line("and a second start adds to it", "open-mode", "append")
    if job.requeue:
        yield _line("may start again: after preemption, a dead node, the time limit", "requeue")
    else:
        yield _line("never starts again by itself", "no-requeue")
    to, whom = ("B:", "this script") if job.launcher == "mpirun" else ("", "all ranks")
    yield _line(f"seconds before the end, time to write a checkpoint: told to {whom}",
                "signal", f"{to}USR1@{job.lead}")


def _line(why, name, value=None):
    return f"# {why}\n#SBATCH --{name}" + ("" if value is None else f"={value}")


def _body(path, overrides, job, variants):
    parts = [START]
    arguments = [shlex.quote(path), *map(shlex.quote, overrides)]
    if variants:
        tasks = "\n".join(f"    {shlex.quote(text)}" for text in variants)
        parts.append(VARIANTS.format(tasks=tasks))
        arguments.append('"${variant[@]}"')
    if job.launcher == "mpirun":
        # mpirun leaves ranks a second after SIGTERM, so all signals go on as SIGUSR1
        launch = LAUNCH_MPIRUN.format(ranks=job.nodes * job.ranks, cores=job.cores)
    else:
        bind = " --gpu-bind=none" if job.gpus else ""
        launch = LAUNCH_SRUN.format(kind=job.launcher, bind=bind)
        if job.gpus:
            launch = GPU_NOTE + launch
    train = "splaxel-mpi train --continue " + " ".join(arguments)
    traps = TRAP_MPIRUN if job.launcher == "mpirun" else TRAP_SRUN
    # only a script that may ask for another start has to know whether it was told to end
    words = dict(ended=" ended=no", end=" ended=yes") if job.requeue else dict(ended="", end="")
    parts += [traps.format(**words), launch + train + " &\n" + WAIT]
    parts.append(REQUEUE.format(most=MOST_STARTS) if job.requeue else 'exit "$status"\n')
    return "\n".join(parts)


START = """
set -euo pipefail

# Modules and Python of this machine.
profile=${SPLAXEL_PROFILE:-jobs/profile.sh}
# shellcheck source=/dev/null
if [ -f "$profile" ]; then . "$profile"; fi

# What a reader of the log wants to know first.
echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1))," \\
    "$(splaxel-mpi --version)"
"""
VARIANTS = """\
variants=(
{tasks}
)
read -ra variant <<<"${{variants[$SLURM_ARRAY_TASK_ID]}}"
echo "variant: ${{variant[*]}}"
"""
TRAP_SRUN = """\
# SLURM itself tells ranks that the time is near, or that the job is preempted. SIGTERM to this
# script, too, means scancel, or a preemption after which SLURM starts the job again by itself:
# then it only waits for the checkpoint.
heard=no{ended}
trap 'heard=yes{end}' TERM
"""
TRAP_MPIRUN = """\
# mpirun passes SIGUSR1 on to ranks, but kills them a second after a SIGTERM of its own. SIGTERM
# means scancel, or a preemption after which SLURM starts the job again by itself.
heard=no{ended}
trap 'heard=yes; kill -USR1 "$step"' USR1
trap 'heard=yes{end}; kill -USR1 "$step"' TERM
"""
GPU_NOTE = """\
# Every rank sees all GPUs of its node and takes the one of its place: ranks reach each other's
# memory only where both see it.
"""
LAUNCH_SRUN = """\
# Ended with all its ranks where one fails.
srun --mpi={kind} --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK"{bind} \\
    """
LAUNCH_MPIRUN = """\
mpirun -n {ranks} --map-by slot:PE={cores} \\
    """
WAIT = """\
step=$!

# A trap ends `wait` early: then the step still runs.
status=0
while :; do
    heard=no status=0
    wait "$step" || status=$?
    [ "$heard" = yes ] || break
done
"""
REQUEUE = """\
# 75: stopped early with a checkpoint, more to train. After {most} starts somebody should look.
if [ "$status" = 75 ] && [ "$ended" = no ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; then
    echo "job $SLURM_JOB_ID goes on in another start"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
"""
