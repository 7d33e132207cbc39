// Gradients of one view's splats carried to the parameters and used at once by Adam: they are
// never stored. For steps to which one view of one rank contributes, with selective Adam.
#include "adam_groups.cuh"
#include "splat_rows.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;

// group of each parameter, in the order of scene/gaussians.py
enum GroupOrder { MEANS, SCALES, QUATS, OPACITIES, SH_DC, SH_REST };

// Factors of a row's SH gradient, (degree + 1)^2 - 1 values of the basis and 3 of the colour:
// odd, against bank conflicts.
constexpr int FACTORS = 19, COLOUR_AT = 15;

struct WarpStage {
    float coefficients[WARP_ROWS];
    float factors[32 * FACTORS];
};

// Values of a row before shN, group after group, and where each group begins.
constexpr int ROW_VALUES = 14;
enum RowPlace { MEAN_AT = 0, SCALE_AT = 3, QUAT_AT = 6, LOGIT_AT = 10, DC_AT = 11 };

// Calls visit(group, value of the row, address in the group's arrays) for each of these values.
template <typename Visit>
__device__ inline void each_value(long long row, Visit visit) {
    constexpr int WIDTHS[] = {3, 3, 4, 1, 3};
    int at = 0;
#pragma unroll
    for (int group = MEANS; group <= SH_DC; ++group)
#pragma unroll
        for (int k = 0; k < WIDTHS[group]; ++k) visit(group, at++, WIDTHS[group] * row + k);
}

// One Adam step on these values; all loads before the first store. Raises the flags (6,) of groups
// of which a value is not finite, or none where broken is null.
__device__ inline void update_row(const AdamGroups& all, long long row, const float* gradient,
                                  int* broken) {
    float p[ROW_VALUES], m[ROW_VALUES], v[ROW_VALUES];
    unsigned wrong = 0;  // a bit a group
    each_value(row, [&](int group, int at, long long place) {
        p[at] = all.group[group].parameter[place];
        m[at] = all.group[group].first[place];
        v[at] = all.group[group].second[place];
    });
    each_value(row, [&](int group, int at, long long place) {
        if (!adam_update(all.group[group].step, gradient[at], p[at], m[at], v[at]))
            wrong |= 1u << group;
        all.group[group].parameter[place] = p[at];
        all.group[group].first[place] = m[at];
        all.group[group].second[place] = v[at];
    });
    if (!broken || !wrong) return;
    for (int group = MEANS; group <= SH_DC; ++group)
        if (wrong >> group & 1) broken[group] = 1;  // all that write, write the same
}

// One Adam step on the shN of 32 rows by a whole warp; lanes take consecutive values. The flag
// is that of update_row.
template <int DEGREE>
__device__ inline void update_coefficients(const AdamGroup& group, int row,
                                           const WarpStage& stage, int* broken) {
    constexpr int BATCH = 9;
    bool finite = true;
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    for (int begin = 0; begin < SH_ROW; begin += BATCH) {
        float m[BATCH], v[BATCH];
        long long place[BATCH];
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            const int at = 32 * (begin + j) + lane, which = at / SH_ROW;
            const int to = __shfl_sync(ALL_LANES, row, which);
            place[j] = to < 0 ? -1 : (long long)SH_ROW * to + at % SH_ROW;
            if (to < 0) continue;
            m[j] = group.first[place[j]];
            v[j] = group.second[place[j]];
        }
#pragma unroll
        for (int j = 0; j < BATCH; ++j) {
            if (place[j] < 0) continue;
            const int at = 32 * (begin + j) + lane, which = at / SH_ROW, column = at % SH_ROW;
            const float* factors = stage.factors + FACTORS * which;
            float p = stage.coefficients[at], g = 0.0f;
            if (column < SH_USED<DEGREE>) g = factors[column / 3] * factors[COLOUR_AT + column % 3];
            finite &= adam_update(group.step, g, p, m[j], v[j]);
            group.parameter[place[j]] = p;
            group.first[place[j]] = m[j];
            group.second[place[j]] = v[j];
        }
    }
    if (broken && !finite) broken[SH_REST] = 1;
}

