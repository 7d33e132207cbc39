"""Streams: tiles and parts of tiles of all views of a chunk, one flat array for each rank."""

import numpy as np

from ..backends.host_library import call
from ..backends.pieces import stream_items


def move(backend, exchange, kind, source, sent, out, got, half=False, scale=1.0):
    """Send pieces of source (s, planes, 256) along a route and put what comes into out.

    sent, got: tables.Route; half, scale: as Backend.pack has them; what comes is divided by scale.
    Collective; a generator, see mpi.pipeline. So are those that use it.
    """
    items, _ = stream_items(backend.real, source.shape[1], half)
    flat = backend.pack(source, sent.table, int(sent.pixels.sum()), half, scale)
    pending = exchange.start_alltoallv(kind, flat, items * sent.pixels, items * got.pixels)
    yield
    flat, _ = pending.wait()
    backend.unpack(flat, got.table, out, half, 1 / scale)


class Streams:
    """Partial tiles of a chunk: this rank's own and those that it needs of others, as rows of the
    pool of its tables."""

    def __init__(self, backend, exchange, works, tables, half):
        """works: list of ViewWork; tables: tables.Tables; half: colour travels as float16."""
        self.backend, self.exchange = backend, exchange
        self.works, self.tables, self.half = works, tables, half

    def collect(self):
        """The pool (rows, 4, 256): partial pixels of this rank and those that it needs.
        Collective."""
        xp, works, own = self.backend.xp, self.works, self.tables.own
        pool = xp.empty((self.tables.rows, 4, 256), self.backend.real)
        parts = [part for work in works for part in work.parts]
        if parts:
            xp.concatenate([part.partial.pixels for part in parts], out=pool[:own])
        if self.half:
            # all ranks must compose the same values, so the sender takes its rounded ones too
            pool[:own, :3] = pool[:own, :3].astype(np.float16)
        if self.exchange.ranks == 1:
            return pool
        if any(work.camera.width % 16 or work.camera.height % 16 for work in works):
            pool[own:, :3], pool[own:, 3] = 0, 1  # outside the image
        yield from self._move("streams", pool, self.tables.sent, self.tables.got, 1.0)
        return pool

    def fetch_halo(self, image):
        """Put strips of final colour of other ranks' tiles into the image (n, 3, 256) of the
        chunk. They travel as they are: an image must not differ between its ranks. Collective."""
        sent, got = self.tables.halo_sent, self.tables.halo_got
        return move(self.backend, self.exchange, "halo", image, sent, image, got)

    def give_back(self, rows):
        """Send gradients of the tiles that arrived to where they came from. Collective.

        rows: (pool rows, 4, 256) dL/d(C_m, T_m) of the pool, zero in own rows whose tiles are
        composed elsewhere; these are filled. In float16 colour gradients are multiplied by the
        number of values of a view, whose mean the loss is: without, they would be too small.
        """
        if self.exchange.ranks > 1:
            values = max(3 * work.camera.width * work.camera.height for work in self.works)
            scale = 2.0 ** (values.bit_length() - 1)
            yield from self._move("streams back", rows, self.tables.got, self.tables.sent, scale)

    def give_back_flags(self, flags):
        """Send a bit a tile the same way. flags: (pool rows,) bool on the host; own rows whose
        tiles are composed elsewhere are filled. Collective."""
        ranks, sent, got = self.exchange.ranks, self.tables.sent, self.tables.got
        counts, arriving = (got.pieces + 7) // 8, (sent.pieces + 7) // 8
        bits = np.empty(int(counts.sum()), np.uint8)
        call("spx_pack_flags", flags, got.host, got.pieces, ranks, bits)
        pending = self.exchange.start_alltoallv("bitmaps", bits, counts, arriving)
        yield
        bits, _ = pending.wait()
        call("spx_unpack_flags", bits, sent.host, sent.pieces, ranks, flags)

    def _move(self, kind, tiles, sent, got, scale):
        return move(self.backend, self.exchange, kind, tiles, sent, tiles, got, self.half,
                    scale if self.half else 1.0)
