"""Findings on MPI: the library, its launcher and device memory."""

from .findings import ADVICE, GOOD, STOP, Finding


def library():
    """Name and version of the MPI library, "none" where there is none to load."""
    from ...errors import UserError
    from ...mpi.world import library_name, load_mpi

    try:
        return library_name(load_mpi())
    except UserError:
        return "none"


def judge(comm, problem, gpu, transport):
    """Findings on MPI. Collective.

    comm: of all ranks; problem: why MPI could not be started, else None; gpu: index of the GPU
    of this rank where all ranks have one, else None; transport: setting mpi.transport.
    """
    if problem:
        return [Finding("MPI", STOP, problem)]
    from ...mpi import world

    name = world.library_name(world.load_mpi())
    threads = world.calls_of_threads()
    found = [Finding("MPI", GOOD, f"{name}, {comm.size} rank{'s' * (comm.size > 1)}, as the "
                     "launcher started")]
    if not threads:
        found.append(Finding("MPI", ADVICE, f"{name} allows no calls of several threads: "
                             "transfers overlap less", "use a build with MPI_THREAD_MULTIPLE"))
    return [*found, device_memory(comm, gpu, transport)]


def device_memory(comm, gpu, transport):
    """Whether MPI takes device memory, and how that is known. Collective; gpu,
    transport: as in judge."""
    from ...mpi import probe

    claim = probe.claim()
    if gpu is None:
        return Finding("CUDA-aware", GOOD, f"{claim.text}; not needed, since ranks compute on the "
                       "host")
    reason = probe.try_on_every_node(comm, gpu) if claim.support else claim.text
    if reason and transport == "cuda-aware":
        return Finding("CUDA-aware", STOP, f"no: {reason}, but mpi.transport asks for it",
                       "set mpi.transport=auto")
    if reason:
        return Finding("CUDA-aware", ADVICE, f"no: {reason}; nccl or staged is taken instead",
                       "load a CUDA-aware MPI if nodes are many (UCX with CUDA), or leave "
                       "mpi.transport=auto")
    return Finding("CUDA-aware", GOOD, f"yes: {claim.text}, and a child process sent some")
