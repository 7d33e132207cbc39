// Host driver of the optimizer: rows are split over threads, runs of seen rows are one flat loop.
// Functions return whether a value that they updated is no longer finite.
#include <omp.h>

#include <cstdint>

#include "math/adam.cuh"

namespace {

using namespace spx;

template <typename T>
inline __attribute__((always_inline)) bool update_run(const AdamStep<T>& step, int64_t count,
                                                      T* __restrict parameter,
                                                      T* __restrict gradient,
                                                      T* __restrict first, T* __restrict second,
                                                      bool clear) {
    int broken = 0;
    if (clear) {
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) {
            broken |= !adam_update(step, gradient[i], parameter[i], first[i], second[i]);
            gradient[i] = 0;
        }
    } else {
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i)
            broken |= !adam_update(step, gradient[i], parameter[i], first[i], second[i]);
    }
    return broken;
}

template <typename T>
__attribute__((target("avx2"), flatten)) bool update_avx2(const AdamStep<T>& step, int64_t count,
                                                          T* parameter, T* gradient, T* first,
                                                          T* second, bool clear) {
    return update_run(step, count, parameter, gradient, first, second, clear);
}

template <typename T>
__attribute__((flatten)) bool update_base(const AdamStep<T>& step, int64_t count, T* parameter,
                                          T* gradient, T* first, T* second, bool clear) {
    return update_run(step, count, parameter, gradient, first, second, clear);
}

template <typename T>
bool update_rows(const AdamStep<T>& step, int64_t begin, int64_t end, int64_t width, T* parameter,
                 T* gradient, T* first, T* second, const uint8_t* seen, bool clear) {
    const auto update = __builtin_cpu_supports("avx2") ? update_avx2<T> : update_base<T>;
    int64_t row = begin;
    bool broken = false;
    while (row < end) {
        while (seen && row < end && !seen[row]) ++row;
        int64_t stop = row;
        while (stop < end && (!seen || seen[stop])) ++stop;
        const int64_t at = row * width;
        broken |= update(step, (stop - row) * width, parameter + at, gradient + at, first + at,
                         second + at, clear);
        row = stop;
    }
    return broken;
}

template <typename T>
int64_t adam(int64_t rows, int64_t width, T* parameter, T* gradient, T* first, T* second,
             const uint8_t* seen, double rate, double beta1, double beta2, double epsilon,
             double count, double scale, bool clear, int32_t* broken, int64_t threads) {
    const AdamStep<T> step = make_adam_step<T>(rate, beta1, beta2, epsilon, count, scale);
    bool any = false;
#pragma omp parallel for num_threads(threads) schedule(static, 1) reduction(| : any) \
    if (threads > 1)
    for (int64_t k = 0; k < threads; ++k)
        any |= update_rows(step, rows * k / threads, rows * (k + 1) / threads, width, parameter,
                           gradient, first, second, seen, clear);
    if (broken && any) *broken = 1;
    return 0;
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                   \
    extern "C" int64_t spx_adam_##SUFFIX(int64_t rows, int64_t width, T* parameter,              \
                                         T* gradient, T* first, T* second, const uint8_t* seen,  \
                                         double rate, double beta1, double beta2,                \
                                         double epsilon, double step, double scale,              \
                                         int64_t clear, int32_t* broken, int64_t threads) {      \
        return adam<T>(rows, width, parameter, gradient, first, second, seen, rate, beta1,       \
                       beta2, epsilon, step, scale, clear != 0, broken, threads);                \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
