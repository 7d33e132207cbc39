// From the tiles that ranks hold to those that they supervise and need (visibility/demand.py,
// owners.py, tiles.py).
#include <numeric>

#include "host/tile_sets.h"

namespace {

using namespace spx;

// Pixels of each macro-tile inside a set, added to out (macros,).
void add_macro_pixels(const uint8_t* set, const Grid& grid, int64_t macro, int64_t* out) {
    const int64_t across = (grid.tiles_x + macro - 1) / macro;
    std::vector<uint16_t> heights(grid.tiles_x);  // of each column of a row of macro-tiles
    for (int64_t first = 0; first < grid.tiles_y; first += macro, out += across) {
        std::fill(heights.begin(), heights.end(), 0);
        for (int64_t y = first; y < std::min(first + macro, grid.tiles_y); ++y) {
            const uint8_t* row = set + y * grid.tiles_x;
            const uint16_t high = uint16_t(grid.high(y));
            for (int64_t x = 0; x < grid.tiles_x; ++x)
                heights[x] = uint16_t(heights[x] + row[x] * high);
        }
        for (int64_t m = 0; m < across; ++m) {
            int32_t sum = 0;
            const int64_t end = std::min((m + 1) * macro, grid.tiles_x);
            for (int64_t x = m * macro; x < end; ++x) sum += heights[x];
            out[m] += sum * TILE_SIDE;
        }
        out[across - 1] -= heights.back() * (TILE_SIDE - grid.wide(grid.tiles_x - 1));
    }
}

// Ranks for pieces of these sizes, in runs, that raise the lowest loads to one level. ranks: in
// order of preference among equal loads.
void spread(const std::vector<int64_t>& sizes, std::vector<int64_t> ranks,
            const std::vector<int64_t>& load, std::vector<int64_t>& out) {
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](int64_t a, int64_t b) { return load[a] < load[b]; });
    const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t(0));
    int64_t sum = total, level = INT64_MAX;
    // the level at which only ranks below it take part: the lowest over all numbers of ranks
    for (size_t k = 0; k < ranks.size(); ++k) {
        sum += load[ranks[k]];
        level = std::min(level, sum / int64_t(k + 1));
    }
    size_t k = 0;
    int64_t filled = std::max<int64_t>(level - load[ranks[0]], 0), before = 0;
    for (int64_t size : sizes) {
        before += size;
        while (k + 1 < ranks.size() && filled < before - size / 2)
            filled += std::max<int64_t>(level - load[ranks[++k]], 0);
        out.push_back(ranks[k]);
    }
}

// Owner of each macro-tile.
std::vector<int64_t> macro_owners(const uint8_t* held, int64_t ranks, const Grid& grid,
                                  const int64_t* load, int64_t macro) {
    const int64_t across = (grid.tiles_x + macro - 1) / macro;
    const int64_t macros = across * ((grid.tiles_y + macro - 1) / macro);
    std::vector<int64_t> shares(ranks * macros), sizes(macros), pixels(ranks), taking;
    const std::vector<uint8_t> all(grid.count, 1);
    add_macro_pixels(all.data(), grid, macro, sizes.data());
    for (int64_t rank = 0; rank < ranks; ++rank) {
        int64_t* share = shares.data() + rank * macros;
        add_macro_pixels(held + rank * grid.count, grid, macro, share);
        pixels[rank] = std::accumulate(share, share + macros, int64_t(0));
        if (pixels[rank]) taking.push_back(rank);
    }
    if (taking.empty())
        return std::vector<int64_t>(macros, std::min_element(load, load + ranks) - load);
    std::stable_sort(taking.begin(), taking.end(), [&](int64_t a, int64_t b) {
        return pixels[a] != pixels[b] ? pixels[a] > pixels[b] : load[a] < load[b];
    });
    std::vector<int64_t> owner(macros, -1), loads(load, load + ranks), empty, found;
    for (int64_t m = 0; m < macros; ++m) {
        int64_t most = 0;
        for (int64_t rank : taking)
            if (shares[rank * macros + m] > most)
                most = shares[rank * macros + m], owner[m] = rank;
        if (most)
            loads[owner[m]] += sizes[m];
        else
            empty.push_back(sizes[m]);
    }
    spread(empty, taking, loads, found);
    for (int64_t m = 0, next = 0; m < macros; ++m)
        if (owner[m] < 0) owner[m] = found[next++];
    return owner;
}

}  // namespace

