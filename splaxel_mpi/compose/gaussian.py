"""Strategy gaussian: projected Gaussians travel instead of pixels (Grendel, Zhao et al., 2025).

The baseline of paper section 3, and an independent oracle: every tile is drawn whole by one rank,
in global depth order. Gaussians are dealt to ranks at random; those visible in a view go to the
ranks whose strips of the image they touch, and gradients come back the same way. Strips exchange
10 pixels of final colour at their borders for SSIM: drawing the border twice would send every
Gaussian there twice, some 15 % more at 1080 rows and 8 ranks against 3 MB of colours.
"""

from dataclasses import dataclass

import numpy as np

from ..backends.base import OPACITY, SPLAT, SPLAT_GRADIENT, Splats
from .base import CellPart, Composed, Compositor
from .halo import Halo
from .strips import TILE_WORK, Balance, cut, row_instances, rows_of_run, tile_boxes, touched


@dataclass
class Strip(CellPart):
    """This rank's run of tiles of one view: splats of all ranks, in the order of arrival."""

    starts: np.ndarray = None  # (ranks + 1,) int64, first tile of each rank's run
    start: int = 0  # first tile of this rank's
    stop: int = 0  # the one after its last
    work: np.ndarray = None  # (tiles_y,) float64, predicted work of every row of the view
    seconds: float = 0.0  # that drawing it and its gradient took, where measured


@dataclass
class Own:
    """What the backward pass needs of a composed strip."""

    pool: np.ndarray  # (held, 4, 256): partial pixels of the strip
    slots: np.ndarray  # (tiles of the strip, 1) int32, rows of pool or -1
    place: np.ndarray  # (tiles of the strip,) int64 on the host: rows among the composed tiles


