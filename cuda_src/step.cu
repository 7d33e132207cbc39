// Losses of a view, and whole steps without the host: whether a view fits its arrays, and what it
// adds to the tally.
#include "counted.cuh"

typedef unsigned long long Word;

namespace {

constexpr int THREADS = 1024, WARP = 32, WARPS = THREADS / WARP;
constexpr int SUMS = 3;  // of a tile, see loss.cu

// As in tiles.cu.
enum Counter { ROWS = 2, INSTANCES = 3, HELD = 4, DISORDER = 5 };

// Words of the tally, see cuda_tally.py. The needs are those of the largest view.
enum Tally { STOP, DONE, VISIBLE, NEED_SPLATS, NEED_ROWS, NEED_INSTANCES };

__device__ void raise(Word& most, Word value) { if (value > most) most = value; }

// Sums (tiles, 3) of the tiles that are counted (null: all), in a fixed order: of column k in
// thread k. One block.
__device__ double sum_tiles(const double* sums, int tiles, const unsigned char* counted) {
    __shared__ double parts[WARPS][SUMS];
    double own[SUMS] = {};
    for (int tile = threadIdx.x; tile < tiles; tile += THREADS)
        if (!counted || counted[tile])
            for (int k = 0; k < SUMS; ++k) own[k] += sums[(long long)tile * SUMS + k];
    for (int k = 0; k < SUMS; ++k) {
        for (int step = WARP / 2; step; step /= 2)
            own[k] += __shfl_xor_sync(0xffffffffu, own[k], step);
        if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP][k] = own[k];
    }
    __syncthreads();
    double total = 0;
    if (threadIdx.x < SUMS)
        for (int warp = 0; warp < WARPS; ++warp) total += parts[warp][threadIdx.x];
    return total;
}

}  // namespace

// Stops everything that follows when a view did not fit, and has nothing of it drawn. One thread.
extern "C" __global__ void check_room(
    const Word* visible,  // (1,)
    Word* counters,       // (8,), see tiles.cu
    long long splats, long long rows, long long instances,  // what there is room for
    Word* tally,          // (6,)
    Word* alarm) {        // (1,) of the host's memory, set to 1
    raise(tally[NEED_SPLATS], *visible);
    raise(tally[NEED_ROWS], counters[ROWS]);
    raise(tally[NEED_INSTANCES], counters[INSTANCES]);
    const bool fits = *visible <= Word(splats) && counters[ROWS] <= Word(rows) &&
                      counters[INSTANCES] <= Word(instances) && !counters[DISORDER];
    if (!fits && !tally[STOP]) {
        tally[STOP] = 1;
        *alarm = 1;
        __threadfence_system();
    }
    // lists of a tile that lack instances have no beginning
    if (tally[STOP]) counters[HELD] = counters[INSTANCES] = 0;
}

// Adds the losses of a view's tiles in a fixed order, and counts the view; tells the host of
// numbers that are not finite. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
end_view(const double* sums,   // (tiles, 3)
         int tiles,
         double scale,
         long long room,
         const Word* visible,  // (1,), or null: room
         Word* tally,          // (6,)
         double* losses,       // (views, 3)
         const int* broken,    // (groups,) flags of Adam
         int groups,
         Word* alarm) {        // (1,) of the host's memory, set to 1 where a flag is raised
    if (is_stopped(tally + STOP)) return;
    if (threadIdx.x < groups && broken[threadIdx.x]) {
        *alarm = 1;
        __threadfence_system();
    }
    const double total = sum_tiles(sums, tiles, nullptr);
    if (threadIdx.x >= SUMS) return;
    losses[tally[DONE] * SUMS + threadIdx.x] = scale * total;
    __syncwarp((1u << SUMS) - 1);
    if (threadIdx.x == 0) {
        tally[VISIBLE] += rows_in_use(room, visible);
        ++tally[DONE];
    }
}

// Losses of the tiles of a view that a rank counts. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
share_of_view(const double* sums,            // (tiles, 3)
              int tiles,
              const unsigned char* counted,  // (tiles,) 0 or 1
              double values,                 // by which sums are divided
              double* out) {                 // (3,)
    const double total = sum_tiles(sums, tiles, counted);
    if (threadIdx.x < SUMS) out[threadIdx.x] = total / values;
}

// Forgets which rows a batch saw.
extern "C" __global__ void clear_seen(unsigned char* seen,  // (n,)
                                      long long n,
                                      const Word* stop) {   // (1,)
    if (is_stopped(stop)) return;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x)
        seen[i] = 0;
}