// held: (ranks, tile_count) bytes; load: (ranks,). owner: (tile_count,), see owners.assign.
extern "C" int64_t spx_assign_owners(const uint8_t* held, int64_t ranks, int64_t width,
                                     int64_t height, const int64_t* load, int64_t macro,
                                     int32_t* owner) {
    const Grid grid(width, height);
    const int64_t across = (grid.tiles_x + macro - 1) / macro;
    const std::vector<int64_t> owners = macro_owners(held, ranks, grid, load, macro);
    for (int64_t y = 0; y < grid.tiles_y; ++y, owner += grid.tiles_x)
        for (int64_t m = 0; m < across; ++m)
            std::fill(owner + m * macro, owner + std::min((m + 1) * macro, grid.tiles_x),
                      int32_t(owners[y / macro * across + m]));
    return 0;
}

// From owner (tile_count,): supervised and halo, (ranks, tile_count) bytes; adds the pixels that
// ranks own to load (ranks,). Returns the number of tiles in all halos.
extern "C" int64_t spx_demand_owner(const int32_t* owner, int64_t ranks, int64_t width,
                                    int64_t height, int64_t* load, uint8_t* supervised,
                                    uint8_t* halo) {
    const Grid grid(width, height);
    Dilation dilate(grid);
    Sets own(ranks + 1, grid.words);
    for (int64_t y = 0; y < grid.tiles_y; ++y) {
        const int32_t* row = owner + y * grid.tiles_x;
        for (int64_t x = 0, end; x < grid.tiles_x; x = end) {
            for (end = x + 1; end < grid.tiles_x && row[end] == row[x];) ++end;
            add_run(own[row[x]], y * grid.tiles_x + x, y * grid.tiles_x + end);
            load[row[x]] += (std::min(width, TILE_SIDE * end) - TILE_SIDE * x) * grid.high(y);
        }
    }
    Word* near = own[ranks];
    int64_t beside = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
        bytes_of_bits(own[rank], grid.count, supervised + rank * grid.count);
        dilate(own[rank], near);
        for (int64_t w = 0; w < grid.words; ++w) near[w] &= ~own[rank][w];
        bytes_of_bits(near, grid.count, halo + rank * grid.count);
        beside += size_of(near, grid.words);
    }
    return beside;
}

// held: (ranks, tile_count) bytes. supervised and needed are alike, counted: (tile_count,); see
// demand.training.
extern "C" int64_t spx_demand_overlap(const uint8_t* held, int64_t ranks, int64_t width,
                                      int64_t height, uint8_t* supervised, uint8_t* needed,
                                      int32_t* counted) {
    const Grid grid(width, height);
    Dilation dilate(grid);
    Sets own(ranks + 2, grid.words);
    Word *left = own[ranks], *near = own[ranks + 1];
    std::fill(left, left + grid.words, ~Word(0));
    left[grid.words - 1] = grid.last();
    int64_t home = 0, most = -1;
    for (int64_t rank = 0; rank < ranks; ++rank) {
        bits_of_bytes(held + rank * grid.count, grid.count, own[rank]);
        const int64_t size = size_of(own[rank], grid.words);
        if (size > most) home = rank, most = size;
        for (int64_t w = 0; w < grid.words; ++w) left[w] &= ~own[rank][w];
    }
    for (int64_t w = 0; w < grid.words; ++w) own[home][w] |= left[w];
    std::fill(left, left + grid.words, ~Word(0));
    for (int64_t rank = 0; rank < ranks; ++rank) {
        bytes_of_bits(own[rank], grid.count, supervised + rank * grid.count);
        dilate(own[rank], near);
        bytes_of_bits(near, grid.count, needed + rank * grid.count);
        for (int64_t w = 0; w < grid.words; ++w) {
            each_of(own[rank][w] & left[w], WORD_BITS * w,
                    [&](int64_t tile) { counted[tile] = int32_t(rank); });
            left[w] &= ~own[rank][w];
        }
    }
    return 0;
}

