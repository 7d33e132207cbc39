// Rows of 45 SH coefficients between global memory and a warp's share of shared memory. A row
// is 180 bytes: lanes read consecutive values, not a row each. Device only.
#pragma once

#include "compact.cuh"

constexpr int SH_ROW = 45;  // odd, so that lanes reading one column meet no bank conflict
constexpr int WARP_ROWS = 32 * SH_ROW;

// coefficients of bands 1 to DEGREE
template <int DEGREE>
constexpr int SH_USED = 3 * ((DEGREE + 1) * (DEGREE + 1) - 1);

// Starts a copy of one float to shared memory; done after await_copies.
__device__ inline void copy_float(float* to, const float* from) {
#if __CUDA_ARCH__ >= 800
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
#else
    *to = *from;
#endif
}

__device__ inline void await_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncwarp();
}

// Values lane, lane + 32, ... of rows of USED values laid end to end, without a division each.
template <int USED>
struct RowWalk {
    int which = int(threadIdx.x & 31) / USED, column = int(threadIdx.x & 31) % USED;

    __device__ void next() {
        which += 32 / USED;
        column += 32 % USED;
        if (column >= USED) column -= USED, ++which;
    }
};

// Starts copies of the first USED values of 32 rows. row: of this lane, -1 for none;
// source: (n, 45); stage: (32, 45) of this warp.
template <int USED>
__device__ inline void fetch_rows(const float* source, int row, float* stage) {
    if constexpr (USED > 0) {
        RowWalk<USED> at;
#pragma unroll 3  // more would hold the places of all values in registers
        for (int j = 0; j < USED; ++j, at.next()) {
            const int from = __shfl_sync(ALL_LANES, row, at.which);
            const float* value = source + (long long)SH_ROW * from + at.column;
            if (from >= 0) copy_float(stage + SH_ROW * at.which + at.column, value);
        }
    }
}

// Adds the first USED values of stage's 32 rows to rows of target (n, 45). Rows of a launch are
// distinct.
template <int USED>
__device__ inline void add_rows(float* target, int row, const float* stage) {
    if constexpr (USED > 0) {
        // loads in flight at a time: divides 9, 24 and 45
        constexpr int BATCH = USED == 24 ? 8 : 9;
        RowWalk<USED> at;
#pragma unroll 1
        for (int begin = 0; begin < USED; begin += BATCH) {
            float value[BATCH];
            float* place[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; ++j, at.next()) {
                const int to = __shfl_sync(ALL_LANES, row, at.which);
                place[j] = to < 0 ? nullptr : target + (long long)SH_ROW * to + at.column;
                if (place[j]) value[j] = *place[j] + stage[SH_ROW * at.which + at.column];
            }
#pragma unroll
            for (int j = 0; j < BATCH; ++j)
                if (place[j]) *place[j] = value[j];
        }
    }
}
