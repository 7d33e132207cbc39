"""Checkpoints that are written while training goes on.

What all ranks must agree on happens before: the layout of the file. Then a thread of each rank
writes a copy of its rows, each at its place, without a word to another rank, for MPI may allow no
calls of threads. The main thread sends the checksums to rank 0 by a non-blocking collective on a
communicator of its own, and looks after it between steps.
"""

import contextlib
import logging
import os
import threading
import time

import numpy as np

from splaxel_mpi.checkpoint import schema
from splaxel_mpi.checkpoint.offset import find_places, write_rows
from splaxel_mpi.checkpoint.save import finish, lay_out
from splaxel_mpi.files import cannot_write, partial_name, raise_together, write_on_root

log = logging.getLogger(__name__)

# Copies of data sets start at multiples of a cache line.
ALIGNMENT = 64
# The memory of copies grows by this factor at least, since scenes grow between checkpoints.
GROWTH = 1.2


class Background:
    """Writes one checkpoint at a time. comm: communicator of all ranks."""

    def __init__(self, comm):
        self.comm, self.task = comm.Dup(), None
        self.copies = np.zeros(0, np.uint8)

    def start(self, path, state, after):
        """Begin a checkpoint of all ranks' states. Collective; waits for the one before.

        path, state: as for save.save. after: function without arguments that a thread of rank 0
        calls when the file has its name. Raises UserError on all ranks where the file cannot be
        laid out, or the one before could not be written.
        """
        self.finish()
        began, comm = time.perf_counter(), self.comm
        path, temporary = os.fspath(path), partial_name(path)
        slabs = schema.slabs_of(state, comm)
        facts = schema.facts_of(state, slabs, comm)
        write_on_root(comm, path, lambda: lay_out(temporary, facts, slabs))
        places = find_places(temporary, slabs, comm)
        slabs = self.copy(slabs)
        self.task = Task(path, temporary, slabs, places, comm, after)
        log.debug("%s: training waited %.3f s", path, time.perf_counter() - began)

    def copy(self, slabs):
        """Slabs with copies of the rows, in memory that is kept: new memory would take the time
        of several copies to come by."""
        ends = np.cumsum([0] + [-(-slab.rows.nbytes // ALIGNMENT) * ALIGNMENT for slab in slabs])
        if len(self.copies) < ends[-1]:
            self.copies = None  # goes before more is taken
            self.copies = np.empty(int(ends[-1] * GROWTH), np.uint8)
        out = []
        for slab, begin in zip(slabs, ends.tolist()):
            rows = self.copies[begin : begin + slab.rows.nbytes].view(slab.rows.dtype)
            rows = rows.reshape(slab.rows.shape)
            rows[...] = slab.rows
            out.append(slab._replace(rows=rows))
        return out

    def poll(self):
        """Do what can be done without waiting. Local; call it often, on the main thread."""
        if self.task:
            self.task.poll()

    def finish(self):
        """Wait for what is under way. Collective. Raises UserError, the same on all ranks, where
        it could not be written."""
        if self.task:
            task, self.task = self.task, None
            task.wait()
            raise_together(self.comm, task.error)

    def close(self):
        """``finish``, and give up the communicator. Collective."""
        self.finish()
        self.comm.Free()


class Task:
    """One checkpoint under way, as one rank sees it. error: what went wrong here, or None."""

    def __init__(self, path, temporary, slabs, places, comm, after):
        self.path, self.temporary, self.comm, self.after = path, temporary, comm, after
        self.paths = [slab.path for slab in slabs]
        self.offsets = [slab.offsets for slab in slabs]
        self.error = self.request = self.last = self.found = None
        self.began = time.perf_counter()
        self.mine = np.ones(self.length(comm.rank), np.uint32)  # 1: failed
        self.thread = start_thread(lambda: self.write(slabs, places))

    def length(self, rank):
        """Numbers that a rank sends: whether it failed, and its checksums."""
        return 1 + sum(self.blocks(rank))

    def blocks(self, rank):
        """Checksum blocks of a rank in each data set."""
        rows = [int(offsets[rank + 1] - offsets[rank]) for offsets in self.offsets]
        return [-(-count // schema.BLOCK_ROWS) for count in rows]

    def write(self, slabs, places):
        """The thread of each rank: rows into the file, checksums into ``mine``."""
        try:
            self.error = write_rows(self.temporary, slabs, places, self.comm.rank)
            sums = schema.all_checksums(slabs)
            self.mine[1:] = [value for path in self.paths for value in sums[path]]
            self.mine[0] = self.error is not None
        except MemoryError as failure:
            self.error = cannot_write(self.path, failure)

    def poll(self):
        """Hand on what has come to its end. Main thread, local."""
        if self.thread.is_alive():
            return
        if self.request is None:
            self.send()
        if self.last is None and self.request.Test():
            self.complete()

    def wait(self):
        """Wait for the end. Main thread; all ranks call it."""
        self.thread.join()
        if self.request is None:
            self.send()
        self.request.Wait()
        if self.last is None:
            self.complete()
        self.last.join()

    def send(self):
        """Begin to send what this rank found to rank 0."""
        receive = None
        if self.comm.rank == 0:
            counts = [self.length(rank) for rank in range(self.comm.size)]
            self.found = np.empty(sum(counts), np.uint32)
            receive = [self.found, counts]
        self.request = self.comm.Igatherv(self.mine, receive)

    def complete(self):
        """All have sent: rank 0 gives the file its name, on a thread; the others are done."""
        self.last = start_thread(self.seal if self.comm.rank == 0 else lambda: None)

    def seal(self):
        """The last thread of rank 0."""
        try:
            ends = np.cumsum([self.length(rank) for rank in range(self.comm.size)])
            parts = np.split(self.found, ends[:-1])
            if any(part[0] for part in parts):
                log.warning("%s: could not be written; training goes on", self.path)
                return
            sums = [self.sums(rank, part[1:]) for rank, part in enumerate(parts)]
            finish(self.temporary, self.path, sums)
            self.after()
            seconds = time.perf_counter() - self.began
            log.debug("%s: written beside training in %.3f s", self.path, seconds)
        except (OSError, RuntimeError) as failure:
            self.error = cannot_write(self.path, failure)
            log.warning("%s; training goes on", self.error)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)

    def sums(self, rank, values):
        """Path -> checksums of a rank."""
        parts = np.split(values, np.cumsum(self.blocks(rank))[:-1])
        return {path: part.tolist() for path, part in zip(self.paths, parts)}


def start_thread(work):
    """A thread that does not keep a process alive which ends for another reason."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
