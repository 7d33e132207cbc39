// Ghosts of all views of a chunk: which splats other cells draw, their records on the way out and
// in, their gradients on the way back. Splats of a chunk lie in arrays of `room` rows a view.
//
// A ghost has a key, cell x views + view, so that sorted ones lie in the order they are sent in.
#include "counted.cuh"
#include "math/common.cuh"

typedef unsigned long long Word;

namespace {

constexpr int TILE = 16;
constexpr int PAIRS = 6;          // pairs of floats of a splat
constexpr int RECORD = PAIRS + 1; // and of a ghost on its way, whose last is the id
constexpr int ROWS = 3;           // pairs of 16 bytes in a row of Splats.data
constexpr int RUN = 3;            // numbers of a run

__device__ __forceinline__ long long this_thread() {
    return blockIdx.x * (long long)blockDim.x + threadIdx.x;
}

// First place in an ascending array whose value is not below `value`.
template <class T>
__device__ long long lower_bound(const T* values, long long n, T value) {
    long long low = 0, high = n;
    while (low < high) {
        const long long middle = (low + high) / 2;
        if (values[middle] < value) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Whether the bits first to last (excluded) have one that is set.
__device__ bool any_bit(const unsigned* bits, int first, int last) {
    for (int word = first >> 5; word << 5 < last; ++word) {
        unsigned found = bits[word];
        if (word == first >> 5) found &= ~0u << (first & 31);
        if (word == (last - 1) >> 5) found &= ~0u >> (31 - ((last - 1) & 31));
        if (found) return true;
    }
    return false;
}

// Rows `to` + i of one array belong to rows `from` + i of another, i under the run's length.
struct Place {
    long long to, from;
};

// The place of item i of all runs; runs: (count, 3): to, from, items of the runs before.
__device__ Place find_place(const long long* runs, int count, long long i) {
    int low = 0, high = count;  // the last run that starts at or before i
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (runs[RUN * middle + 2] <= i) low = middle;
        else high = middle;
    }
    const long long* run = runs + RUN * low;
    return {run[0] + i - run[2], run[1] + i - run[2]};
}

}  // namespace

// Cell that stores each splat of a view, where the splats of each local cell begin, and how many
// the view has. Blocks (x, view).
extern "C" __global__ void own_cells(
    const int* rows,           // (views, room), ascending
    long long room,
    const Word* count,         // (views,) rows in use
    const long long* offsets,  // (cells + 1,) first row of each local cell, and the end
    int cells, int first,      // local cells, number of the first of them
    int* own,                  // (views, room) or null
    long long* ends) {         // (views, cells + 2), the last is the count, room or not
    rows += blockIdx.y * room, count += blockIdx.y, ends += blockIdx.y * (cells + 2);
    if (own) own += blockIdx.y * room;
    const long long used = rows_in_use(room, count), i = this_thread();
    const long long threads = gridDim.x * (long long)blockDim.x;
    for (long long k = i; k <= cells; k += threads)
        ends[k] = lower_bound(rows, used, int(offsets[k]));
    if (i == 0) ends[cells + 1] = (long long)*count;
    if (own && i < used) {
        int low = 0, high = cells;
        while (low < high) {
            const int middle = (low + high) / 2;
            if (offsets[middle + 1] <= rows[i]) low = middle + 1;
            else high = middle;
        }
        own[i] = first + low;
    }
}

// Keys of the ghosts of a view; what meets no live tile and what is not in use sorts last.
extern "C" __global__ void ghost_keys(
    const float4* data,    // (rows, 12) of the view
    const int* index,      // (room,) rows of data
    const int* cell,       // (room,)
    long long room,
    const Word* found,     // (1,) in use
    const unsigned* live,  // (cells, words) bits of the tiles in row-major order, null: all live
    int words, int tiles_x, int tiles_y, int cells, int view, int views,
    unsigned* keys) {      // (room,)
    const long long i = this_thread();
    if (i >= room) return;
    bool wanted = i < rows_in_use(room, found);
    if (wanted && live) {
        const float4* splat = data + ROWS * (long long)index[i];
        const float u = splat[0].x, v = splat[0].y, wide = splat[2].z, high = splat[2].w;
        const auto edge = [](float at, int most) {
            return at > 0 ? at < float(most) ? int(at) : most : 0;
        };
        const int left = edge(floorf((u - wide) / TILE), tiles_x);
        const int right = edge(floorf((u + wide) / TILE) + 1, tiles_x);
        const int top = edge(floorf((v - high) / TILE), tiles_y);
        const int bottom = edge(floorf((v + high) / TILE) + 1, tiles_y);
        const unsigned* bits = live + (long long)words * cell[i];
        wanted = false;
        for (int row = top; row < bottom && left < right && !wanted; ++row)
            wanted = any_bit(bits, row * tiles_x + left, row * tiles_x + right);
    }
    keys[i] = wanted ? unsigned(cell[i]) * views + view : unsigned(cells) * views;
}

// Where each key begins among the sorted ones, and where the ghosts end.
extern "C" __global__ void ghost_starts(const unsigned* keys,  // (n,), sorted
                                        long long n,
                                        int count,             // keys of ghosts are below it
                                        long long* starts) {   // (count + 1,)
    const long long key = this_thread();
    if (key <= count) starts[key] = lower_bound(keys, n, unsigned(key));
}

// What travels of each ghost.
extern "C" __global__ void ghost_records(const float2* data,    // (views x room, 12)
                                         const long long* ids,  // (views x room,)
                                         long long room,
                                         const unsigned* keys,  // (n,)
                                         const int* index,      // (n,) rows of their views
                                         long long n, int views,
                                         float2* records) {     // (n, 14): splat and id
    const long long at = this_thread(), i = at / RECORD;
    const int part = at % RECORD;
    if (i >= n) return;
    const long long row = keys[i] % unsigned(views) * room + index[i];
    records[at] = part < PAIRS ? data[PAIRS * row + part]
                               : *reinterpret_cast<const float2*>(ids + row);
}

// Ghosts that arrived to their places.
extern "C" __global__ void place_ghosts(const float2* records,   // (n, 14)
                                        const long long* runs,   // (count, 3), see find_place
                                        int count, long long n,
                                        int* rows,               // (k,)
                                        float2* data,            // (k, 12)
                                        long long* ids) {        // (k,)
    const long long at = this_thread(), i = at / RECORD;
    const int part = at % RECORD;
    if (i >= n) return;
    const Place place = find_place(runs, count, i);
    const float2 value = records[RECORD * place.from + part];
    if (part < PAIRS) {
        data[PAIRS * place.to + part] = value;
    } else {
        *reinterpret_cast<float2*>(ids + place.to) = value;
        rows[place.to] = -1;
    }
}

// Splats of several local cells to places with room for the cells' ghosts behind them.
extern "C" __global__ void copy_splats(const int* rows,          // (m,)
                                       const float2* data,       // (m, 12)
                                       const long long* ids,     // (m,)
                                       const long long* runs,    // (count, 3), see find_place
                                       int count, long long n,
                                       int* rows_to,             // (k,)
                                       float2* data_to,          // (k, 12)
                                       long long* ids_to) {      // (k,)
    const long long at = this_thread(), i = at / RECORD;
    const int part = at % RECORD;
    if (i >= n) return;
    const Place place = find_place(runs, count, i);
    if (part < PAIRS) {
        data_to[PAIRS * place.to + part] = data[PAIRS * place.from + part];
    } else {
        ids_to[place.to] = ids[place.from];
        rows_to[place.to] = rows[place.from];
    }
}

// Gradients of the rows of runs the other way: row `to` of gradients into row `from` of out.
extern "C" __global__ void take_rows(const float* gradients,  // (k, width)
                                     const long long* runs,   // (count, 3), see find_place
                                     int count, long long n, int width,
                                     float* out) {            // (m, width)
    const long long at = this_thread(), i = at / width;
    const int column = int(at % width);
    if (i >= n) return;
    const Place place = find_place(runs, count, i);
    out[place.from * width + column] = gradients[place.to * width + column];
}

// Adds the gradients of the ghosts first to last (excluded). A splat is there once at most.
extern "C" __global__ void add_ghosts(const float* returned,   // (n, width)
                                      const unsigned* keys,    // (n,)
                                      const int* index,        // (n,)
                                      long long first, long long last,
                                      int views, long long room, int width,
                                      float* out) {            // (views x room, width)
    const long long at = this_thread(), i = first + at / width;
    const int column = int(at % width);
    if (i >= last) return;
    const long long row = keys[i] % unsigned(views) * room + index[i];
    out[row * width + column] += returned[i * width + column];
}

// Sets out to NaN if a value is not finite.
extern "C" __global__ void check_finite(const float* values,  // (n,)
                                        long long n,
                                        float* out) {         // (1,)
    const long long threads = gridDim.x * (long long)blockDim.x;
    bool broken = false;
    for (long long i = this_thread(); i < n; i += threads)
        broken |= !(fabsf(values[i]) <= 3.402823466e38f);
    if (broken) *out = __int_as_float(0x7fffffff);
}
