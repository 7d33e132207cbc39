"""How much memory of a node the image cache may take."""

import os
from pathlib import Path

from splaxel_mpi.mpi.shared import free_shared_bytes

SHARE = 4  # a quarter: Gaussians, moments and exchange buffers of all ranks need the rest
SHARED_PART = 0.8  # of the free shared memory; MPI's own transports live there too
MEGABYTE = 1 << 20
CGROUP_FILES = (("", "memory.max"), ("memory", "memory.limit_in_bytes"))  # versions 2 and 1


def default_budget(shared=True, environ=os.environ, root="/"):
    """Bytes for the image cache of this node.

    A quarter of memory_limit; with shared, at most 80 % of the free shared memory.
    """
    budget = memory_limit(environ, root) // SHARE
    free = free_shared_bytes() if shared else None
    return budget if free is None else min(budget, int(SHARED_PART * free))


def memory_limit(environ=os.environ, root="/"):
    """Bytes of memory that this job may use on its node.

    The smallest of: physical memory, the memory limits of the process's cgroups (version 1 or
    2, all levels), and SLURM's SLURM_MEM_PER_NODE or SLURM_MEM_PER_CPU (MiB) times
    SLURM_CPUS_ON_NODE. root and environ are where to look.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += _cgroup_limits(Path(root))
    limits += _slurm_limits(environ)
    return min(limits)


def _cgroup_limits(root):
    """Every memory limit on the way from the process's cgroups to their root, bytes."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller, name in CGROUP_FILES:
            if controller in controllers.split(","):
                mount = root / "sys/fs/cgroup" / controller
                limits += _limits_up(mount, group.strip("/"), name)
    return limits


def _limits_up(mount, group, name):
    folder, limits = mount / group, []
    while True:
        number = _number(folder / name)
        if number:
            limits.append(number)
        if folder == mount:
            return limits
        folder = folder.parent


def _number(file):
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max" is no limit


def _slurm_limits(environ):
    """SLURM gives MiB; 0 stands for all memory of the node."""
    values = {}
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"):
        text = environ.get(name, "")
        values[name] = int(text) if text.isdigit() else 0
    per_cpu = values["SLURM_MEM_PER_CPU"] * values["SLURM_CPUS_ON_NODE"]
    return [count * MEGABYTE for count in (values["SLURM_MEM_PER_NODE"], per_cpu) if count]
