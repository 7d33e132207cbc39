// Masks of saturated tiles: how they are kept, told and looked at again (visibility/masks.py,
// saturation.py). Bits of masks are in the order of numpy.packbits: the first tile highest.
#include <cmath>

#include "host/tile_sets.h"

namespace {

using namespace spx;

// Turns every byte round.
Word turned(Word w) {
    w = (w >> 4 & 0x0f0f0f0f0f0f0f0fu) | (w & 0x0f0f0f0f0f0f0f0fu) << 4;
    w = (w >> 2 & 0x3333333333333333u) | (w & 0x3333333333333333u) << 2;
    return (w >> 1 & 0x5555555555555555u) | (w & 0x5555555555555555u) << 1;
}

// From the order of packbits to that of tile_sets.h.
void read_bits(const uint8_t* bits, int64_t count, Word* out) {
    const int64_t words = words_of(count);
    out[words - 1] = 0;
    std::memcpy(out, bits, (count + 7) / 8);
    for (int64_t w = 0; w < words; ++w) out[w] = turned(out[w]);
    out[words - 1] &= ~Word(0) >> (WORD_BITS * words - count);
}

// Fills masked and levels (count,), of zeros, from a mask. False where it has not `size` tiles.
bool expand(const uint8_t* bits, const uint8_t* packed, int64_t size, int64_t count,
            uint8_t* masked, uint8_t* levels) {
    std::vector<Word> set(words_of(count));
    read_bits(bits, count, set.data());
    if (size_of(set.data(), int64_t(set.size())) != size) return false;
    bytes_of_bits(set.data(), count, masked);
    each(set.data(), int64_t(set.size()), [&](int64_t tile) { levels[tile] = *packed++; });
    return true;
}

// Reads values of a message as long as it has some.
struct Reader {
    const uint8_t *at, *end;

    const uint8_t* take(int64_t size) {
        if (size < 0 || size > end - at) return nullptr;
        at += size;
        return at - size;
    }
};

// A notice: view, cell, tile.
struct Notice {
    int32_t view, cell, tile;
};

// Where (view, cell) rows of tiles lie that follow one another.
struct Views {
    int64_t number, cells;
    const int64_t* counts;  // (number,) tiles
    std::vector<int64_t> starts;

    Views(int64_t number, int64_t cells, const int64_t* counts)
        : number(number), cells(cells), counts(counts) {
        for (int64_t v = 0, start = 0; v < number; ++v) {
            starts.push_back(start);
            start += cells * counts[v];
        }
    }
    int64_t row(int64_t view, int64_t cell) const { return starts[view] + cell * counts[view]; }
};

// Reads the masks of the cells of one rank.
bool read_masks(Reader& reader, const Views& views, const int64_t* owner, int64_t rank,
                uint8_t* masked, uint8_t* levels) {
    int64_t local = 0;
    for (int64_t cell = 0; cell < views.cells; ++cell) local += owner[cell] == rank;
    const uint8_t* sizes = reader.take(local * views.number * int64_t(sizeof(int32_t)));
    if (!sizes) return false;
    for (int64_t cell = 0; cell < views.cells; ++cell) {
        if (owner[cell] != rank) continue;
        for (int64_t v = 0; v < views.number; ++v, sizes += sizeof(int32_t)) {
            int32_t size;
            std::memcpy(&size, sizes, sizeof size);
            if (!size) continue;
            const uint8_t* bits = reader.take((views.counts[v] + 7) / 8);
            const uint8_t* packed = bits ? reader.take(size) : nullptr;
            const int64_t row = views.row(v, cell);
            if (!packed || !expand(bits, packed, size, views.counts[v], masked + row, levels + row))
                return false;
        }
    }
    return true;
}

}  // namespace

