// The order in which tiles are walked: about the heaviest first, so that a long list does not
// start when the others end. A counting sort by eight classes an octave, in one block.

#include "counted.cuh"

constexpr int CLASSES = 256;
constexpr int THREADS = 1024;
constexpr int ONE = 127 << 3;  // class bits of 1.0f
constexpr int KINDS = 4, WHOLE = 0, UPPER = 2, LOWER = 3;  // as in raster.cuh
#ifndef RASTER_SEGMENT
#define RASTER_SEGMENT 1024
#endif

// How a tile is walked: by two entries a segment if it is heavy, else by one.
struct Share {
    bool heavy;
    int weight;    // of an entry
    int segments;

    __device__ int entries() const { return heavy ? 2 * segments : 1; }

    // Before a tile was ever walked its list is what it weighs, and nobody knows how far it goes.
    __device__ Share(const long long* offsets, const int* steps, int most, int held) {
        const long long length = offsets[held + 1] - offsets[held];
        heavy = length > most;
        weight = length < 0x7fffffff ? int(length) : 0x7fffffff;
        segments = 1;
        if (!steps) return;
        const int4 upper = reinterpret_cast<const int4*>(steps)[2 * held];
        const int4 lower = reinterpret_cast<const int4*>(steps)[2 * held + 1];
        weight = max(max(max(upper.x, upper.y), max(upper.z, upper.w)),
                     max(max(lower.x, lower.y), max(lower.z, lower.w)));
        if (!heavy) return;
        segments = max(1, (weight + RASTER_SEGMENT - 1) / RASTER_SEGMENT);
        weight = min(weight, RASTER_SEGMENT);
    }

    __device__ int bin() const {
        const int bits = (__float_as_int(float(max(weight, 1))) >> 20) - ONE;
        return CLASSES - 1 - min(max(bits, 0), CLASSES - 1);
    }
};

// Turns counts of classes into where each class starts; returns the sum. One warp.
__device__ int scan(int* starts) {
    constexpr int OWN = CLASSES / 32;
    int sum = 0;
    for (int k = 0; k < OWN; ++k) sum += starts[threadIdx.x * OWN + k];
    int before = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (int(threadIdx.x) >= step) before += other;
    }
    const int total = __shfl_sync(0xffffffffu, before, 31);
    before -= sum;
    for (int k = 0; k < OWN; ++k) {
        const int own = starts[threadIdx.x * OWN + k];
        starts[threadIdx.x * OWN + k] = before;
        before += own;
    }
    return total;
}

// offsets: (held + 1,) int64; steps: (held, 8) int32 of the forward pass, or null; tiles: (1,)
// where fewer tiles than held are in use, or null; most: length of the list of a light tile;
// order: (entries,) int2, held + 2 for every heavy tile or, with steps, every segment of one;
// count: (2,) int32, the entries and zero.
extern "C" __global__ void __launch_bounds__(THREADS)
raster_order(const long long* offsets, const int* steps, int held,
             const unsigned long long* tiles, int most, int2* order, int* count) {
    __shared__ int starts[CLASSES];
    held = int(rows_in_use(held, tiles));
    if (threadIdx.x < CLASSES) starts[threadIdx.x] = 0;
    __syncthreads();
    for (int k = threadIdx.x; k < held; k += THREADS) {
        const Share share(offsets, steps, most, k);
        atomicAdd(&starts[share.bin()], share.entries());
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int total = scan(starts);
        if (threadIdx.x == 0) count[0] = total, count[1] = 0;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < held; k += THREADS) {
        const Share share(offsets, steps, most, k);
        int at = atomicAdd(&starts[share.bin()], share.entries());
        if (!share.heavy) order[at] = make_int2(KINDS * k + WHOLE, 0);
        for (int segment = 0; share.heavy && segment < share.segments; ++segment) {
            order[at++] = make_int2(KINDS * k + UPPER, segment);
            order[at++] = make_int2(KINDS * k + LOWER, segment);
        }
    }
}
