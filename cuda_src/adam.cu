// Adam on any number of parameter groups in one launch. Bound by memory: four arrays read and
// three written once, 16 bytes a thread and access.
#include "adam_groups.cuh"
#include "counted.cuh"

constexpr int THREADS = 256;

// Four consecutive values; only the first `count` exist.
__device__ inline void load_four(const float* from, int count, float* to) {
    if (count == 4) {
        const float4 value = *reinterpret_cast<const float4*>(from);
        to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
    } else {
        for (int k = 0; k < 4; ++k) to[k] = k < count ? from[k] : 0.0f;
    }
}

__device__ inline void store_four(const float* from, int count, float* to) {
    if (count == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
    } else {
        for (int k = 0; k < 4; ++k)
            if (k < count) to[k] = from[k];
    }
}

// Bit k: value k of the four, from `at` values behind the block's first row, is to be updated.
__device__ inline unsigned wanted(const unsigned char* seen, unsigned at, unsigned width,
                                  int count) {
    unsigned bits = (1u << count) - 1;
    if (!seen) return bits;
    unsigned row = at / width, column = at - row * width;
    for (int k = 0; k < 4; ++k) {
        if (k < count && !seen[row]) bits &= ~(1u << k);
        if (++column == width) column = 0, ++row;
    }
    return bits;
}

extern "C" __global__ void __launch_bounds__(THREADS)
adam(long long rows,
     int groups,
     AdamGroups all,
     const unsigned char* __restrict__ seen,  // (rows,) or null: all rows
     int clear,                               // set gradients that were used to zero
     int* broken,                             // (groups,) or null: 1 where values are not finite
     const unsigned long long* stop) {        // (1,) or null, see counted.cuh
    if (is_stopped(stop)) return;
    int which = 0;
    while (which + 1 < groups && blockIdx.x >= all.group[which + 1].first_block) ++which;
    const AdamGroup group = all.group[which];
    const long long first_row = (blockIdx.x - group.first_block) * group.rows_a_block;
    const long long left = rows - first_row;
    const unsigned width = group.width;
    const unsigned values = unsigned(left < group.rows_a_block ? left : group.rows_a_block) * width;
    const long long base = first_row * width;
    const unsigned char* seen_here = seen ? seen + first_row : nullptr;
    bool finite = true;
    for (unsigned at = 4 * threadIdx.x; at < values; at += 4 * THREADS) {
        const int count = values - at < 4 ? int(values - at) : 4;
        const unsigned bits = wanted(seen_here, at, width, count);
        if (!bits) continue;
        const long long place = base + at;
        float p[4], g[4], m[4], v[4];
        load_four(group.parameter + place, count, p);
        load_four(group.gradient + place, count, g);
        load_four(group.first + place, count, m);
        load_four(group.second + place, count, v);
        for (int k = 0; k < 4; ++k)
            if (bits >> k & 1) {
                finite &= adam_update(group.step, g[k], p[k], m[k], v[k]);
                g[k] = 0.0f;
            }
        store_four(p, count, group.parameter + place);
        store_four(m, count, group.first + place);
        store_four(v, count, group.second + place);
        if (clear) store_four(g, count, group.gradient + place);
    }
    if (broken && !finite) broken[which] = 1;  // all that write, write the same
}
