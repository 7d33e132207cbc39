// Held bitmaps and flags of tiles as they travel: a bit a tile (compose/bitmaps.py, streams.py).
#include "host/tile_sets.h"

using namespace spx;

// local: cells of this rank; tiles: what they hold, (view, local cell) after each other, counts
// (views, local) of each; starts: (views,) first byte of each view in a row of `size`.
// bits: (local, size), which begins as zeros.
extern "C" int64_t spx_held_bits(const int32_t* tiles, const int64_t* counts, int64_t views,
                                 int64_t local, const int64_t* starts, int64_t size,
                                 uint8_t* bits) {
    for (int64_t view = 0; view < views; ++view)
        for (int64_t cell = 0; cell < local; ++cell, ++counts)
            for (int64_t k = 0; k < *counts; ++k) {
                const int32_t tile = *tiles++;
                bits[cell * size + starts[view] + tile / 8] |= uint8_t(1 << tile % 8);
            }
    return 0;
}

// bits: of all ranks, (ranks, most, size); row: (cells,) which of their ranks x most rows is
// whose. held: per view (cells, tile_count) bytes, one after another.
extern "C" int64_t spx_held_bytes(const uint8_t* bits, const int64_t* row, int64_t cells,
                                  int64_t views, const int64_t* starts, const int64_t* counts,
                                  int64_t size, uint8_t* held) {
    std::vector<Word> words;
    for (int64_t view = 0; view < views; ++view) {
        words.assign(words_of(counts[view]), 0);
        for (int64_t cell = 0; cell < cells; ++cell, held += counts[view]) {
            std::memcpy(words.data(), bits + row[cell] * size + starts[view],
                        (counts[view] + 7) / 8);
            bytes_of_bits(words.data(), counts[view], held);
        }
    }
    return 0;
}

// sets: (cells, count) bytes; out: (ranks, count), which begins as zeros, what all cells of a
// rank have.
extern "C" int64_t spx_union_of_cells(const uint8_t* sets, const int64_t* owner, int64_t cells,
                                      int64_t count, uint8_t* out) {
    for (int64_t cell = 0; cell < cells; ++cell, sets += count) {
        uint8_t* of_rank = out + owner[cell] * count;
        for (int64_t t = 0; t < count; ++t) of_rank[t] |= sets[t];
    }
    return 0;
}

// flags: (pool rows,) bytes; table: (pieces, 2), those of each rank follow one another, pieces
// (ranks,). bits: a bit a piece, those of a rank fill whole bytes.
extern "C" int64_t spx_pack_flags(const uint8_t* flags, const int64_t* table,
                                  const int64_t* pieces, int64_t ranks, uint8_t* bits) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t k = 0; k < pieces[rank]; ++k, table += 2) {
            if (k % 8 == 0) bits[k / 8] = 0;
            bits[k / 8] |= uint8_t((flags[*table & 0xffffffff] & 1) << k % 8);
        }
        bits += (pieces[rank] + 7) / 8;
    }
    return 0;
}

// The way back: fills the flags of the pieces.
extern "C" int64_t spx_unpack_flags(const uint8_t* bits, const int64_t* table,
                                    const int64_t* pieces, int64_t ranks, uint8_t* flags) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
        for (int64_t k = 0; k < pieces[rank]; ++k, table += 2)
            flags[*table & 0xffffffff] = bits[k / 8] >> k % 8 & 1;
        bits += (pieces[rank] + 7) / 8;
    }
    return 0;
}