// messages: of all ranks one after another, sizes (ranks,); counts: (number,) tiles of the views.
// masked and levels: per view (cells, tile_count), of zeros; notices: room for as many as the
// messages can have. Returns their number, -1 for a message that cannot be read.
extern "C" int64_t spx_read_masks(const uint8_t* messages, const int64_t* sizes, int64_t ranks,
                                  const int64_t* owner, int64_t cells, const int64_t* counts,
                                  int64_t number, uint8_t* masked, uint8_t* levels,
                                  Notice* notices) {
    const Views views(number, cells, counts);
    int64_t found = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
        Reader reader{messages, messages + sizes[rank]};
        messages += sizes[rank];
        if (!sizes[rank]) continue;  // nothing to tell
        int64_t told;
        const uint8_t* head = reader.take(sizeof told);
        if (!head) return -1;
        std::memcpy(&told, head, sizeof told);
        if (told < 0 || told > sizes[rank]) return -1;
        const uint8_t* body = reader.take(told * int64_t(sizeof(Notice)));
        if (!body) return -1;
        std::memcpy(notices + found, body, told * sizeof(Notice));
        found += told;
        if (!read_masks(reader, views, owner, rank, masked, levels)) return -1;
    }
    return found;
}

// Makes tiles live again: masked as of spx_read_masks, index (number,) of its views. shown:
// (views, cells), 1 where a tile is masked.
extern "C" int64_t spx_wake(const Notice* notices, int64_t told, const int32_t* index,
                            int64_t cells, const int64_t* counts, int64_t number,
                            uint8_t* masked, uint8_t* shown) {
    const Views views(number, cells, counts);
    for (int64_t v = 0; v < number; ++v) {
        for (const Notice* one = notices; one < notices + told; ++one)
            if (one->view == index[v] && one->cell >= 0 && one->cell < cells && one->tile >= 0 &&
                one->tile < counts[v])
                masked[views.row(v, one->cell) + one->tile] = 0;
        for (int64_t cell = 0; cell < cells; ++cell)
            *shown++ = std::memchr(masked + views.row(v, cell), 1, counts[v]) != nullptr;
    }
    return 0;
}

// A mask of `count` tiles: bits, and packed levels of the `size` masked ones (null where there are
// none); tiles (n,) that are masked with new levels, or are live again where those are null. Fills
// new_bits (ceil(count / 8),) and new_packed (count,). Returns the number of masked tiles, -1 for
// tiles or masks out of range; changed (1,): of the n, those that were masked before.
extern "C" int64_t spx_change_mask(const uint8_t* bits, const uint8_t* packed, int64_t size,
                                   int64_t count, const int32_t* tiles, const uint8_t* levels,
                                   int64_t n, uint8_t* new_bits, uint8_t* new_packed,
                                   int64_t* changed) {
    std::vector<uint8_t> masked(count), known(count);
    if (bits && !expand(bits, packed, size, count, masked.data(), known.data())) return -1;
    *changed = 0;
    for (int64_t k = 0; k < n; ++k) {
        const int32_t tile = tiles[k];
        if (tile < 0 || tile >= count) return -1;
        *changed += masked[tile];
        masked[tile] = levels != nullptr;
        if (levels) known[tile] = levels[k];
    }
    int64_t found = 0;
    std::vector<Word> set(words_of(count));
    bits_of_bytes(masked.data(), count, set.data());
    each(set.data(), int64_t(set.size()), [&](int64_t tile) { new_packed[found++] = known[tile]; });
    for (Word& word : set) word = turned(word);
    std::memcpy(new_bits, set.data(), (count + 7) / 8);
    return found;
}