class GaussianExchange(Compositor):
    """Sends splats to strips and gradients back; composes strips.

    drop: splats of less opacity do not travel to other ranks (the lossy variant of paper
    section 3.3); measured: strips follow measured times instead of counted instances alone.
    """

    name = "gaussian"

    def __init__(self, backend, exchange, layout, background, drop=0.0, measured=False):
        self.backend, self.exchange, self.layout = backend, exchange, layout
        self.background = np.asarray(background, backend.real)
        self.drop, self.balance = drop, Balance() if measured else None
        self.halo = Halo(backend, exchange)
        self.id_width = 8 // np.dtype(backend.real).itemsize  # reals that hold an int64 id

    def send(self, works, projected):
        """Fill works[v].splats, and parts with this rank's Strip of each view. projected: of
        Backend.project_views. Collective; a generator, see mpi.pipeline. So are the others that
        exchange. Returns the number of splats for other ranks."""
        xp, ranks = self.backend.xp, self.layout.ranks
        unmasked = [None] * len(works)
        routing = self.backend.start_route(projected, self.layout, unmasked, wanted=False)
        yield
        for work, splats in zip(works, routing.take().splats):
            work.splats = splats
        if ranks == 1:
            for work in works:
                starts = np.array([0, work.camera.tile_count])
                work.parts = [Strip(0, 0, len(work.splats), work.splats, starts=starts,
                                    stop=work.camera.tile_count)]
            self.sent = None
            return 0
        boxes = [tile_boxes(work.splats, work.camera, xp) for work in works]
        yield from self._cut(works, boxes)
        self.sent = [self._route(*view) for view in zip(works, boxes)]
        counts = np.array([[len(index) for index in row] for row in self.sent], np.int64).T
        self.counts, self.arrived = counts, (yield from self._exchange_counts(counts))
        records = yield from self._exchange_records(works)
        for v, work in enumerate(works):
            work.parts[0].splats = self._splats(records, v)
        return int(counts.sum() - counts[self.layout.rank].sum())

    def _cut(self, works, boxes):
        """Give every view a Strip without splats yet. Collective."""
        backend, rank, ranks = self.backend, self.layout.rank, self.layout.ranks
        rows = [row_instances(box, work.camera, backend.xp) for box, work in zip(boxes, works)]
        rows = backend.to_host(backend.xp.concatenate(rows)).astype(np.int64)
        pending = self.exchange.start_allgather("strips", rows)
        yield
        rows = pending.wait().sum(axis=0).astype(np.float64)
        ends = np.cumsum([work.camera.tiles[1] for work in works])[:-1]
        for work, instances in zip(works, np.split(rows, ends)):
            predicted = instances + TILE_WORK * work.camera.tiles[0]
            expected = predicted
            if self.balance:
                expected = self.balance.correct(work.camera, predicted)
            starts = cut(expected, work.camera, ranks)
            start, stop = starts[rank : rank + 2].tolist()
            work.parts = [Strip(0, 0, 0, None, starts=starts, start=start, stop=stop,
                                work=predicted)]

    def _route(self, work, boxes):
        """Splats of a view that go to each rank: list over ranks of ascending indices."""
        xp, layout = self.backend.xp, self.layout
        index, rank = touched(boxes, work.parts[0].starts, work.camera, xp)
        if self.drop:
            kept = (rank == layout.rank) | (work.splats.data[index, OPACITY] >= self.drop)
            index, rank = index[kept], rank[kept]
        order = xp.argsort(rank, kind="stable")
        ends = xp.searchsorted(rank[order], xp.arange(1, layout.ranks))
        return np.split(index[order], self.backend.to_host(ends).tolist())

    def _exchange_counts(self, counts):
        """Splats that arrive, (ranks, views) int64, from those that each rank is sent."""
        each = np.full(len(counts), counts.shape[1], np.int64)
        pending = self.exchange.start_alltoallv("gaussians", counts.ravel(), each, each)
        yield
        flat, _ = pending.wait()
        return flat.reshape(counts.shape)

    def _exchange_records(self, works):
        """Send splats and ids, view after view to each rank; (n, 12 + id) reals that arrived."""
        width = SPLAT + self.id_width
        records = self.backend.xp.empty((int(self.counts.sum()), width), self.backend.real)
        start = 0
        for rank in range(self.layout.ranks):
            for work, row in zip(works, self.sent):
                index = row[rank]
                block = records[start : start + len(index)]
                block[:, :SPLAT] = work.splats.data[index]
                block[:, SPLAT:] = work.splats.ids[index, None].view(self.backend.real)
                start += len(index)
        pending = self.exchange.start_alltoallv(
            "gaussians", records.ravel(), self.counts.sum(1) * width, self.arrived.sum(1) * width
        )
        yield
        flat, _ = pending.wait()
        return flat.reshape(-1, width)

    def _segments(self, v):
        """(rows among all that arrived, rows among those of view v) for each rank, as slices."""
        ends = np.cumsum(self.arrived.ravel()).reshape(self.arrived.shape)
        own = 0
        for rank, count in enumerate(self.arrived[:, v].tolist()):
            end = int(ends[rank, v])
            yield slice(end - count, end), slice(own, own + count)
            own += count

    def _splats(self, records, v):
        """What arrived of one view."""
        xp, count = self.backend.xp, int(self.arrived[:, v].sum())
        data = xp.empty((count, SPLAT), self.backend.real)
        ids = xp.empty((count, self.id_width), self.backend.real)
        for source, own in self._segments(v):
            data[own], ids[own] = records[source, :SPLAT], records[source, SPLAT:]
        return Splats(xp.full(count, -1, np.int32), data, ids.view(np.int64).ravel())

    def give_back(self, works, gradients, width=SPLAT_GRADIENT):
        """Bring splat gradients to the owners, added in the order of ranks. Collective.

        gradients[v][0]: (splats of the strip, width). Fills works[v].gradient.
        """
        if self.sent is None:
            for work, (gradient,) in zip(works, gradients):
                work.gradient = gradient
            return
        back = self.backend.xp.empty((int(self.arrived.sum()), width), self.backend.real)
        for v, (gradient,) in enumerate(gradients):
            for source, own in self._segments(v):
                back[source] = gradient[own]
        pending = self.exchange.start_alltoallv(
            "gaussians back", back.ravel(), self.arrived.sum(1) * width, self.counts.sum(1) * width
        )
        yield
        flat, _ = pending.wait()
        returned, start = flat.reshape(-1, width), 0
        for work in works:
            work.gradient = self.backend.zeros((len(work.splats), width))
        for rank in range(self.layout.ranks):
            for work, row in zip(works, self.sent):
                # a splat goes to a rank once, so a plain add is right
                work.gradient[row[rank]] += returned[start : start + len(row[rank])]
                start += len(row[rank])
        if self.balance:
            yield from self._remember(works)

    def _remember(self, works):
        """Tell the balance what the rows of each view took on all ranks. Collective."""
        rows = [
            strip.seconds * rows_of_run(strip.start, strip.stop, strip.work, work.camera)
            for work in works
            for strip in work.parts
        ]
        pending = self.exchange.start_allgather("strips", np.concatenate(rows))
        yield
        seconds = pending.wait().sum(axis=0)
        ends = np.cumsum([len(row) for row in rows])[:-1]
        for work, row in zip(works, np.split(seconds, ends)):
            self.balance.visit(work.camera, work.parts[0].work, row)

    def compose(self, works, rules):
        """See Compositor.compose: strips with the background, and what others need of them."""
        rank, cameras = self.layout.rank, [work.camera for work in works]
        starts = [work.parts[0].starts for work in works]
        demands = [rule(_held(*view), view[1]) for rule, *view in zip(rules, starts, cameras)]
        images, states = zip(*map(self._own, works))
        complete = yield from self.halo.gather(cameras, starts, demands, images)
        composed = []
        for camera, demand, (tiles, image), state, runs in zip(
            cameras, demands, complete, states, starts
        ):
            state.place = np.searchsorted(tiles, np.arange(*runs[rank : rank + 2]))
            supervised = demand.supervised[rank]
            counted = supervised & (demand.counted == rank)
            composed.append(Composed(camera, tiles, image, supervised, counted, state))
        return composed

    def _own(self, work):
        """(image (tiles of the strip, 3, 256), Own) of this rank's strip."""
        strip = work.parts[0]
        slots = np.full((strip.stop - strip.start, 1), -1, np.int32)
        slots[strip.held - strip.start, 0] = np.arange(len(strip.held))
        slots, pool = self.backend.to_device(slots), strip.partial.pixels
        image, _ = self.backend.compose(pool, slots, self.background)
        return image, Own(pool, slots, None)

    def backward(self, works, composed, gradient):
        """See Compositor.backward."""
        out, start = [], 0
        for view in composed:
            own, of_view = view.state, gradient[start : start + len(view.tiles)]
            start += len(view.tiles)
            rows = self.backend.compose_backward(
                own.pool, own.slots, self.background,
                of_view[self.backend.to_device(own.place)], own.slots, len(own.pool),
            )
            out.append([rows])
        yield from ()  # nothing is exchanged
        return out


def _held(starts, camera):
    """Tiles of each rank's run, (ranks, tile_count) bool."""
    tiles = np.arange(camera.tile_count)
    return (tiles >= starts[:-1, None]) & (tiles < starts[1:, None])
