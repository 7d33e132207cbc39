// Tile lists: splats in order of (depth, id), one instance for each tile that a splat touches,
// and what of a cell each pixel sees. The decision itself is in math/tiles.cuh.
//
// Parts, of one size of image, are listed together: each has its own tiles, those of part p are
// numbered from p x tiles of the image on, and a run of rows of the splats. Below, tiles are those
// of all parts.
#include "chained_scan.cuh"
#include "counted.cuh"
#include "math/tiles.cuh"

namespace {

constexpr int LIST_BLOCK = 1024;

typedef spx::TileDepths<float> Depths;

// Words that the kernels of a view share. The host reads the counters, see cuda_lists.py.
enum Counter { ROW_TICKET, TICKET, ROWS, INSTANCES, HELD, DISORDER, CROSSED, COUNTERS = 8 };

struct Board {
    Word* counters;          // (COUNTERS,)
    unsigned char* held;     // (tiles and up,), 1 where something is listed
    unsigned char* crossed;  // (tiles and up,), 1 where a listed depth is outside the cell in
                             // some pixel
    int words;               // of held, eight tiles each
    Word* row_states;        // (blocks of place_rows,)
    Word* states;            // (blocks of emit,)
};

// zeroed: (COUNTERS + 2 words + blocks of place_rows and emit,), all 0 before the first kernel;
// n: splats.
__device__ Board make_board(Word* zeroed, const spx::TileGrid& grid, int parts, long long n) {
    const int words = (parts * grid.across * grid.down + 7) / 8;
    Word* held = zeroed + COUNTERS;
    Word* row_states = held + 2 * words;
    return {zeroed,
            reinterpret_cast<unsigned char*>(held),
            reinterpret_cast<unsigned char*>(held + words),
            words,
            row_states,
            row_states + (n + BLOCK - 1) / BLOCK};
}

// Rows of splats of the parts.
struct Parts {
    const long long* runs;  // (count, 2) first row and number, ascending; null: one part of all
    int count;
};

// Part of a row, -1 where it is of none.
__device__ int find_part(const Parts& parts, long long row) {
    if (!parts.runs) return 0;
    int low = -1, high = parts.count;  // the last part that starts at or before the row
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (parts.runs[2 * middle] <= row) low = middle;
        else high = middle;
    }
    return low >= 0 && row < parts.runs[2 * low] + parts.runs[2 * low + 1] ? low : -1;
}

// ---- order ----

// Bits of a float that sort as unsigned integers the way floats do.
__device__ unsigned sortable(float x) {
    const unsigned bits = __float_as_uint(x);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// Runs of equal depths up to this length are put in order of id on the fly; real depths collide
// in pairs, 6000 among a million splats.
constexpr int LONGEST_TIE = 32;

// Whether splat b goes before splat a, which is as deep.
__device__ bool comes_later(const long long* ids, int a, int b) {
    return ids[a] != ids[b] ? ids[a] > ids[b] : a > b;
}

// The splat at position i of the order by (depth, id), one of several of its depth, from an order
// by depth alone. Where their run is too long to be settled here and not in order, sets
// `disorder`.
__device__ int settle_tie(const unsigned* keys, const int* order, const long long* ids,
                          long long n, long long i, Word* disorder) {
    const unsigned key = keys[i];
    const int mine = order[i];
    long long begin = i, end = i + 1;
    while (begin > 0 && i - begin < LONGEST_TIE && keys[begin - 1] == key) --begin;
    while (end < n && end - i <= LONGEST_TIE && keys[end] == key) ++end;
    if (end - begin > LONGEST_TIE) {
        if (begin < i && comes_later(ids, order[i - 1], mine)) *disorder = 1;
        return mine;
    }
    for (long long k = begin; k < end; ++k) {
        const int item = order[k];
        long long place = begin;
        for (long long other = begin; other < end; ++other)
            place += comes_later(ids, item, order[other]);
        if (place == i) return item;
    }
    return mine;
}

__device__ bool is_tied(const unsigned* keys, long long n, long long i) {
    const unsigned key = keys[i];
    return (i > 0 && keys[i - 1] == key) || (i + 1 < n && keys[i + 1] == key);
}

// ---- rows of tiles ----

// A splat in order of (depth, id).
struct Entry {
    spx::Footprint<float> shape;
    float depth;
    int item;
    int first_tile;  // of its part
};

// Entries lie in memory word by word, (ENTRY_WORDS, n), so that a warp reads and writes lines.
constexpr int ENTRY_WORDS = sizeof(Entry) / sizeof(unsigned);

union EntryWords {
    Entry entry;
    unsigned words[ENTRY_WORDS];
    __device__ EntryWords() {}
};

__device__ void store_entry(const Entry& entry, unsigned* entries, long long n, long long i) {
    EntryWords from;
    from.entry = entry;
#pragma unroll
    for (int k = 0; k < ENTRY_WORDS; ++k) entries[k * n + i] = from.words[k];
}

__device__ Entry load_entry(const unsigned* entries, long long n, long long i) {
    EntryWords to;
#pragma unroll
    for (int k = 0; k < ENTRY_WORDS; ++k) to.words[k] = __ldg(entries + k * n + i);
    return to.entry;
}

// One row of tiles of a splat. The splats nearest to the camera follow each other and may cover
// the whole image each; so work is dealt out by rows of tiles, not by splats.
struct alignas(8) Slice {
    int place;  // of the splat's entry
    int row;
};

__device__ Entry make_entry(const float4* data, int item, int part, const spx::TileGrid& grid) {
    const float4 a = __ldg(data + 3LL * item), b = __ldg(data + 3LL * item + 1),
                 c = __ldg(data + 3LL * item + 2);
    const float splat[12] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w};
    return {spx::make_footprint(splat, grid), splat[9], item, part * grid.across * grid.down};
}

