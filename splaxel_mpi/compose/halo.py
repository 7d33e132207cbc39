"""Final colours that ranks need of one another's strips: borders for SSIM, or a whole image."""

import numpy as np

from ..backends.host_library import call
from ..scene.camera import TILE
from ..visibility.tiles import SSIM_REACH

# Pixels of a tile that travel: all, or the 10 rows that border on a supervised tile.
PARTS = (
    slice(0, TILE * TILE),
    slice(0, TILE * SSIM_REACH),
    slice(TILE * (TILE - SSIM_REACH), TILE * TILE),
)
PLANES = 3


def borders(needed, supervised, camera, run=None):
    """Tiles that a rank needs, by how much of them: three ascending arrays, one for each of PARTS.

    needed, supervised: (tile_count,) bool. A needed tile between or beside supervised ones, or
    one of them itself, is needed whole. run: (first, behind the last) tile to look at, None: all.
    """
    first, last = (0, camera.tile_count) if run is None else map(int, run)
    tiles, counts = np.empty((len(PARTS), last - first), np.int64), np.empty(len(PARTS), np.int64)
    call("spx_borders", needed, supervised, camera.width, camera.height, first, last, tiles,
         counts)
    return [row[:count] for row, count in zip(tiles, counts.tolist())]


class Halo:
    """Brings every rank the final colours that it needs."""

    def __init__(self, backend, exchange):
        self.backend, self.exchange = backend, exchange

    def gather(self, cameras, starts, demands, images):
        """Complete this rank's strips. Collective; a generator, see mpi.pipeline.

        starts: per view (ranks + 1,), first tile of each rank's run; demands: per view
        visibility.demand.Demand; images: per view (tiles of this rank's run, 3, 256). Returns
        per view (tiles, image): the needed tiles, (n,) ascending int32 on the host, and their
        colours (n, 3, 256), right within 10 pixels of the supervised tiles and zero elsewhere.
        """
        rank, ranks = self.exchange.rank, self.exchange.ranks
        views = list(zip(cameras, starts, demands))
        pieces = {
            (source, to): [
                borders(d.needed[to], d.supervised[to], camera, starts[source : source + 2])
                for camera, starts, d in views
            ]
            for source in range(ranks)
            for to in range(ranks)
            if rank in (source, to) and source != to
        }
        firsts = [view[1][rank] for view in views]
        arrived = yield from self._exchange(pieces, firsts, images)
        return [
            self._complete(view, arrived, pieces, v, images[v]) for v, view in enumerate(views)
        ]

    def _exchange(self, pieces, firsts, images):
        """Colours that arrive: {(source, view, part): (k, 3, pixels)}."""
        rank, ranks = self.exchange.rank, self.exchange.ranks
        blocks, counts = [self.backend.zeros(0)], np.zeros(ranks, np.int64)
        expected = np.zeros(ranks, np.int64)
        for other in range(ranks):
            if other == rank:
                continue
            for v, parts in enumerate(pieces[rank, other]):
                for tiles, part in zip(parts, PARTS):
                    if len(tiles):
                        place = self.backend.to_device(tiles - firsts[v])
                        blocks.append(images[v][place, :, part].reshape(-1))
                        counts[other] += len(blocks[-1])
            expected[other] = sum(map(_size, pieces[other, rank]))
        if ranks == 1:
            return {}
        flat = self.backend.xp.concatenate(blocks)
        pending = self.exchange.start_alltoallv("halo", flat, counts, expected)
        yield
        flat, _ = pending.wait()
        return _unpack(flat, pieces, rank, ranks)

    def _complete(self, view, arrived, pieces, v, image):
        """(needed tiles, their colours) of view v."""
        _, starts, demand = view
        rank, ranks = self.exchange.rank, self.exchange.ranks
        tiles = np.flatnonzero(demand.needed[rank]).astype(np.int32)
        place = np.full(len(demand.needed[rank]), -1, np.int64)
        place[tiles] = np.arange(len(tiles))
        own = np.arange(starts[rank], starts[rank + 1])
        own = own[place[own] >= 0]
        if len(own) == len(tiles) == len(image):
            return tiles, image
        out = self.backend.zeros((len(tiles), PLANES, TILE * TILE))
        to_device = self.backend.to_device
        out[to_device(place[own])] = image[to_device(own - starts[rank])]
        for source in range(ranks):
            if source == rank:
                continue
            for k, (found, part) in enumerate(zip(pieces[source, rank][v], PARTS)):
                if len(found):
                    out[to_device(place[found]), :, part] = arrived[source, v, k]
        return tiles, out


def _pixels(part):
    return part.stop - part.start


def _size(parts):
    """Numbers that the tiles of a piece take."""
    return sum(PLANES * _pixels(part) * len(tiles) for tiles, part in zip(parts, PARTS))


def _unpack(flat, pieces, rank, ranks):
    """Cut the stream that arrived."""
    out, start = {}, 0
    for source in range(ranks):
        if source == rank:
            continue
        for v, parts in enumerate(pieces[source, rank]):
            for k, (tiles, part) in enumerate(zip(parts, PARTS)):
                size = PLANES * _pixels(part) * len(tiles)
                block = flat[start : start + size]
                out[source, v, k] = block.reshape(len(tiles), PLANES, _pixels(part))
                start += size
    return out
