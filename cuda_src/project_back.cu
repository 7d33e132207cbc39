// Gradients of splats carried to the Gaussians of their rows, with densification statistics.
#include "splat_rows.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

struct GaussianRows {
    const float *means, *scales, *quats, *opacities, *sh0, *shN;
};

struct GradientRows {
    float *means, *scales, *quats, *opacities, *sh0, *shN;
};

// from[k] + change[k], loads before stores
template <int COUNT>
__device__ inline void add(float* to, const float* change) {
    float value[COUNT];
    load<COUNT>(to, value);
    for (int k = 0; k < COUNT; ++k) to[k] = value[k] + change[k];
}

// Gradient of the colour. Leaves that of bands 1 to DEGREE in stage, one row a lane, and adds
// to dc and d_delta. The lane's coefficients are in stage before.
template <int DEGREE>
__device__ inline void colour_backward(const float* delta, float* stage, const float* colour,
                                       const float* g, float* d_dc, float* d_delta) {
    constexpr int USED = SH_USED<DEGREE>;
    float d_rest[USED ? USED : 1] = {};
    sh_colour_backward(DEGREE, delta, stage, colour, g, d_dc, d_rest, d_delta);
    for (int k = 0; k < USED; ++k) stage[k] = d_rest[k];
}

// One splat a thread; shN is moved by whole warps.
template <int DEGREE>
__device__ inline void project_backward(const GaussianRows& in, const CameraView& view,
                                        long long n, long long visible, const int* rows,
                                        const float4* data, const float* gradient,
                                        int columns, const GradientRows& out,
                                        const Statistics& statistics, float* stage) {
    constexpr int USED = SH_USED<DEGREE>;
    const long long k = (long long)blockIdx.x * THREADS + threadIdx.x;
    const int lane = threadIdx.x & 31;
    long long row = k < visible ? rows[k] : -1;
    float g[SPLAT_GRADIENT] = {};
    bool moves = false;
    if (row >= 0 && row < n) {
        const float* own = gradient + columns * k;
        load<SPLAT_GRADIENT>(own, g);
        moves = take_statistics(view, int(row), g, statistics,
                                columns > SPLAT_GRADIENT ? own + SPLAT_GRADIENT : nullptr);
    }
    const bool coloured = moves && (g[RED] != 0.0f || g[GREEN] != 0.0f || g[BLUE] != 0.0f);
    const int sh_row = coloured ? int(row) : -1;
    fetch_rows<USED>(in.shN, sh_row, stage);
    if (!moves) row = 0;  // loads something, stores nothing
    float splat[SPLAT], mean[3], delta[3], position[3], d_delta[3] = {};
    load_splat(data, moves ? k : 0, splat);
    load<3>(in.means + 3 * row, mean);
    view_position(view, mean, delta, position);
    await_copies();
    if (coloured) {
        float d_dc[3] = {};
        colour_backward<DEGREE>(delta, stage + SH_ROW * lane, splat + RED, g + RED, d_dc, d_delta);
        add<3>(out.sh0 + 3 * row, d_dc);
    }
    __syncwarp();
    add_rows<USED>(out.shN, sh_row, stage);
    if (!moves) return;
    float scale[3], quat[4], d_scale[3] = {}, d_quat[4] = {}, d_logit = 0;
    load<3>(in.scales + 3 * row, scale);
    load<4>(in.quats + 4 * row, quat);
    project_splat_backward(view, position, scale, quat, splat, g, d_delta, d_scale, d_quat,
                           &d_logit);
    add<3>(out.means + 3 * row, d_delta);
    add<3>(out.scales + 3 * row, d_scale);
    add<4>(out.quats + 4 * row, d_quat);
    add<1>(out.opacities + row, &d_logit);
}

// Rows are distinct; rows outside 0 to n - 1 are passed over.
#define SPX_PROJECT_BACKWARD(DEGREE)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 8) project_backward_##DEGREE(          \
        long long n,                                                                             \
        const float* __restrict__ means,     /* (n, 3) */                                        \
        const float* __restrict__ scales,    /* (n, 3) */                                        \
        const float* __restrict__ quats,     /* (n, 4) */                                        \
        const float* __restrict__ opacities, /* (n, 1) */                                        \
        const float* __restrict__ sh0,       /* (n, 3) */                                        \
        const float* __restrict__ shN,       /* (n, 45) */                                       \
        CameraView view,                                                                         \
        long long room,                                                                          \
        const word64* visible,               /* (1,), or null: room */                           \
        const int* __restrict__ rows,        /* (room,) */                                       \
        const float4* __restrict__ data,     /* (room, 12) */                                    \
        const float* __restrict__ gradient,  /* (room, columns) */                               \
        int columns,                         /* 9, or 11 with absolute sums */                   \
        float* d_means,                      /* (n, 3), added to, as all below */                \
        float* d_scales,                     /* (n, 3) */                                        \
        float* d_quats,                      /* (n, 4) */                                        \
        float* d_opacities,                  /* (n, 1) */                                        \
        float* d_sh0,                        /* (n, 3) */                                        \
        float* d_shN,                        /* (n, 45) */                                       \
        unsigned char* seen,                 /* (n,), set to 1 */                                \
        float* norm,                         /* (n,) or null */                                  \
        int* count,                          /* (n,) or null */                                  \
        const word64* stop) {                /* (1,) or null, see counted.cuh */                 \
        __shared__ float stage[DEGREE ? WARPS * WARP_ROWS : 1];                                  \
        const long long used = rows_in_use(room, visible);                                       \
        if (is_stopped(stop) || (long long)blockIdx.x * THREADS >= used) return;                 \
        project_backward<DEGREE>({means, scales, quats, opacities, sh0, shN}, view, n, used,     \
                                 rows, data, gradient, columns,                                  \
                                 {d_means, d_scales, d_quats, d_opacities, d_sh0, d_shN},        \
                                 {seen, norm, count},                                            \
                                 stage + (DEGREE ? WARP_ROWS * (threadIdx.x / 32) : 0));         \
    }

SPX_PROJECT_BACKWARD(0)
SPX_PROJECT_BACKWARD(1)
SPX_PROJECT_BACKWARD(2)
SPX_PROJECT_BACKWARD(3)
