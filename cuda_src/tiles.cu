// Tile lists: splats in order of (depth, id), one instance for each tile that a splat touches,
// and what of a cell each pixel sees. The decision itself is in math/tiles.cuh.
#include "math/tiles.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int BLOCK = 256;  // threads, and splats, of a block
constexpr int WARPS = BLOCK / WARP;
constexpr int LIST_BLOCK = 1024;

typedef unsigned long long Word;
typedef spx::TileDepths<float> Depths;

// Words that the host reads after the instances are counted, see cuda_lists.py.
enum Counter { TICKET, INSTANCES, HELD, DISORDER, CROSSED };

// ---- sums over a warp ----

template <class N>
__device__ N warp_total(N value) {
    for (int step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    return value;
}

// Sum over this lane and those below it.
template <class N>
__device__ N warp_sums(N value) {
    const int lane = threadIdx.x % WARP;
    for (int step = 1; step < WARP; step *= 2) {
        const N below = __shfl_up_sync(ALL, value, step);
        if (lane >= step) value += below;
    }
    return value;
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

// The splat at position i of the order by (depth, id), from one by depth alone. Where a run of
// equal depths is too long to be settled here and not in order, sets `disorder`.
__device__ int splat_at(const unsigned* keys, const int* order, const long long* ids,
                        long long n, long long i, Word* disorder) {
    const unsigned key = keys[i];
    long long begin = i, end = i + 1;
    while (begin > 0 && i - begin < LONGEST_TIE && keys[begin - 1] == key) --begin;
    while (end < n && end - i <= LONGEST_TIE && keys[end] == key) ++end;
    const int mine = order[i];
    if (end - begin == 1) return mine;
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

// ---- instances ----

// Where instances go and what decides about them.
template <class Key>
struct Emission {
    spx::TileGrid grid;
    const unsigned char* mask;  // (tiles,) or null
    const Depths* depths;       // (tiles,) or null
    long long capacity;
    Key* tiles;               // (capacity,)
    int* items;               // (capacity,)
    unsigned char* held;      // (tiles,), 1 where something is listed
    unsigned char* crossed;   // (tiles,), 1 where some pixel is outside the cell at a listed depth
};

// 15 words: an odd stride spreads the rows over the banks of shared memory.
struct Entry {
    spx::Footprint<float> shape;
    float depth;
    int item;
    int start;  // of its rows of tiles among those of the warp
};

// Calls visit(tile) for every tile that lists the splat in row `j` of the warp's rows of tiles.
template <class Key, class Visit>
__device__ void visit_row(const Emission<Key>& to, const Entry* entries, int j, Visit visit) {
    int owner = 0;  // the last entry that starts at or before j
    for (int step = WARP / 2; step; step /= 2)
        if (entries[owner + step].start <= j) owner += step;
    const Entry& entry = entries[owner];
    const int row = entry.shape.top + j - entry.start;
    int first, last;
    if (!spx::footprint_row(entry.shape, to.grid, row, first, last)) return;
    const int base = row * to.grid.across;
    for (int tile = base + first; tile <= base + last; ++tile)
        if (spx::tile_lists_depth(to.mask, to.depths, tile, entry.depth)) visit(tile, entry);
}

template <class Key>
__device__ void write_instance(const Emission<Key>& to, int tile, const Entry& entry,
                               long long position) {
    if (position < to.capacity) {
        to.tiles[position] = Key(tile);
        to.items[position] = entry.item;
    }
    // all write the same value: no atomics, and mostly no write
    if (!to.held[tile]) to.held[tile] = 1;
    if (to.depths && !spx::every_pixel_holds(to.depths[tile], entry.depth) && !to.crossed[tile])
        to.crossed[tile] = 1;
}

// Chained scan: each block publishes its own sum, then the sum up to its end; two bits of the
// word tell which. One word holds all that passes between blocks, so no fence is needed.
constexpr Word OWN = Word(1) << 62, COMPLETE = Word(2) << 62, VALUE = OWN - 1;

__device__ void publish(Word* state, Word word) { *static_cast<volatile Word*>(state) = word; }

// Sum of all blocks before `block`; called by one whole warp. states: (blocks,), zeroed. Blocks
// are numbered in the order they started, so that those before are running.
__device__ Word blocks_before(Word* states, long long block, Word sum) {
    const int lane = threadIdx.x % WARP;
    if (lane == 0) publish(states + block, (block ? OWN : COMPLETE) | sum);
    if (block == 0) return 0;
    Word before = 0;
    unsigned complete = 0;
    for (long long last = block - 1; !complete; last -= WARP) {
        const long long at = last - lane;
        Word word = COMPLETE;
        do {
            if (at >= 0) word = *static_cast<volatile Word*>(states + at);
        } while (__any_sync(ALL, word < OWN));
        complete = __ballot_sync(ALL, word >= COMPLETE);
        const int stop = complete ? __ffs(complete) - 1 : WARP - 1;
        before += warp_total(lane <= stop ? word & VALUE : Word(0));
    }
    if (lane == 0) publish(states + block, COMPLETE | (before + sum));
    return before;
}

// Where each warp of the block starts to write. Called by all threads; counts: (WARPS,) shared,
// holds the warps' counts and receives the starts.
__device__ void place_warps(Word* counts, Word* states, long long block, bool last_block,
                            Word* counters) {
    __syncthreads();
    if (threadIdx.x < WARP) {
        const int lane = threadIdx.x;
        const Word count = lane < WARPS ? counts[lane] : 0;
        const Word upto = warp_sums(count);
        const Word sum = __shfl_sync(ALL, upto, WARP - 1);
        const Word before = blocks_before(states, block, sum);
        if (lane < WARPS) counts[lane] = before + upto - count;
        if (lane == 0 && last_block) counters[INSTANCES] = before + sum;
    }
    __syncthreads();
}

// What a splat is for this kernel: columns of Splats.data in three loads.
__device__ void load_splat(const float4* data, int item, float* splat) {
    for (int part = 0; part < 3; ++part)
        reinterpret_cast<float4*>(splat)[part] = __ldg(data + 3LL * item + part);
}

template <class Key>
__device__ void emit(const float4* data, const unsigned* keys, const int* order,
                     const long long* ids, long long n, Word* counters, Word* states,
                     const Emission<Key>& to) {
    __shared__ Entry entries[BLOCK];
    __shared__ Word counts[WARPS];
    __shared__ long long ticket;
    if (threadIdx.x == 0) ticket = atomicAdd(counters + TICKET, Word(1));
    __syncthreads();
    const long long block = ticket, i = block * BLOCK + threadIdx.x;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Entry& mine = entries[threadIdx.x];
    int rows = 0;
    if (i < n) {
        alignas(16) float splat[12];
        mine.item = splat_at(keys, order, ids, n, i, counters + DISORDER);
        load_splat(data, mine.item, splat);
        mine.shape = spx::make_footprint(splat, to.grid);
        mine.depth = splat[9];
        rows = mine.shape.bottom - mine.shape.top + 1;
    }
    const int upto = warp_sums(rows), all = __shfl_sync(ALL, upto, WARP - 1);
    mine.start = upto - rows;
    __syncwarp();
    const Entry* warp_entries = entries + warp * WARP;
    int count = 0;
    for (int j = lane; j < all; j += WARP)
        visit_row(to, warp_entries, j, [&](int, const Entry&) { ++count; });
    count = warp_total(count);
    if (lane == 0) counts[warp] = count;
    place_warps(counts, states, block, block == gridDim.x - 1, counters);
    long long position = counts[warp];
    for (int base = 0; base < all; base += WARP) {  // all lanes stay: they exchange sums
        const int j = base + lane;
        int own = 0;
        if (j < all) visit_row(to, warp_entries, j, [&](int, const Entry&) { ++own; });
        const int sums = warp_sums(own);
        long long next = position + sums - own;
        if (own)
            visit_row(to, warp_entries, j, [&](int tile, const Entry& entry) {
                write_instance(to, tile, entry, next++);
            });
        position += __shfl_sync(ALL, sums, WARP - 1);
    }
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

// ---- cell ----

// Camera.packed() and the bounds of the cell, low then high; a kernel argument by value.
struct View {
    double camera[16], box[6];
};

// What rays need of them, made by one thread of a block.
struct Rays {
    spx::RayView<float> view;
    spx::CellFaces<float> faces;
};

__device__ void make_rays(const View& from, Rays& rays) {
    if (threadIdx.x == 0) {
        rays.view = spx::make_ray_view<float>(from.camera);
        rays.faces = spx::make_cell_faces<float>(from.box, rays.view.center);
    }
    __syncthreads();
}

}  // namespace

// Keys that sort splats by depth, and the splats' own indices.
extern "C" __global__ void depth_keys(const float* data,  // (n, 12)
                                      long long n,
                                      unsigned* keys,  // (n,)
                                      int* order) {    // (n,)
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    keys[i] = sortable(data[12 * i + 9]);
    order[i] = int(i);
}

// Depths inside the cell over the pixels of every live tile. A warp takes a tile at a time.
extern "C" __global__ void __launch_bounds__(BLOCK)
    tile_depths(const View view, int width, int height,
                const unsigned char* mask,  // (tiles,) or null
                Depths* depths) {           // (tiles,)
    __shared__ Rays rays;
    make_rays(view, rays);
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    const int lane = threadIdx.x % WARP, tiles = grid.across * grid.down;
    for (int tile = blockIdx.x * WARPS + threadIdx.x / WARP; tile < tiles;
         tile += gridDim.x * WARPS) {
        if (mask && !mask[tile]) continue;
        Depths d = spx::no_depths<float>();
        for (int pixel = lane; pixel < spx::TILE_PIXELS; pixel += WARP) {
            const spx::TilePixel place = spx::tile_pixel(grid, tile, pixel);
            if (place.inside)
                spx::add_pixel(d, spx::pixel_interval(rays.view, rays.faces, place));
        }
        for (int step = WARP / 2; step; step /= 2) {
            const float first = __shfl_xor_sync(ALL, d.first, step);
            const float last = __shfl_xor_sync(ALL, d.last, step);
            const float common_first = __shfl_xor_sync(ALL, d.common_first, step);
            const float common_last = __shfl_xor_sync(ALL, d.common_last, step);
            d = {spx::minimum(d.first, first), spx::maximum(d.last, last),
                 spx::maximum(d.common_first, common_first),
                 spx::minimum(d.common_last, common_last)};
        }
        if (lane == 0) depths[tile] = d;
    }
}

// Instances front to back, in order of (depth, id) of their splats: one pass that tests, counts,
// scans and writes. Beyond the capacity it only counts. NAME: type of a tile's number.
#define SPX_EMIT(NAME, KEY)                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK) emit_##NAME(                              \
        const float4* data /* (n, 12) float */, const unsigned* keys /* (n,), sorted */,          \
        const int* order /* (n,) */, const long long* ids /* (n,) */, long long n, int width,     \
        int height, const unsigned char* mask /* (tiles,) or null */,                             \
        const Depths* depths /* (tiles,) or null */, long long capacity,                          \
        KEY* tiles /* (capacity,) */, int* items /* (capacity,) */, Word* counters /* (8,), 0 */, \
        Word* states /* (blocks,), 0 */, unsigned char* held /* (tiles,), 0 */,                   \
        unsigned char* crossed /* (tiles,), 0 */) {                                               \
        const Emission<KEY> to = {spx::make_tile_grid(width, height), mask, depths, capacity,     \
                                  tiles, items, held, crossed};                                   \
        emit(data, keys, order, ids, n, counters, states, to);                                    \
    }
SPX_EMIT(uint16, unsigned short)
SPX_EMIT(uint32, unsigned)

// Lists the held tiles in ascending order. One block; a thread takes eight tiles at a time.
extern "C" __global__ void __launch_bounds__(LIST_BLOCK)
    list_held(const Word* held,     // (words,), a byte a tile, the rest 0
              const Word* crossed,  // (words,)
              int words,
              int* tiles,           // (8 words,), the first HELD are set
              int* slots,           // (8 words,), place in tiles of a held tile
              Word* counters) {     // (8,)
    __shared__ int sums[LIST_BLOCK / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int base = 0;
    for (int start = 0; start < words; start += LIST_BLOCK) {
        const int at = start + threadIdx.x;
        const Word word = at < words ? held[at] : 0;
        if (at < words && crossed[at]) counters[CROSSED] = 1;
        const int count = __popcll(word), upto = warp_sums(count);
        __syncthreads();  // the last round has read sums
        if (lane == WARP - 1) sums[warp] = upto;
        __syncthreads();
        const int before = warp_sums(sums[lane]);  // as many warps as lanes
        int place = base + upto - count;
        if (warp) place += __shfl_sync(ALL, before, warp - 1);
        base += __shfl_sync(ALL, before, WARP - 1);
        for (int k = 0; k < 8; ++k)
            if (word >> (8 * k) & 1) {
                tiles[place] = 8 * at + k;
                slots[8 * at + k] = place++;
            }
    }
    if (threadIdx.x == 0) counters[HELD] = base;
}

// Offsets of the held tiles' lists among the sorted instances.
#define SPX_STARTS(NAME, KEY)                                                                  \
    extern "C" __global__ void mark_starts_##NAME(                                             \
        const KEY* keys /* (n,), sorted, 16-byte aligned */, long long n,                      \
        const int* slots /* (tiles,) */, int held, long long* offsets /* (held + 1,) */) {     \
        mark_starts(keys, n, slots, held, offsets);                                            \
    }
SPX_STARTS(uint16, unsigned short)
SPX_STARTS(uint32, unsigned)

// [in, out) of every pixel of the held tiles, row major; empty outside the image.
extern "C" __global__ void __launch_bounds__(spx::TILE_PIXELS)
    pixel_intervals(const View view, int width, int height,
                    const int* tiles,     // (held,)
                    int held,
                    float* intervals) {   // (held, 2, 256)
    __shared__ Rays rays;
    make_rays(view, rays);
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    for (long long k = blockIdx.x; k < held; k += gridDim.x) {
        const spx::TilePixel place = spx::tile_pixel(grid, tiles[k], threadIdx.x);
        spx::Interval<float> z = {float(spx::FARTHEST), float(-spx::FARTHEST)};
        if (place.inside) z = spx::pixel_interval(rays.view, rays.faces, place);
        float* out = intervals + k * 2 * spx::TILE_PIXELS + threadIdx.x;
        out[0] = z.in, out[spx::TILE_PIXELS] = z.out;
    }
}