namespace {

// Moves the saturated tiles of some cells to the front of all, of which `sizes` are each cell's.
// levels: of what the cells let through there, see masks.saturated_tiles; ends: (cells,) where
// those of each cell end.
template <typename T>
int64_t prune(int32_t* tiles, const uint8_t* saturated, const T* passed, const int64_t* sizes,
              int64_t cells, double steps, double least, uint8_t* levels, int64_t* ends) {
    int64_t found = 0;
    for (int64_t cell = 0, k = 0; cell < cells; ++cell) {
        for (const int64_t end = k + sizes[cell]; k < end; ++k) {
            if (!saturated[k]) continue;
            const double kept = std::min(std::max(double(passed[k]), least), 1.0);
            tiles[found] = tiles[k];
            levels[found++] = uint8_t(std::floor(-steps * std::log2(kept)));
        }
        ends[cell] = found;
    }
    return 0;
}

// dark: (1 + pool rows,), 1 in rows whose layers receive less than the threshold, the first for
// slots without a row.
template <typename T>
int64_t mark_dark(const int32_t* slots, int64_t tiles, int64_t layers, const T* residuals,
                  double threshold, uint8_t* dark) {
    const T limit = T(threshold);
    for (int64_t k = 0; k < tiles; ++k, slots += layers, residuals += layers + 1)
        for (int64_t m = 0; m < layers; ++m) dark[slots[m] + 1] = residuals[m] < limit;
    return 0;
}

enum Reevaluate { NEVER, RESIDUAL, ALWAYS };

struct Judged {
    const int32_t* tiles;    // (n,) composed
    const uint8_t* counted;  // (tile_count,)
    const uint8_t* masked;   // (cells, tile_count)
    const uint8_t* levels;   // (cells, tile_count)
    const double* light;     // (256,) transmittance of a level
    int64_t n, layers, tile_count, cells;
};

// Notices of the masked tiles that are to come back, cell after cell front to back. counts: (2,),
// added to, masked tiles and those that flipped.
template <typename T>
int64_t reconsider(const Judged& view, const T* residuals, const int32_t* places, int64_t depth,
                   const int32_t* order, double threshold, Reevaluate when, int32_t index,
                   int64_t* counts, Notice* notices) {
    const int64_t words = words_of(view.tile_count);
    std::vector<double> left(view.tile_count, 1.0);
    std::vector<int32_t> row(view.tile_count, -1);
    std::vector<Word> judged(words), set(words);
    bits_of_bytes(view.counted, view.tile_count, judged.data());
    for (int64_t k = 0; k < view.n; ++k) row[view.tiles[k]] = int32_t(k);
    int64_t found = 0, layer = 0;
    for (int64_t place = 0; place < view.cells; ++place) {
        while (layer < depth && places[layer] < place) ++layer;  // live layers in front of it
        const int32_t cell = order[place];
        const uint8_t* levels = view.levels + cell * view.tile_count;
        bits_of_bytes(view.masked + cell * view.tile_count, view.tile_count, set.data());
        for (int64_t w = 0; w < words; ++w) set[w] &= judged[w];
        each(set.data(), words, [&](int64_t tile) {
            if (row[tile] < 0) return;
            const T passed = residuals[(view.layers + 1) * row[tile] + layer];
            const bool opened = passed >= T(threshold);
            const bool flipped = double(passed) * left[tile] >= threshold;
            if (flipped) left[tile] *= view.light[levels[tile]];
            ++counts[0], counts[1] += flipped;
            if (when == RESIDUAL ? flipped : when == ALWAYS && opened)
                notices[found++] = {index, cell, int32_t(tile)};
        });
    }
    return found;
}

}  // namespace

#define SPX_MASKS(T, SUFFIX)                                                                     \
    extern "C" int64_t spx_prune_##SUFFIX(                                                       \
        int32_t* tiles, const uint8_t* saturated, const T* passed, const int64_t* sizes,         \
        int64_t cells, double steps, double least, uint8_t* levels, int64_t* ends) {             \
        return prune<T>(tiles, saturated, passed, sizes, cells, steps, least, levels, ends);     \
    }                                                                                            \
    extern "C" int64_t spx_dark_##SUFFIX(const int32_t* slots, int64_t tiles, int64_t layers,    \
                                         const T* residuals, double threshold, uint8_t* dark) {  \
        return mark_dark<T>(slots, tiles, layers, residuals, threshold, dark);                   \
    }                                                                                            \
    extern "C" int64_t spx_reconsider_##SUFFIX(                                                  \
        const int32_t* tiles, int64_t n, const uint8_t* counted, const T* residuals,             \
        int64_t layers, const int32_t* places, int64_t depth, const int32_t* order,              \
        const uint8_t* masked, const uint8_t* levels, int64_t tile_count, int64_t cells,         \
        const double* light, double threshold, int64_t when, int64_t index, int64_t* counts,     \
        Notice* notices) {                                                                       \
        const Judged view{tiles, counted, masked, levels, light, n, layers, tile_count, cells};  \
        return reconsider<T>(view, residuals, places, depth, order, threshold,                   \
                             Reevaluate(when), int32_t(index), counts, notices);                 \
    }

SPX_MASKS(float, f32)
SPX_MASKS(double, f64)
