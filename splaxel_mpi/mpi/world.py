"""The world of ranks: how it starts, how ranks agree, and an end that leaves no rank behind."""

import atexit
import faulthandler
import os
import sys
import threading
import time
import traceback

from ..errors import UserError
from . import launcher

# Seconds for the other ranks to meet the same mistake before a rank speaks for itself. Ranks
# take turns, so that the first to speak has ended the job before the next would repeat it.
PATIENCE = 1.0
TURN = 0.25
LAST_TURN = 8

# a communicator for nothing but the end: its traffic cannot meet that of a rank at work
_ending = None


def load_mpi():
    """The module mpi4py.MPI, imported without starting MPI; raises UserError without one."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"no MPI: {' '.join(str(error).split())}; training needs an MPI library and mpi4py "
            "('module load' an MPI, or install one, then pip install mpi4py)"
        ) from None
    return MPI


def init():
    """Start MPI, if it is not, and return COMM_WORLD.

    From here on an uncaught exception of any rank, in any of its threads, ends the whole job;
    a crash below Python (a segmentation fault) shows where it was; a clean exit finalizes.
    Threads but for the main one may call MPI only where calls_of_threads allows it. Raises
    UserError without MPI or when the launcher started more processes than the library sees.
    """
    global _ending
    MPI = load_mpi()
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)  # see pending.Carrier; it may give less
        atexit.register(_finalize)
    comm = MPI.COMM_WORLD
    problem = launcher.mismatch(comm.size, library_name(MPI))
    if problem:
        raise UserError(problem)
    if _ending is None:
        _ending = comm.Dup()
    if sys.__stderr__ is not None and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)  # after MPI, which puts up handlers of its own
    sys.excepthook = _excepthook
    threading.excepthook = _thread_excepthook
    return comm


def node_comm(comm):
    """Communicator of the ranks of comm on this node, in their order; free it after use."""
    return comm.Split_type(load_mpi().COMM_TYPE_SHARED, comm.rank)


def on_one_node(comm):
    """Whether all ranks of comm share a node. Collective."""
    node = node_comm(comm)
    found = node.size == comm.size
    node.Free()
    return found


def calls_of_threads():
    """Whether MPI, once started, allows calls of several threads at a time."""
    MPI = load_mpi()
    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def cores_per_rank(comm):
    """Threads for each rank of this node: the cores that its ranks may use, shared out (>= 1).

    A launcher may bind every rank to cores of its own or leave them all the node: both give
    the union of what the ranks may use.
    """
    node = node_comm(comm)
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    count = max(1, len(cores) // node.size)
    node.Free()
    return count


def on_root(comm, function, *arguments):
    """function(*arguments), called on rank 0 alone; its result on every rank.

    A UserError there is raised on all ranks, so that they end with one line.
    """
    result = mistake = None
    if comm.rank == 0:
        try:
            result = function(*arguments)
        except UserError as error:
            mistake = str(error)
    result, mistake = comm.bcast((result, mistake))
    if mistake is not None:
        raise UserError(mistake)
    return result


def first_of(comm, text):
    """Text of the lowest rank that has one, None where none has. Collective."""
    return next(filter(None, comm.allgather(text)), None)


def fail(message, status=2):
    """End every rank with this exit status after one line on stderr; does not return.

    Where all ranks fail within a short time, rank 0 prints each different message once.
    Otherwise a rank prints its own: the others may wait for it in a collective for ever.
    """
    line = "splaxel-mpi: error: " + " ".join(message.split())
    if _ending is None or _ending.size == 1:
        if launcher.rank() == 0:
            show(line)
        else:
            # a launcher ends the job at the first bad exit: rank 0 must have spoken by then
            time.sleep(2 * PATIENCE)
        sys.exit(status)
    if not _all_arrive(PATIENCE + TURN * min(_ending.rank, LAST_TURN)):
        show(f"{line} [rank {_ending.rank}]")
        abort(status)
    lines = _ending.gather(line)
    if _ending.rank == 0:
        for one in dict.fromkeys(lines):
            where = "" if lines.count(one) == _ending.size else f" [rank {lines.index(one)}]"
            show(one + where)
        abort(status)
    time.sleep(10 * PATIENCE)  # rank 0 ends the job long before
    abort(status)


def _all_arrive(seconds):
    """Whether every rank comes here before the time is over."""
    request, end = _ending.Ibarrier(), time.monotonic() + seconds
    while not request.Test():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def abort(status):
    """End all ranks now with this exit status; does not return. A single rank just exits."""
    _flush()
    MPI = load_mpi()
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.size == 1:
        if threading.current_thread() is threading.main_thread():
            sys.exit(status)
        os._exit(status)
    MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def leave(status):
    """End this rank with all others, after clean work, with an exit status that is not 0.

    Launchers end a job at the first process that exits with another status than 0, and then
    report the others' death: rank 0 alone has the status, and exits last. Collective; does not
    return.
    """
    _flush()
    MPI = load_mpi()
    rank, ranks = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if not MPI.Is_finalized():
        MPI.Finalize()
    if rank:
        sys.exit(0)
    if ranks > 1:
        time.sleep(PATIENCE)
    sys.exit(status)


def _excepthook(kind, value, trace):
    if issubclass(kind, UserError):
        fail(str(value))
    if issubclass(kind, KeyboardInterrupt):
        abort(130)
    _report(kind, value, trace, "")
    abort(1)


def _thread_excepthook(arguments):
    if arguments.exc_type is SystemExit:
        return
    name = f" thread {arguments.thread.name}" if arguments.thread else ""
    _report(arguments.exc_type, arguments.exc_value, arguments.exc_traceback, name)
    abort(1)


def _report(kind, value, trace, thread):
    """Traceback on stderr, every line with its rank: those of several ranks interleave."""
    comm = load_mpi().COMM_WORLD
    tag = f"[rank {comm.rank}{thread}] " if comm.size > 1 or thread else ""
    lines = "".join(traceback.format_exception(kind, value, trace)).splitlines()
    show("\n".join(tag + line for line in lines))


def tell(text):
    """A line on stderr, with the rank where there are several. Any thread may call it."""
    rank = launcher.rank()
    several = rank or (_ending is not None and _ending.size > 1)
    show(f"{text} [rank {rank}]" if several else text)


def show(text):
    """Lines on stderr in one write, so that those of several ranks do not mix. Any thread."""
    try:
        sys.stderr.write(text + "\n")
    except (OSError, ValueError):
        pass  # a closed stderr must not keep the job alive
    _flush()


def _flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass


def _finalize():
    MPI = load_mpi()
    if not MPI.Is_finalized():
        MPI.Finalize()


def library_name(MPI):
    """Vendor and version of the MPI library, such as "Open MPI 4.1.6"."""
    name, version = MPI.get_vendor()
    return f"{name} {'.'.join(map(str, version))}"
