"""The images of one node, decoded once, kept under a byte budget."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Optional

from splaxel_mpi.data.arena import Arena
from splaxel_mpi.data.budget import default_budget
from splaxel_mpi.data.pixels import decode
from splaxel_mpi.data.workers import Workers
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi.shared import SharedBuffer

__all__ = ["ImageCache", "decode", "default_budget"]


@dataclass
class _Entry:
    """A place in the buffer. Ranks agree on all but ``future``, which its owner holds."""

    start: int
    owner: int
    settled: bool = False  # known by all ranks to be decoded
    future: Optional[object] = None


class ImageCache:
    """Decoded views of a data set in memory that the ranks of a node share.

    views: Dataset.views. node_comm: communicator of the node's ranks, or None. budget_bytes: for
    the whole node; pixels never take more (each thread that decodes needs one image at its
    stored size besides). threads: decoding threads of this rank; they make no MPI calls.

    Every rank sees the same calls, so every rank simulates the same least-recently-used order
    and the same placement; only the end of decoding is synchronised. ``decoded`` counts images
    that this rank decoded; ``capacity`` is the bytes that pixels may take on the node.
    """

    def __init__(self, views, node_comm, budget_bytes, threads=1):
        self.views = views
        self.sizes = [3 * view.camera.width * view.camera.height for view in views]
        taken = [Arena.rounded(size) for size in self.sizes]
        self._check_largest(taken, budget_bytes)
        capacity = self.capacity = min(budget_bytes, sum(taken))
        self.rank, self.ranks = (node_comm.rank, node_comm.size) if node_comm else (0, 1)
        self.buffer = SharedBuffer(node_comm, capacity)
        self.arena = Arena(capacity)
        self.entries = OrderedDict()  # view -> _Entry, least recently used first
        self.turn = 0  # who decodes next
        self.workers = Workers(threads)
        self.decoded = 0

    def fetch(self, view_indices, upcoming=()):
        """Pixels of views: {view index: (height, width, 3) uint8, read-only}.

        Collective over the node, with the same arguments on every rank. ``upcoming``: views of the
        next calls, soonest first; they are decoded in the background as far as the budget
        reaches. Arrays stay valid until the next fetch. Raises the UserError of decode on all
        ranks, also when decoding failed in the background, and UserError when the views
        together exceed the budget. Any other exception is raised as it is where it happened,
        and told to the other ranks as a UserError.
        """
        wanted = list(dict.fromkeys(view_indices))
        ahead = [view for view in dict.fromkeys(upcoming) if view not in set(wanted)]
        self._check_fits(wanted)
        fresh, dropped = self._place(wanted, ahead)
        if dropped:
            # nobody reads the arrays of the last call, nobody still writes to a dropped place
            for entry in dropped:
                _stop(entry)
            self.buffer.sync()
        for view in fresh:
            self._start(view, urgent=view in wanted)
        self._settle(wanted)
        return {view: self._pixels(view) for view in wanted}

    def close(self):
        """Stops the threads and frees the memory; collective."""
        self.workers.close()
        self.entries.clear()
        self.buffer.free()

    def _check_largest(self, taken, budget_bytes):
        largest = max(range(len(taken)), key=taken.__getitem__)
        if taken[largest] > budget_bytes:
            raise UserError(
                f"{self.views[largest].image_path}: takes {taken[largest]} bytes decoded, more "
                f"than data.cache = {budget_bytes}; raise data.cache or data.scale"
            )

    def _check_fits(self, wanted):
        needed = sum(Arena.rounded(self.sizes[view]) for view in wanted)
        if needed > self.arena.size:
            raise UserError(
                f"a step of {len(wanted)} views takes {needed} bytes of images, more than "
                f"data.cache = {self.arena.size}; raise data.cache or train on fewer views a step"
            )

    def _place(self, wanted, ahead):
        """Gives every wanted view a place, then those ahead as room allows. Returns the views
        to decode, the most urgent last of those wanted (each goes to the front of the queue) and
        those ahead after them, and the entries that were dropped."""
        dropped = []
        missing = [view for view in wanted if view not in self.entries]
        for view in missing:
            if not self._make_room(view, wanted, ahead, dropped):
                # wanted views split the free space: lay them out again from an empty buffer
                dropped += [self._drop(other) for other in list(self.entries)]
                missing = wanted
                for other in wanted:
                    self._reserve(other)
                break
        for view in wanted:
            self.entries.move_to_end(view)
        fresh = []
        for view in ahead:
            if view not in self.entries:
                if not self._make_room(view, wanted + ahead, [], dropped):
                    break
                fresh.append(view)
        return missing[::-1] + fresh, dropped

    def _make_room(self, view, kept, expendable, dropped):
        """Reserves a place, dropping views: the least recently used that is neither kept nor
        expendable, then the expendable from their end. False when that is not enough."""
        while not self._reserve(view):
            victim = self._victim(kept, expendable)
            if victim is None:
                return False
            dropped.append(self._drop(victim))
        return True

    def _victim(self, kept, expendable):
        spared = {*kept, *expendable}
        for view in self.entries:
            if view not in spared:
                return view
        return next((view for view in reversed(expendable) if view in self.entries), None)

    def _reserve(self, view):
        start = self.arena.take(self.sizes[view])
        if start is None:
            return False
        self.entries[view] = _Entry(start, self.turn)
        self.turn = (self.turn + 1) % self.ranks
        return True

    def _drop(self, view):
        entry = self.entries.pop(view)
        self.arena.give(entry.start, self.sizes[view])
        return entry

    def _start(self, view, urgent):
        entry = self.entries[view]
        if entry.owner == self.rank:
            place = self._pixels(view, writeable=True)
            entry.future = self.workers.submit(self._decode, view, place, urgent=urgent)

    def _decode(self, view, place):
        place[...] = decode(self.views[view])
        self.decoded += 1

    def _settle(self, wanted):
        """Waits until all wanted views are decoded by their owners; agrees on failures."""
        open_views = [view for view in wanted if not self.entries[view].settled]
        if not open_views:
            return
        failures = [_failure(self.entries[view]) for view in open_views]
        mine = next((failure for failure in failures if failure), None)
        text = self.buffer.first_of(mine and _describe(mine))
        if text is not None:
            for view in open_views:
                self._drop(view)
            if mine is not None and not isinstance(mine, UserError):
                raise mine  # a fault of the program: its traceback ends the job
            raise UserError(text) from mine
        for view in open_views:
            self.entries[view].settled = True
            self.entries[view].future = None

    def _pixels(self, view, writeable=False):
        camera, start = self.views[view].camera, self.entries[view].start
        flat = self.buffer.array[start : start + self.sizes[view]]
        pixels = flat.reshape(camera.height, camera.width, 3)
        pixels.flags.writeable = writeable
        return pixels


def _stop(entry):
    """Cancels a decode, or waits for it when it runs; its result or error is not wanted."""
    if entry.future is not None and not entry.future.cancel():
        entry.future.exception()


def _failure(entry):
    return entry.future.exception() if entry.future is not None else None


def _describe(error):
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
