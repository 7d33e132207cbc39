// From the tiles that cells hold and ranks need to what a rank sends, gets and composes of a chunk
// of views (compose/tables.py).
#include <numeric>

#include "host/tile_sets.h"

namespace {

using namespace spx;

enum Kind { HELD, NEEDED, SUPERVISED, HALO, KINDS };
enum Route { SENT, GOT, HALO_SENT, HALO_GOT, ROUTES };

// The chunk as one rank sees it. bits: (views, cells + 3 ranks, words): what cells hold, what ranks
// need, supervise and get strips of.
struct Chunk {
    int64_t views, cells, ranks, rank, words;
    const int64_t* sizes;  // (views, 2) width, height
    const int64_t* owner;  // (cells,) rank of each cell
    Word* bits;

    Chunk(const int64_t* shape, const int64_t* sizes, const int64_t* owner, Word* bits)
        : views(shape[0]), cells(shape[1]), ranks(shape[2]), rank(shape[3]), words(shape[4]),
          sizes(sizes), owner(owner), bits(bits) {}

    Grid grid(int64_t view) const { return {sizes[2 * view], sizes[2 * view + 1]}; }
    Word* set(int64_t view, Kind kind, int64_t row) const {
        const int64_t before = kind == HELD ? 0 : cells + (kind - 1) * ranks;
        return bits + (view * (cells + 3 * ranks) + before + row) * words;
    }
    bool own(int64_t cell) const { return owner[cell] == rank; }
};

// A word of the tiles whose strips go from one rank to another: that somebody holds, too.
Word strips_of(const Chunk& chunk, int64_t view, int64_t from, int64_t to, int64_t w) {
    const Word wanted = chunk.set(view, HALO, to)[w] & chunk.set(view, SUPERVISED, from)[w];
    Word drawn = 0;
    for (int64_t cell = 0; wanted && cell < chunk.cells; ++cell)
        drawn |= chunk.set(view, HELD, cell)[w];
    return wanted & drawn;
}

int64_t common(const Word* a, const Word* b, int64_t words) {
    int64_t sum = 0;
    for (int64_t w = 0; w < words; ++w) sum += ones(a[w] & b[w]);
    return sum;
}

// pieces: (routes, ranks), added to; rows: (cells,).
void count_view(const Chunk& chunk, int64_t view, bool halo, int64_t* pieces, int64_t* rows,
                int64_t* tiles) {
    const int64_t words = chunk.grid(view).words, ranks = chunk.ranks;
    const Word* mine = chunk.set(view, NEEDED, chunk.rank);
    for (int64_t cell = 0; cell < chunk.cells; ++cell) {
        const Word* held = chunk.set(view, HELD, cell);
        if (!chunk.own(cell)) {
            rows[cell] = common(held, mine, words);
            pieces[GOT * ranks + chunk.owner[cell]] += rows[cell];
            continue;
        }
        rows[cell] = size_of(held, words);
        for (int64_t to = 0; to < ranks; ++to)
            if (to != chunk.rank)
                pieces[SENT * ranks + to] += common(held, chunk.set(view, NEEDED, to), words);
    }
    const Word* beside = chunk.set(view, HALO, chunk.rank);
    *tiles = 0;
    for (int64_t w = 0; w < words; ++w) *tiles += ones(mine[w] | beside[w]);
    for (int64_t other = 0; halo && other < ranks; ++other) {
        if (other == chunk.rank) continue;
        for (int64_t w = 0; w < words; ++w) {
            pieces[HALO_SENT * ranks + other] +=
                ones(strips_of(chunk, view, chunk.rank, other, w));
            pieces[HALO_GOT * ranks + other] +=
                ones(strips_of(chunk, view, other, chunk.rank, w));
        }
    }
}

// Entries of a route one after another.
struct Table {
    int64_t* entry;
    int64_t pixels = 0;

    void add(int64_t row, const Rect& rect) {
        entry[0] = row | rect.packed() << 32, entry[1] = pixels;
        entry += 2, pixels += rect.area();
    }

