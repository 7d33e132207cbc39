// What the backward kernels of projection share: rows of splats and densification statistics.
// Device only.
#pragma once

#include "compact.cuh"
#include "counted.cuh"
#include "math/projection.cuh"
#include "math/sh.cuh"
#include "sh_rows.cuh"

using namespace spx;

typedef View<float> CameraView;

template <int COUNT>
__device__ inline void load(const float* from, float* to) {
    for (int k = 0; k < COUNT; ++k) to[k] = from[k];
}

// data: (n, 12) in groups of four
__device__ inline void load_splat(const float4* data, long long k, float* splat) {
    for (int j = 0; j < 3; ++j) {
        const float4 part = data[3 * k + j];
        splat[4 * j] = part.x, splat[4 * j + 1] = part.y;
        splat[4 * j + 2] = part.z, splat[4 * j + 3] = part.w;
    }
}

struct Statistics {
    unsigned char* seen;
    float* norm;
    int* count;
};

// What the view says of a splat whatever its gradient. Returns whether that is not zero.
// absolute: (2,) sums of absolute gradients for the norm, or null.
__device__ inline bool take_statistics(const CameraView& view, int row, const float* g,
                                       const Statistics& out, const float* absolute = nullptr) {
    if (out.seen) out.seen[row] = 1;
    if (out.count) out.count[row] += 1;
    bool any = false;
    for (int k = 0; k < SPLAT_GRADIENT; ++k) any |= g[k] != 0.0f;
    // splats behind saturated pixels come back with nothing
    if (any && out.norm) {
        const float du = view.width / 2 * (absolute ? absolute[0] : g[U]);
        const float dv = view.height / 2 * (absolute ? absolute[1] : g[V]);
        out.norm[row] += sqrtf(du * du + dv * dv);
    }
    return any;
}
