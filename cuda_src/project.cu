// Projection of Gaussians to splats, SH colour, culling and compaction in ascending row order.
//
// Two launches. `cull` reads means and scales of all rows (24 bytes each) and lists those that
// may be visible; `project_<degree>` reads the rest of those alone and writes the visible ones.
#include "compact.cuh"
#include "math/projection.cuh"
#include "math/sh.cuh"
#include "sh_rows.cuh"

using namespace spx;

typedef View<float> CameraView;

extern "C" __global__ void __launch_bounds__(TEST_THREADS)
cull(long long n,
     const float* __restrict__ means,   // (n, 3)
     const float* __restrict__ scales,  // (n, 3), logarithms
     CameraView view,
     word64* ticket,                    // (1,), zeroed
     word64* state,                     // (ceil(n / 2048),), zeroed
     word64* total,                     // (1,), rows written
     int* candidates) {                 // (n,), ascending rows
    __shared__ TestShared shared;
    keep_rows(n, ticket, state, total, candidates, shared, [&](long long row) {
        float mean[3], scale[3], delta[3], position[3];
        for (int i = 0; i < 3; ++i) mean[i] = means[3 * row + i], scale[i] = scales[3 * row + i];
        view_position(view, mean, delta, position);
        return may_be_visible(view, position, scale);
    });
}

struct GaussianRows {
    const float *means, *scales, *quats, *opacities, *sh0, *shN;
};

constexpr int THREADS = 128, WARPS = THREADS / 32;

struct ProjectShared {
    union {
        float coefficients[WARPS * WARP_ROWS];
        float splats[THREADS * SPLAT];
    };
    int rows[THREADS];
    unsigned counts[WARPS];
    long long tile, base;
};

// Makes values arrive here, so that the loads of all go ahead together: left to itself, the
// compiler loads each where a branch first needs it, one wait for memory after another.
template <int COUNT>
__device__ inline void arrive(float* values) {
    for (int k = 0; k < COUNT; ++k) asm volatile("" : "+f"(values[k]));
}

// Splat of one candidate; coefficients: its bands 1 to DEGREE, on their way to shared memory.
template <int DEGREE>
__device__ inline bool project_row(const GaussianRows& in, const CameraView& view, int row,
                                   const float* coefficients, float* splat) {
    float values[14], delta[3], position[3];
    float *mean = values, *scale = values + 3, *quat = values + 6, *dc = values + 10;
    const long long i = row < 0 ? 0 : row;
    for (int k = 0; k < 3; ++k) {
        mean[k] = in.means[3 * i + k];
        scale[k] = in.scales[3 * i + k];
        dc[k] = in.sh0[3 * i + k];
    }
    for (int k = 0; k < 4; ++k) quat[k] = in.quats[4 * i + k];
    float& logit = values[13];
    logit = in.opacities[i];
    arrive<14>(values);
    view_position(view, mean, delta, position);
    const bool kept = row >= 0 && project_splat(view, position, scale, quat, logit, splat);
    await_copies();
    return kept && sh_colour(DEGREE, delta, dc, coefficients, splat + RED);
}

template <int DEGREE>
__device__ inline void project_tiles(const GaussianRows& in, const CameraView& view,
                                     const long long* ids, const int* candidates,
                                     const word64* count, word64* ticket, word64* state,
                                     word64* total, long long room, int* rows, float* data,
                                     long long* out_ids, ProjectShared& shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const long long n = (long long)*count;
    for (;;) {
        const long long tile = next_tile(ticket, &shared.tile);
        const long long first = tile * THREADS;
        if (first >= n) return;
        const int row = first + threadIdx.x < n ? candidates[first + threadIdx.x] : -1;
        float* stage = shared.coefficients + WARP_ROWS * warp;
        fetch_rows<SH_USED<DEGREE>>(in.shN, row, stage);
        float splat[SPLAT];
        const bool kept = project_row<DEGREE>(in, view, row, stage + SH_ROW * lane, splat);
        const unsigned mask = __ballot_sync(ALL_LANES, kept);
        if (lane == 0) shared.counts[warp] = __popc(mask);
        __syncthreads();  // coefficients make room for splats
        unsigned place = __popc(mask & ((1u << lane) - 1)), kept_here = 0;
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp) place += shared.counts[w];
            kept_here += shared.counts[w];
        }
        if (kept) {
            shared.rows[place] = row;
            float4* to = reinterpret_cast<float4*>(shared.splats + SPLAT * place);
            for (int k = 0; k < 3; ++k)
                to[k] = make_float4(splat[4 * k], splat[4 * k + 1], splat[4 * k + 2],
                                    splat[4 * k + 3]);
        }
        if (warp == 0) {
            const word64 before = sum_before(state, tile, kept_here);
            if (lane == 0) {
                shared.base = (long long)before;
                if (first + THREADS >= n) *total = before + kept_here;
            }
        }
        __syncthreads();
        const long long base = shared.base;
        long long fits = room - base;
        fits = fits < 0 ? 0 : fits < kept_here ? fits : kept_here;
        const float4* from = reinterpret_cast<const float4*>(shared.splats);
        float4* to = reinterpret_cast<float4*>(data + SPLAT * base);
        for (int k = threadIdx.x; k < 3 * int(fits); k += THREADS) to[k] = from[k];
        if (threadIdx.x < fits) {
            const int kept_row = shared.rows[threadIdx.x];
            rows[base + threadIdx.x] = kept_row;
            out_ids[base + threadIdx.x] = ids[kept_row];
        }
    }
}

// Blocks take tiles of 128 candidates until none is left.
#define SPX_PROJECT(DEGREE)                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 9) project_##DEGREE(                   \
        const float* __restrict__ means,     /* (n, 3) */                                        \
        const float* __restrict__ scales,    /* (n, 3) */                                        \
        const float* __restrict__ quats,     /* (n, 4) */                                        \
        const float* __restrict__ opacities, /* (n, 1) */                                        \
        const float* __restrict__ sh0,       /* (n, 3) */                                        \
        const float* __restrict__ shN,       /* (n, 45) */                                       \
        const long long* __restrict__ ids,   /* (n,) */                                          \
        CameraView view,                                                                         \
        const int* __restrict__ candidates,  /* (*count,), ascending rows */                     \
        const word64* count,                 /* (1,) */                                          \
        word64* ticket,                      /* (1,), zeroed */                                  \
        word64* state,                       /* (ceil(n / 128),), zeroed */                      \
        word64* total,                       /* (1,), zeroed; visible rows, room or not */       \
        long long room,                      /* rows that fit the outputs */                     \
        int* rows,                           /* (room,) */                                       \
        float* data,                         /* (room, 12) */                                    \
        long long* out_ids) {                /* (room,) */                                       \
        __shared__ __align__(16) ProjectShared shared;                                           \
        project_tiles<DEGREE>({means, scales, quats, opacities, sh0, shN}, view, ids,            \
                              candidates, count, ticket, state, total, room, rows, data,         \
                              out_ids, shared);                                                  \
    }

SPX_PROJECT(0)
SPX_PROJECT(1)
SPX_PROJECT(2)
SPX_PROJECT(3)
