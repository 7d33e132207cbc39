"""What a run of steps leaves on the device until the host asks: losses, counts, and whether a
view did not fit its arrays."""

from dataclasses import dataclass

import numpy as np

from .cuda_launch import run
from .cuda_module import kernel

THREADS = 1024  # of end_view in step.cu
SEEN_THREADS, SEEN_BLOCKS = 256, 1024
# words of step.cu
STOP, DONE, VISIBLE, NEED_SPLATS, NEED_ROWS, NEED_INSTANCES, WORDS = range(7)
# Views between two collections, unless a batch has more: their losses take 24 bytes each.
VIEWS = 4096
LEAST = 1 << 16  # rows for which no memory is worth a repeated view
HEADROOM = 1.25  # a view may need a quarter more than the largest before it
FADING = 0.9  # what a collection without large views leaves of the need


@dataclass(frozen=True)
class Room:
    """Rows of the arrays of a view whose counts stay on the device."""

    tally: object  # Tally, stopped when they are too few
    splats: int
    rows: int  # rows of tiles over all splats
    instances: int


class Tally:
    """Counts views and their losses on the device, and stops it after a view that did not fit.

    Once stopped, kernels that change parameters, statistics or the tally itself do nothing, so
    that what was skipped can be done again in order. alarm: (2,), whether a view did not fit, and
    whether a view found flags of broken numbers raised; words of the host's memory that the
    device writes: to look at them costs no waiting.
    """

    def __init__(self):
        import cupy
        import cupyx

        self.words = cupy.zeros(WORDS, np.uint64)
        self.reserve(VIEWS)
        self.alarm = cupyx.zeros_pinned(2, np.uint64)
        self.alarm_places = [np.uint64(word.ctypes.data) for word in np.split(self.alarm, 2)]
        self.needs = np.zeros(3)  # splats, rows of tiles, instances of the largest view
        self.stop_word = self.words[STOP:]

    def reserve(self, views):
        """Have room for the losses of so many views between two collections. Between these alone:
        kernels that were given the old losses must not run any more."""
        import cupy

        self.views = views
        self.losses = cupy.zeros((views, 3), np.float64)

    def room(self, gaussians):
        """Room for the next view of so many Gaussians."""
        sizes = np.maximum(HEADROOM * self.needs, LEAST).astype(np.int64).tolist()
        return Room(self, max(1, min(gaussians, sizes[0])), *sizes[1:])

    def note(self, splats, rows, instances):
        """A view has needed at least this much."""
        self.needs = np.maximum(self.needs, (splats, rows, instances))

    def scale(self, factor):
        """Expect needs to change by a factor, as the number of Gaussians did."""
        self.needs = self.needs * factor

    def check(self, splats, counters, room):
        """Stop the device if the view does not fit; counters: (8,) of tiles.cu."""
        sizes = (np.int64(size) for size in (room.splats, room.rows, room.instances))
        run(kernel("step.cu", "check_room"), (1,), 1,
            (splats.count, counters, *sizes, self.words, self.alarm_places[0]))

    def end_view(self, splats, sums, scale, broken):
        """Add a view: the sums of its tiles (tile_count, 3) times scale are its losses. broken:
        flags of Backend.adam_groups, or None."""
        run(kernel("step.cu", "end_view"), (1,), THREADS, (
            sums, np.int32(len(sums)), np.float64(scale), np.int64(len(splats)), splats.count,
            self.words, self.losses, broken, np.int32(0 if broken is None else len(broken)),
            self.alarm_places[1]))

    def clear_seen(self, seen):
        """Set seen (n,) uint8 to zero, unless stopped."""
        run(kernel("step.cu", "clear_seen"), (SEEN_BLOCKS,), SEEN_THREADS,
            (seen, np.int64(len(seen)), self.stop_word))

    def resume(self):
        """Let the device go on after an alarm. Waits for it; returns how many views it has done
        since the last collection."""
        words = self.words.get()
        self.note(*words[NEED_SPLATS:].astype(np.float64))
        self.stop_word[:1] = 0
        self.alarm[0] = 0
        return int(words[DONE])

    def collect(self):
        """(losses (views, 3) float64, visible splats) of the views since the last collection.
        Waits for the device, which must not be stopped."""
        words = self.words.get()
        losses = self.losses[: int(words[DONE])].get()
        self.needs = np.maximum(FADING * self.needs, words[NEED_SPLATS:])
        self.words[:] = 0
        self.alarm[1] = 0  # whoever collects looks at the flags, or the next view raises it again
        return losses, int(words[VISIBLE])