// ---- instances ----

// Where instances go and what decides about them.
template <class Key>
struct Emission {
    spx::TileGrid grid;
    const unsigned char* mask;  // (tiles,) or null
    const Depths* depths;       // (tiles,) or null
    long long capacity;
    Key* tiles;  // (capacity,)
    int* items;  // (capacity,)
};

// Tiles that a splat may touch in one row of tiles.
struct Row {
    int start;  // of its tiles among those of the warp's rows
    int tile;   // the first of them
    float depth;
    int item;
};

// Tiles that the shape of a splat meets in one row; sets all but the start of `out`.
__device__ int make_row(const Entry& entry, int row, const spx::TileGrid& grid, Row& out) {
    int first, last;
    if (!spx::footprint_row(entry.shape, grid, row, first, last)) return 0;
    out.tile = entry.first_tile + row * grid.across + first;
    out.depth = entry.depth, out.item = entry.item;
    return last - first + 1;
}

// Candidate k of the warp's rows: its row, and its tile.
__device__ const Row& find_row(const Row* rows, int k, int& tile) {
    int at = 0;  // the last row that starts at or before k
    for (int step = WARP / 2; step; step /= 2)
        if (rows[at + step].start <= k) at += step;
    tile = rows[at].tile + k - rows[at].start;
    return rows[at];
}

// Calls visit(row, tile, place) for the candidates that are listed, place counts them; returns
// how many. All lanes of a warp call it. Counting and writing both go through here.
template <class Key, class Visit>
__device__ int visit_listed(const Emission<Key>& to, const Row* rows, int candidates,
                            Visit visit) {
    const int lane = threadIdx.x % WARP;
    int count = 0;
    for (int base = 0; base < candidates; base += WARP) {
        int tile = 0;
        const Row* row = nullptr;
        bool listed = false;
        if (base + lane < candidates) {
            row = &find_row(rows, base + lane, tile);
            listed = spx::tile_lists_depth(to.mask, to.depths, tile, row->depth);
        }
        const unsigned all = __ballot_sync(ALL, listed);
        if (listed) visit(*row, tile, count + __popc(all & ((1u << lane) - 1)));
        count += __popc(all);
    }
    return count;
}

template <class Key>
__device__ void write_instance(const Emission<Key>& to, const Board& board, const Row& row,
                               int tile, long long position) {
    if (position < to.capacity) {
        to.tiles[position] = Key(tile);
        to.items[position] = row.item;
    }
    // all write the same value: no atomics, and mostly no write
    if (!board.held[tile]) board.held[tile] = 1;
    if (to.depths && !spx::every_pixel_holds(to.depths[tile], row.depth) && !board.crossed[tile])
        board.crossed[tile] = 1;
}

