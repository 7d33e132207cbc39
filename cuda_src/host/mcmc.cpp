// Host drivers of MCMC: threads over rows.
#include <omp.h>

#include <cstdint>

#include "math/mcmc.cuh"

namespace {

using namespace spx;

template <typename T>
int64_t regularise(int64_t n, const T* opacities, const T* scales, double opacity, double scale,
                   T* d_opacities, T* d_scales, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < n; ++i)
        regularise_row(T(opacity), T(scale), opacities[i], scales + 3 * i, d_opacities + i,
                       d_scales + 3 * i);
    return 0;
}

template <typename T>
int64_t noise(int64_t n, const int64_t* ids, const T* scales, const T* quats, const T* opacities,
              int64_t seed, int64_t images, double scale, T* means, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t i = 0; i < n; ++i)
        disturb_row(Word(ids[i]), Word(seed), Word(images), T(scale), opacities[i], scales + 3 * i,
                    quats + 4 * i, means + 3 * i);
    return 0;
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                   \
    extern "C" int64_t spx_regularise_##SUFFIX(int64_t n, const T* opacities, const T* scales,   \
                                               double opacity, double scale, T* d_opacities,     \
                                               T* d_scales, int64_t threads) {                   \
        return regularise<T>(n, opacities, scales, opacity, scale, d_opacities, d_scales,        \
                             threads);                                                           \
    }                                                                                            \
    extern "C" int64_t spx_noise_##SUFFIX(int64_t n, const int64_t* ids, const T* scales,        \
                                          const T* quats, const T* opacities, int64_t seed,      \
                                          int64_t images, double scale, T* means,                \
                                          int64_t threads) {                                     \
        return noise<T>(n, ids, scales, quats, opacities, seed, images, scale, means, threads);  \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
