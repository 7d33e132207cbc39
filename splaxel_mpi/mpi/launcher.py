"""What the launcher's environment says, independent of any MPI library."""

import os

# the size of the world, as set for every process by the launcher
SIZES = {
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "PMI_SIZE": "mpirun of MPICH or Intel MPI (or srun --mpi=pmi2)",
    "MV2_COMM_WORLD_SIZE": "mpirun of MVAPICH",
}
# a part of the world at least: the ranks of this node
LOCAL_SIZES = {"MPI_LOCALNRANKS": "mpirun of MPICH or Intel MPI"}
# place of a process among those of its node
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK")
RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PMIX_RANK")


def rank(environ=os.environ):
    """Rank that the launcher gave this process, 0 without a launcher. Known before MPI starts
    and right even where MPI is not; for deciding who speaks, nothing else."""
    names = RANKS + (("SLURM_PROCID",) if "SLURM_STEP_ID" in environ else ())
    return next((n for n in (_number(environ, name) for name in names) if n is not None), 0)


def local_rank(environ=os.environ):
    """Place among the processes of this node (from 0) that the launcher gave, None where it
    does not say. SLURM's counts under srun alone: a batch shell has it too."""
    names = LOCAL_RANKS + (("SLURM_LOCALID",) if "SLURM_STEP_ID" in environ else ())
    return next((n for n in (_number(environ, name) for name in names) if n is not None), None)


def mismatch(size, library, environ=os.environ):
    """One line that says why a world of this size is not what the launcher started, or None.

    With the mpirun of one MPI and the library of another, or with srun without a process
    manager, N processes each become a world of one and would train N times the same scene.
    size: ranks of COMM_WORLD; library: name of the MPI library.
    """
    sizes = {name: _number(environ, name) for name in SIZES}
    sizes = {name: count for name, count in sizes.items() if count}
    # a process may have inherited variables of an outer launcher: one that fits is enough
    if size in sizes.values():
        return None
    for name, count in sizes.items():
        if count > 1:
            return _text(SIZES[name], name, count, size, library)
    return _hidden(library, environ) if size == 1 and not sizes else None


def _hidden(library, environ):
    """The same for launchers that tell less than the size of the world."""
    for name, launcher in LOCAL_SIZES.items():
        if (_number(environ, name) or 1) > 1:
            return _text(launcher, name, _number(environ, name), 1, library)
    # SLURM_NTASKS alone proves nothing: it is set in the batch shell too, where one process
    # is right. Steps of srun have an id.
    if _number(environ, "SLURM_STEP_ID") is not None:
        for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
            count = _number(environ, name)
            if count is not None:
                return _text("srun", name, count, 1, library) if count > 1 else None
    if (_number(environ, "PMIX_RANK") or 0) > 0:
        return _text("the launcher", "PMIX_RANK", _number(environ, "PMIX_RANK") + 1, 1, library)
    return None


def _text(launcher, name, count, size, library):
    shown = count - 1 if name.endswith("RANK") else count
    least = "at least " if name in LOCAL_SIZES or name.endswith("RANK") else ""
    return (
        f"{launcher} started {least}{count} processes ({name}={shown}) but this Python's MPI, "
        f"{library}, sees {size}: start with the mpirun that belongs to {library}, under SLURM "
        "with srun --mpi=pmix (or --mpi=pmi2), or install mpi4py for the launcher's MPI"
    )


def _number(environ, name):
    text = environ.get(name, "")
    return int(text) if text.isdecimal() else None
