// Host drivers of composition: threads over tiles, loops over the 256 pixels vectorise.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "math/compose.cuh"

namespace {

using namespace spx;

constexpr int64_t SIDE = 16, PIXELS = SIDE * SIDE, PARTIAL = 4 * PIXELS, COLOUR = 3 * PIXELS;

// passed: P before each layer that has something, one row a layer; row `count` is P_end.
template <typename T>
void compose_tile(const T* pool, const int32_t* slots, int64_t layers, const T* background,
                  T* __restrict image, T* __restrict passed) {
    for (int64_t i = 0; i < COLOUR; ++i) image[i] = T(0);
    for (int64_t i = 0; i < PIXELS; ++i) passed[i] = T(1);
    for (int64_t m = 0; m < layers; ++m) {
        if (slots[m] < 0) continue;
        const T* partial = pool + PARTIAL * slots[m];
        for (int c = 0; c < 3; ++c)
            for (int64_t i = 0; i < PIXELS; ++i)
                image[PIXELS * c + i] = compose_over(passed[i], partial[PIXELS * c + i],
                                                     image[PIXELS * c + i]);
        for (int64_t i = 0; i < PIXELS; ++i) passed[i] *= partial[COLOUR + i];
    }
    for (int c = 0; c < 3; ++c)
        for (int64_t i = 0; i < PIXELS; ++i)
            image[PIXELS * c + i] = compose_over(passed[i], background[c], image[PIXELS * c + i]);
}

// passed: row m is P before layer m; the product of all before, whether or not m has something.
template <typename T>
void passed_before(const T* pool, const int32_t* slots, int64_t layers, T* passed) {
    for (int64_t i = 0; i < PIXELS; ++i) passed[i] = T(1);
    for (int64_t m = 0; m + 1 < layers; ++m) {
        const T* __restrict here = passed + PIXELS * m;
        T* __restrict next = passed + PIXELS * (m + 1);
        const T* t = slots[m] < 0 ? nullptr : pool + PARTIAL * slots[m] + COLOUR;
        for (int64_t i = 0; i < PIXELS; ++i) next[i] = t ? here[i] * t[i] : here[i];
    }
}

// One layer of the backward pass: its result, if wanted, then `behind` moves in front of it.
template <typename T>
void layer_backward(const T* partial, const T* gradient, const T* __restrict passed,
                    T* __restrict behind, T* __restrict out) {
    if (out) {
        for (int c = 0; c < 3; ++c)
            for (int64_t i = 0; i < PIXELS; ++i)
                out[PIXELS * c + i] = compose_colour_backward(passed[i], gradient[PIXELS * c + i]);
        for (int64_t i = 0; i < PIXELS; ++i) {
            const T g[3] = {gradient[i], gradient[PIXELS + i], gradient[2 * PIXELS + i]};
            const T s[3] = {behind[i], behind[PIXELS + i], behind[2 * PIXELS + i]};
            out[COLOUR + i] = compose_transmittance_backward(passed[i], g, s);
        }
    }
    for (int c = 0; c < 3; ++c)
        for (int64_t i = 0; i < PIXELS; ++i)
            behind[PIXELS * c + i] = colour_behind(partial[PIXELS * c + i], partial[COLOUR + i],
                                                   behind[PIXELS * c + i]);
}

// out: largest P before each layer and behind the last one, over the wide x high pixels of the
// tile that lie in the image.
template <typename T>
void tile_residuals(const T* pool, const int32_t* slots, int64_t layers, int64_t wide,
                    int64_t high, T* __restrict out) {
    T passed[PIXELS];
    for (int64_t i = 0; i < PIXELS; ++i) passed[i] = T(1);
    for (int64_t m = 0; m <= layers; ++m) {
        T most = 0;
        for (int64_t y = 0; y < high; ++y)
            for (int64_t x = 0; x < wide; ++x) most = std::max(most, passed[SIDE * y + x]);
        out[m] = most;
        if (m == layers || slots[m] < 0) continue;
        const T* t = pool + PARTIAL * slots[m] + COLOUR;
        for (int64_t i = 0; i < PIXELS; ++i) passed[i] *= t[i];
    }
}

template <typename T>
int64_t residuals(const T* pool, const int32_t* slots, int64_t count, int64_t layers,
                  const int32_t* tiles, int64_t width, int64_t height, T* out, int64_t threads) {
    const int64_t tiles_x = (width + SIDE - 1) / SIDE;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const int64_t x = tiles[k] % tiles_x * SIDE, y = tiles[k] / tiles_x * SIDE;
        tile_residuals(pool, slots + layers * k, layers, std::min(SIDE, width - x),
                       std::min(SIDE, height - y), out + (layers + 1) * k);
    }
    return 0;
}

template <typename T>
int64_t compose(const T* pool, const int32_t* slots, int64_t tiles, int64_t layers,
                const T* background, T* image, T* transmittance, int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < tiles; ++k)
        compose_tile(pool, slots + layers * k, layers, background, image + COLOUR * k,
                     transmittance + PIXELS * k);
    return 0;
}

template <typename T>
int64_t compose_backward(const T* pool, const int32_t* slots, int64_t tiles, int64_t layers,
                         const T* background, const T* gradient, const int32_t* wanted,
                         int64_t count, T* out, int64_t threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<T> passed(PIXELS * (layers > 0 ? layers : 1)), behind(COLOUR);
#pragma omp for schedule(static)
        for (int64_t k = 0; k < tiles; ++k) {
            const int32_t* slot = slots + layers * k;
            passed_before(pool, slot, layers, passed.data());
            for (int64_t i = 0; i < COLOUR; ++i) behind[i] = background[i / PIXELS];
            for (int64_t m = layers - 1; m >= 0; --m) {
                if (slot[m] < 0) continue;
                const int32_t row = wanted[layers * k + m];
                layer_backward(pool + PARTIAL * slot[m], gradient + COLOUR * k,
                               passed.data() + PIXELS * m, behind.data(),
                               row < 0 || row >= count ? nullptr : out + PARTIAL * row);
            }
        }
    }
    return 0;
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                   \
    extern "C" int64_t spx_compose_##SUFFIX(const T* pool, const int32_t* slots, int64_t tiles,  \
                                            int64_t layers, const T* background, T* image,       \
                                            T* transmittance, int64_t threads) {                 \
        return compose<T>(pool, slots, tiles, layers, background, image, transmittance,          \
                          threads);                                                              \
    }                                                                                            \
    extern "C" int64_t spx_compose_backward_##SUFFIX(                                            \
        const T* pool, const int32_t* slots, int64_t tiles, int64_t layers, const T* background, \
        const T* gradient, const int32_t* wanted, int64_t count, T* out, int64_t threads) {      \
        return compose_backward<T>(pool, slots, tiles, layers, background, gradient, wanted,     \
                                   count, out, threads);                                         \
    }                                                                                            \
    extern "C" int64_t spx_residuals_##SUFFIX(                                                   \
        const T* pool, const int32_t* slots, int64_t count, int64_t layers,                      \
        const int32_t* tiles, int64_t width, int64_t height, T* out, int64_t threads) {          \
        return residuals<T>(pool, slots, count, layers, tiles, width, height, out, threads);     \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