    // Whole tiles of a word, of rows one after another.
    void add_tiles(Word word, int64_t first, int64_t row, const Grid& grid) {
        // no tile up to the last column of the last row but one is clipped, where columns are not
        if (grid.width % TILE_SIDE == 0 && first + WORD_BITS <= grid.count - grid.tiles_x)
            return each_of(word, first, [&](int64_t) {
                add(row++, {0, 0, TILE_SIDE, TILE_SIDE});
            });
        each_of(word, first, [&](int64_t tile) {
            const int64_t wide = grid.wide(tile % grid.tiles_x);
            add(row++, {0, 0, wide, grid.high(tile / grid.tiles_x)});
        });
    }
};

// first: (views, cells) row of the pool of the first tile of each; own cells come first.
std::vector<int64_t> first_rows(const Chunk& chunk, const int64_t* rows) {
    std::vector<int64_t> first(chunk.views * chunk.cells);
    int64_t next = 0;
    const auto place = [&](int64_t rank) {
        for (int64_t view = 0; view < chunk.views; ++view)
            for (int64_t cell = 0; cell < chunk.cells; ++cell) {
                if (chunk.owner[cell] != rank) continue;
                first[view * chunk.cells + cell] = next;
                next += rows[view * chunk.cells + cell];
            }
    };
    place(chunk.rank);
    for (int64_t rank = 0; rank < chunk.ranks; ++rank)
        if (rank != chunk.rank) place(rank);
    return first;
}

// Tiles of own cells that one rank needs.
void send(const Chunk& chunk, int64_t to, const int64_t* first, Table& table) {
    for (int64_t view = 0; view < chunk.views; ++view) {
        const Grid grid = chunk.grid(view);
        const Word* needed = chunk.set(view, NEEDED, to);
        for (int64_t cell = 0; cell < chunk.cells; ++cell) {
            if (!chunk.own(cell)) continue;
            const Word* held = chunk.set(view, HELD, cell);
            int64_t row = first[view * chunk.cells + cell];
            for (int64_t w = 0; w < grid.words; row += ones(held[w]), ++w) {
                // runs of wanted tiles with all held ones between them have rows in one piece
                Word wanted = held[w] & needed[w];
                while (wanted) {
                    const Word from = ~Word(0) << __builtin_ctzll(wanted);
                    const Word gap = held[w] & ~wanted & from;
                    const Word run = wanted & (gap ? (gap & -gap) - 1 : ~Word(0));
                    table.add_tiles(run, WORD_BITS * w, row + ones(held[w] & ~from), grid);
                    wanted &= ~run;
                }
            }
        }
    }
}

// Tiles of one rank's cells that this rank needs.
void receive(const Chunk& chunk, int64_t from, const int64_t* first, Table& table) {
    for (int64_t view = 0; view < chunk.views; ++view) {
        const Grid grid = chunk.grid(view);
        const Word* needed = chunk.set(view, NEEDED, chunk.rank);
        for (int64_t cell = 0; cell < chunk.cells; ++cell) {
            if (chunk.owner[cell] != from) continue;
            const Word* held = chunk.set(view, HELD, cell);
            int64_t row = first[view * chunk.cells + cell];
            for (int64_t w = 0; w < grid.words; row += ones(held[w] & needed[w]), ++w)
                table.add_tiles(held[w] & needed[w], WORD_BITS * w, row, grid);
        }
    }
}

// Strips from one rank to another, of which this rank is one. places: row of the image of each
// tile of a view that this rank composes or gets strips of.
void exchange_strips(const Chunk& chunk, int64_t from, int64_t to, int64_t reach,
                     const std::vector<std::vector<int32_t>>& places, Table& table) {
    for (int64_t view = 0; view < chunk.views; ++view) {
        const Grid grid = chunk.grid(view);
        const Word* supervised = chunk.set(view, SUPERVISED, to);
        for (int64_t w = 0; w < grid.words; ++w)
            each_of(strips_of(chunk, view, from, to, w), WORD_BITS * w, [&](int64_t tile) {
                table.add(places[view][tile], strip(supervised, grid, tile, reach));
            });
    }
}

// Tiles of a view that this rank composes or gets strips of, ascending: written to tiles. Returns
// the place of each.
std::vector<int32_t> list_tiles(const Chunk& chunk, int64_t view, int32_t start,
                                int32_t*& tiles) {
    const Grid grid = chunk.grid(view);
    const Word* needed = chunk.set(view, NEEDED, chunk.rank);
    const Word* halo = chunk.set(view, HALO, chunk.rank);
    std::vector<int32_t> places(grid.count, -1);
    for (int64_t w = 0; w < grid.words; ++w)
        each_of(needed[w] | halo[w], WORD_BITS * w, [&](int64_t tile) {
            places[tile] = start++;
            *tiles++ = int32_t(tile);
        });
    return places;
}

// Rows of the pool front to back in the tiles that this rank composes. Returns the number of cells
// that have rows; place: where in the order these are.
int64_t fill_slots(const Chunk& chunk, int64_t view, const int64_t* rows, const int64_t* first,
                   const int32_t* order, const std::vector<int32_t>& places, int64_t layers,
                   int32_t* slots, int32_t* place) {
    const int64_t words = chunk.grid(view).words;
    const Word* needed = chunk.set(view, NEEDED, chunk.rank);
    int64_t layer = 0;
    for (int64_t k = 0; k < chunk.cells; ++k) {
        const int64_t cell = order[k];
        if (!rows[cell]) continue;
        const Word* held = chunk.set(view, HELD, cell);
        int32_t row = int32_t(first[cell]);
        for (int64_t w = 0; w < words; ++w) {
            const Word shown = held[w] & needed[w];
            const Word listed = chunk.own(cell) ? held[w] : shown;
            if (!shown) {
                row += int32_t(ones(listed));
                continue;
            }
            each_of(listed, WORD_BITS * w, [&](int64_t tile) {
                if (shown >> tile % WORD_BITS & 1) slots[places[tile] * layers + layer] = row;
                ++row;
            });
        }
        place[layer++] = int32_t(k);
    }
    return layer;
}

}  // namespace