template <class Key>
__device__ void emit(const unsigned* entries, const Slice* slices, long long n,
                     long long slice_capacity, const Board& board, const Emission<Key>& to) {
    __shared__ Row rows[BLOCK];
    const long long counted = board.counters[ROWS];
    const long long all = counted < slice_capacity ? counted : slice_capacity;
    const long long block = next_block(board.counters + TICKET);
    if (block * BLOCK >= all) return;
    const long long j = block * BLOCK + threadIdx.x;
    int own = 0;
    if (j < all) {
        const Slice slice = slices[j];
        own = make_row(load_entry(entries, n, slice.place), slice.row, to.grid,
                       rows[threadIdx.x]);
    }
    const int upto = warp_sums(own), candidates = __shfl_sync(ALL, upto, WARP - 1);
    rows[threadIdx.x].start = upto - own;
    __syncwarp();
    const Row* warp_rows = rows + threadIdx.x / WARP * WARP;
    int count = candidates;
    if (to.mask || to.depths)
        count = visit_listed(to, warp_rows, candidates, [](const Row&, int, int) {});
    const bool last = (block + 1) * BLOCK >= all;
    const long long position = warps_before(count, board.states, block,
                                            last ? board.counters + INSTANCES : nullptr);
    visit_listed(to, warp_rows, candidates, [&](const Row& row, int tile, int place) {
        write_instance(to, board, row, tile, position + place);
    });
}

// ---- tiles ----

// Where each tile's run begins among the sorted tiles.
template <class Key>
__device__ void mark_starts(const Key* keys, long long n, const int* slots, int held,
                            long long* offsets) {
    constexpr int EACH = 16 / sizeof(Key);  // keys of one load
    const long long first = (blockIdx.x * (long long)blockDim.x + threadIdx.x) * EACH;
    if (first >= n) return;
    union {
        uint4 vector;
        Key key[EACH];
    } loaded;
    if (first + EACH <= n)
        loaded.vector = *reinterpret_cast<const uint4*>(keys + first);
    else
        for (int k = 0; k < EACH; ++k) loaded.key[k] = first + k < n ? keys[first + k] : Key(0);
    unsigned before = first ? unsigned(keys[first - 1]) : ALL;  // no tile has that number
#pragma unroll  // keeps the keys in registers
    for (int k = 0; k < EACH; ++k) {
        const unsigned key = loaded.key[k];
        if (key != before && first + k < n) offsets[slots[key]] = first + k;
        before = key;
    }
    if (first + EACH >= n) offsets[held] = n;
}

}  // namespace

// Below, n splats are those of the arrays; where count is not null it says how many of them are
// in use, the first ones.

// Keys that sort splats by depth, those not in use or of no part last, and the splats' own
// indices.
extern "C" __global__ void depth_keys(const float* data,  // (n, 12)
                                      long long n,
                                      const Word* count,  // (1,) or null
                                      const long long* runs, int parts,  // see Parts
                                      unsigned* keys,     // (n,)
                                      int* order) {       // (n,)
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const bool used = i < rows_in_use(n, count) && find_part({runs, parts}, i) >= 0;
    keys[i] = used ? sortable(data[12 * i + 9]) : ALL;
    order[i] = int(i);
}

// Splats in order of (depth, id), and the rows of tiles that they meet. Beyond the capacity rows
// are only counted.
extern "C" __global__ void __launch_bounds__(BLOCK)
    place_rows(const float4* data,    // (n, 12) float
               const unsigned* keys,  // (n,), sorted
               const int* order,      // (n,)
               const long long* ids,  // (n,)
               long long n,
               const Word* count,     // (1,) or null
               const long long* runs, int parts,  // see Parts
               int width, int height, long long capacity,
               unsigned* entries,     // (15, n), see Entry
               Slice* slices,         // (capacity, 2) int
               Word* zeroed) {        // see make_board
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    const Board board = make_board(zeroed, grid, parts, n);
    const long long block = next_block(board.counters + ROW_TICKET);
    const long long i = block * BLOCK + threadIdx.x, used = rows_in_use(n, count);
    int top = 0, rows = 0;
    if (i < used) {
        const int item = is_tied(keys, used, i)
                             ? settle_tie(keys, order, ids, used, i, board.counters + DISORDER)
                             : order[i];
        const Entry entry = make_entry(data, item, find_part({runs, parts}, item), grid);
        store_entry(entry, entries, n, i);
        top = entry.shape.top, rows = entry.shape.bottom - top + 1;
    }
    const int upto = warp_sums(rows), all = __shfl_sync(ALL, upto, WARP - 1);
    const bool last = block == gridDim.x - 1;
    const long long start = warps_before(all, board.row_states, block,
                                         last ? board.counters + ROWS : nullptr) + upto - rows;
    for (int row = 0; row < rows && start + row < capacity; ++row)
        slices[start + row] = {int(i), top + row};
}