// Gradients of a row, to out: of all but shN, whose factors go to the stage.
template <int DEGREE>
__device__ inline void row_backward(const AdamGroups& all, const CameraView& view, long long row,
                                    const float* splat, const float* g, const float* coefficients,
                                    float* factors, float* out) {
    float mean[3], scale[3], quat[4], delta[3], position[3], unit[3], inverse, b[SH_TERMS];
    load<3>(all.group[MEANS].parameter + 3 * row, mean);
    load<3>(all.group[SCALES].parameter + 3 * row, scale);
    load<4>(all.group[QUATS].parameter + 4 * row, quat);
    view_position(view, mean, delta, position);
    sh_direction(delta, unit, inverse);
    sh_factors(DEGREE, unit, splat + RED, g + RED, b, factors + COLOUR_AT);
    sh_direction_backward(DEGREE, unit, inverse, coefficients, factors + COLOUR_AT,
                          out + MEAN_AT);
    for (int k = 1; k < (DEGREE + 1) * (DEGREE + 1); ++k) factors[k - 1] = b[k];
    for (int c = 0; c < 3; ++c) out[DC_AT + c] = b[0] * factors[COLOUR_AT + c];
    project_splat_backward(view, position, scale, quat, splat, g, out + MEAN_AT,
                           out + SCALE_AT, out + QUAT_AT, out + LOGIT_AT);
}

template <int DEGREE>
__device__ inline void project_adam(const AdamGroups& all, const CameraView& view, long long n,
                                    long long visible, const int* rows, const float4* data,
                                    const float* gradient, const Statistics& statistics,
                                    WarpStage& stage, int* broken) {
    const long long k = (long long)blockIdx.x * THREADS + threadIdx.x;
    const int lane = threadIdx.x & 31;
    int row = k < visible ? rows[k] : -1;
    if (row >= n) row = -1;
    fetch_rows<SH_ROW>(all.group[SH_REST].parameter, row, stage.coefficients);
    float* factors = stage.factors + FACTORS * lane;
    float out[ROW_VALUES] = {};
    float g[SPLAT_GRADIENT] = {}, splat[SPLAT];
    bool moves = false;
    if (row >= 0) {
        load<SPLAT_GRADIENT>(gradient + SPLAT_GRADIENT * k, g);
        moves = take_statistics(view, row, g, statistics);
        load_splat(data, k, splat);
    }
    await_copies();
    if (moves)
        row_backward<DEGREE>(all, view, row, splat, g, stage.coefficients + SH_ROW * lane, factors,
                             out);
    else
        for (int j = 0; j < FACTORS; ++j) factors[j] = 0.0f;
    // a visible row without a gradient still follows its moments
    if (row >= 0) update_row(all, row, out, broken);
    __syncwarp();
    update_coefficients<DEGREE>(all.group[SH_REST], row, stage, broken);
}

// Rows are distinct; rows outside 0 to n - 1 are passed over.
#define SPX_PROJECT_ADAM(DEGREE)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 5) project_adam_##DEGREE(              \
        long long n,                                                                             \
        AdamGroups all, /* means, scales, quats, opacities, sh0, shN; no gradients */            \
        CameraView view,                                                                         \
        long long room,                                                                          \
        const word64* visible,              /* (1,), or null: room */                            \
        const int* __restrict__ rows,       /* (room,) */                                        \
        const float4* __restrict__ data,    /* (room, 12) */                                     \
        const float* __restrict__ gradient, /* (room, 9) */                                      \
        unsigned char* seen,                /* (n,) or null, set to 1 */                         \
        float* norm,                        /* (n,) or null, added to */                         \
        int* count,                         /* (n,) or null, added to */                         \
        int* broken,                        /* (6,) or null: 1 where values are not finite */    \
        const word64* stop) {               /* (1,) or null, see counted.cuh */                  \
        __shared__ WarpStage stages[WARPS];                                                      \
        const long long used = rows_in_use(room, visible);                                       \
        if (is_stopped(stop) || (long long)blockIdx.x * THREADS >= used) return;                 \
        project_adam<DEGREE>(all, view, n, used, rows, data, gradient, {seen, norm, count},      \
                             stages[threadIdx.x / 32], broken);                                  \
    }

SPX_PROJECT_ADAM(0)
SPX_PROJECT_ADAM(1)
SPX_PROJECT_ADAM(2)
SPX_PROJECT_ADAM(3)