// set and out: (tile_count,) bytes; see tiles.dilate.
extern "C" int64_t spx_dilate(const uint8_t* set, int64_t width, int64_t height, uint8_t* out) {
    const Grid grid(width, height);
    Sets bits(2, grid.words);
    bits_of_bytes(set, grid.count, bits[0]);
    Dilation dilate(grid);
    dilate(bits[0], bits[1]);
    bytes_of_bits(bits[1], grid.count, out);
    return 0;
}

// set: (tile_count,) bytes; out: (tile_count, 4), see tiles.strips.
extern "C" int64_t spx_strips(const uint8_t* set, int64_t width, int64_t height, int64_t reach,
                              int64_t* out) {
    const Grid grid(width, height);
    Sets bits(1, grid.words);
    bits_of_bytes(set, grid.count, bits[0]);
    for (int64_t tile = 0; tile < grid.count; ++tile, out += 4) {
        const Rect rect = strip(bits[0], grid, tile, reach);
        out[0] = rect.x0, out[1] = rect.y0, out[2] = rect.x1, out[3] = rect.y1;
    }
    return 0;
}

// set: (tile_count,) bytes; out: (4,), see tiles.bounding_rect.
extern "C" int64_t spx_bounding_rect(const uint8_t* set, int64_t width, int64_t height,
                                     int64_t margin, int64_t* out) {
    const Grid grid(width, height);
    int64_t left = grid.tiles_x, right = -1, top = grid.tiles_y, bottom = -1;
    for (int64_t y = 0; y < grid.tiles_y; ++y) {
        const uint8_t* row = set + y * grid.tiles_x;
        const void* found = std::memchr(row, 1, grid.tiles_x);
        if (!found) continue;
        const int64_t first = static_cast<const uint8_t*>(found) - row;
        int64_t last = grid.tiles_x - 1;
        while (!row[last]) --last;
        left = std::min(left, first), right = std::max(right, last);
        top = std::min(top, y), bottom = y;
    }
    std::fill(out, out + 4, 0);
    if (bottom < 0) return 0;
    out[0] = std::max<int64_t>(0, left * TILE_SIDE - margin);
    out[1] = std::max<int64_t>(0, top * TILE_SIDE - margin);
    out[2] = std::min(width, (right + 1) * TILE_SIDE + margin);
    out[3] = std::min(height, (bottom + 1) * TILE_SIDE + margin);
    return 0;
}

// needed, supervised: (tile_count,) bytes. Of the needed tiles first to last - 1 those that are
// needed whole, in their upper rows, and in their lower rows: tiles (3, last - first), counts (3,);
// see halo.borders.
extern "C" int64_t spx_borders(const uint8_t* needed, const uint8_t* supervised, int64_t width,
                               int64_t height, int64_t first, int64_t last, int64_t* tiles,
                               int64_t* counts) {
    const Grid grid(width, height);
    const auto near = [&](int64_t x, int64_t y) {  // a supervised tile there, to its left or right
        if (y < 0 || y >= grid.tiles_y) return false;
        const uint8_t* row = supervised + y * grid.tiles_x;
        return row[x] || (x > 0 && row[x - 1]) || (x + 1 < grid.tiles_x && row[x + 1]);
    };
    std::fill(counts, counts + 3, 0);
    for (int64_t t = first; t < last; ++t) {
        if (!needed[t]) continue;
        const int64_t x = t % grid.tiles_x, y = t / grid.tiles_x;
        const bool above = near(x, y - 1), below = near(x, y + 1);
        const int64_t part = above == below || near(x, y) ? 0 : above ? 1 : 2;
        tiles[part * (last - first) + counts[part]++] = t;
    }
    return 0;
}