// Instances front to back, in order of (depth, id) of their splats: one pass that tests, counts,
// scans and writes. Beyond the capacity it only counts. NAME: type of a tile's number.
#define SPX_EMIT(NAME, KEY)                                                                      \
    extern "C" __global__ void __launch_bounds__(BLOCK) emit_##NAME(                             \
        const unsigned* entries /* (15, n) */, const Slice* slices /* (rows, 2) int */,          \
        long long n, long long rows, int parts, int width, int height,                           \
        const unsigned char* mask /* (tiles,) or null */,                                        \
        const Depths* depths /* (tiles,) or null */, long long capacity,                         \
        KEY* tiles /* (capacity,) */, int* items /* (capacity,) */,                              \
        Word* zeroed /* see make_board */) {                                                     \
        const spx::TileGrid grid = spx::make_tile_grid(width, height);                           \
        const Emission<KEY> to = {grid, mask, depths, capacity, tiles, items};                   \
        emit(entries, slices, n, rows, make_board(zeroed, grid, parts, n), to);                  \
    }
SPX_EMIT(uint16, unsigned short)
SPX_EMIT(uint32, unsigned)

// Lists the held tiles in ascending order. One block; a thread takes eight tiles at a time.
extern "C" __global__ void __launch_bounds__(LIST_BLOCK)
    list_held(int width, int height, int parts,
              int* tiles,      // (tiles and up,), the first HELD are set: tiles of the image
              int* numbers,    // (tiles and up,), the same as tiles of all parts, or null
              int* slots,      // (tiles and up,), place in tiles of a held tile, -1 of others
              Word* zeroed,    // see make_board
              Word* report) {  // (COUNTERS,), a copy of the counters, or null
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    const Board board = make_board(zeroed, grid, parts, 0);
    const int of_image = grid.across * grid.down, count_of_tiles = parts * of_image;
    const Word* held = reinterpret_cast<const Word*>(board.held);
    const Word* crossed = reinterpret_cast<const Word*>(board.crossed);
    const int words = board.words;
    __shared__ int sums[LIST_BLOCK / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int base = 0;
    for (int start = 0; start < words; start += LIST_BLOCK) {
        const int at = start + threadIdx.x;
        const Word word = at < words ? held[at] : 0;
        if (at < words && crossed[at]) board.counters[CROSSED] = 1;
        const int count = __popcll(word), upto = warp_sums(count);
        __syncthreads();  // the last round has read sums
        if (lane == WARP - 1) sums[warp] = upto;
        __syncthreads();
        const int before = warp_sums(sums[lane]);  // as many warps as lanes
        int place = base + upto - count;
        if (warp) place += __shfl_sync(ALL, before, warp - 1);
        base += __shfl_sync(ALL, before, WARP - 1);
        for (int k = 0; k < 8 && 8 * at + k < count_of_tiles; ++k) {
            const bool own = word >> (8 * k) & 1;
            slots[8 * at + k] = own ? place : -1;
            if (!own) continue;
            if (numbers) numbers[place] = 8 * at + k;
            tiles[place++] = (8 * at + k) % of_image;
        }
    }
    if (threadIdx.x == 0) board.counters[HELD] = base;
    __syncthreads();
    if (report && threadIdx.x < COUNTERS) report[threadIdx.x] = board.counters[threadIdx.x];
}

// Offsets of the held tiles' lists among the sorted instances.
#define SPX_STARTS(NAME, KEY)                                                                  \
    extern "C" __global__ void mark_starts_##NAME(                                             \
        const KEY* keys /* (n,), sorted, 16-byte aligned */, long long n,                      \
        const int* slots /* (tiles,) */, int held, long long* offsets /* (held + 1,) */,       \
        const Word* counters /* (8,), or null: n and held are right */) {                      \
        const int used = int(rows_in_use(held, counters ? counters + HELD : nullptr));         \
        n = rows_in_use(n, counters ? counters + INSTANCES : nullptr);                         \
        mark_starts(keys, n, slots, used, offsets);                                            \
    }
SPX_STARTS(uint16, unsigned short)
SPX_STARTS(uint32, unsigned)