// shape: views, cells, ranks, rank, words of the largest view. sets: (4, views) addresses of the
// bytes (cells or ranks, tile_count) of each Kind, halo and supervised null where no strips travel.
// Fills bits (see Chunk), rows (views, cells) of the pool, tiles (views,) that are composed, pieces
// (routes, ranks), which begins as zeros.
extern "C" int64_t spx_chunk_counts(const int64_t* shape, const int64_t* sizes,
                                    const int64_t* owner, const uint8_t* const* sets, Word* bits,
                                    int64_t* rows, int64_t* tiles, int64_t* pieces) {
    const Chunk chunk(shape, sizes, owner, bits);
    for (int64_t view = 0; view < chunk.views; ++view) {
        const int64_t count = chunk.grid(view).count;
        const bool halo = sets[HALO * chunk.views + view];
        for (int kind = 0; kind < KINDS; ++kind) {
            const uint8_t* bytes = sets[kind * chunk.views + view];
            const int64_t number = kind == HELD ? chunk.cells : chunk.ranks;
            for (int64_t row = 0; row < number; ++row) {
                Word* set = chunk.set(view, Kind(kind), row);
                if (bytes)
                    bits_of_bytes(bytes + row * count, count, set);
                else
                    std::fill(set, set + chunk.words, Word(0));
            }
        }
        count_view(chunk, view, halo, pieces, rows + view * chunk.cells, tiles + view);
    }
    return 0;
}

// After spx_chunk_counts. orders: (views, cells) nearest first; reach: of SSIM; layers: most cells
// with rows of any view. Fills table (pieces of all routes, 2), route after route; pixels (routes,
// ranks); composed (tiles of all views,) and slots (the same, layers); places (views, cells), of
// the cells of each view that have rows, and their number, depth (views,).
extern "C" int64_t spx_chunk_tables(const int64_t* shape, const int64_t* sizes,
                                    const int64_t* owner, const Word* bits, const int64_t* rows,
                                    const int64_t* tiles, const int32_t* orders, int64_t reach,
                                    int64_t layers, int64_t* table, int64_t* pixels,
                                    int32_t* composed, int32_t* slots, int32_t* places,
                                    int64_t* depth) {
    const Chunk chunk(shape, sizes, owner, const_cast<Word*>(bits));
    const std::vector<int64_t> first = first_rows(chunk, rows);
    std::vector<std::vector<int32_t>> listed;
    const int64_t all = std::accumulate(tiles, tiles + chunk.views, int64_t(0));
    std::fill(slots, slots + all * layers, -1);
    int32_t start = 0;
    for (int64_t view = 0; view < chunk.views; ++view) {
        const int64_t at = view * chunk.cells;
        listed.push_back(list_tiles(chunk, view, start, composed));
        start += int32_t(tiles[view]);
        depth[view] = fill_slots(chunk, view, rows + at, first.data() + at, orders + at,
                                 listed.back(), layers, slots, places + at);
    }
    for (int route = 0; route < ROUTES; ++route) {
        Table out{table};
        for (int64_t other = 0; other < chunk.ranks; ++other) {
            const int64_t before = out.pixels;
            if (other != chunk.rank) {
                if (route == SENT) send(chunk, other, first.data(), out);
                if (route == GOT) receive(chunk, other, first.data(), out);
                if (route == HALO_SENT)
                    exchange_strips(chunk, chunk.rank, other, reach, listed, out);
                if (route == HALO_GOT)
                    exchange_strips(chunk, other, chunk.rank, reach, listed, out);
            }
            *pixels++ = out.pixels - before;
        }
        table = out.entry;
    }
    return 0;
}
