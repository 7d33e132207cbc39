// Host driver of the loss: L1 and SSIM with their gradient in one sweep down a window of
// supervised tiles. Rings of 11 rows hold what the vertical blurs need, so a sweep stays in the
// cache and touches the image once.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "math/ssim.cuh"

namespace {

using namespace spx;

constexpr int64_t SIDE = 16;
constexpr int64_t HALO = SSIM_RADIUS;
constexpr int64_t MOMENTS = 4;  // E[x], E[y], E[x x + y y], E[x y]
constexpr int64_t MAPS = 3;     // derivatives of SSIM by E[x], E[x x], E[x y]
constexpr int64_t SUMS = 3;     // |x - y|, 1 - SSIM, (clip(x) - y)^2
// Widest window: its rings fill about 100 kB in float32, the halo of 10 costs 8 % more work.
constexpr int64_t WINDOW_TILES = 16;
// Tallest window when there are threads to feed.
constexpr int64_t WINDOW_ROWS = 8;

// Tile columns and rows [x0, x1) x [y0, y1) that one sweep supervises.
struct Window {
    int64_t x0, x1, y0, y1;
};

template <typename T>
struct Loss {
    const T* image;
    const uint8_t* photo;
    int64_t width, height, stride, plane, tiles_x;
    const uint8_t* supervised;
    T l1_weight, ssim_weight;  // divided by the number of values in the view
    T* gradient;
    double* sums;
};

// Rows of one sweep. Index 0 of x, y is HALO * 2 left of the window, of moments and maps HALO.
template <typename T>
struct Rings {
    int64_t columns, map_columns, in_columns;
    std::vector<T> x, y, products, moments, maps, blurred;
    std::vector<T> scratch;
    std::vector<double> l1, ssim, square;

    explicit Rings(int64_t widest)
        : x(SSIM_TAPS * (widest + 4 * HALO)), y(x.size()), products(2 * (widest + 4 * HALO)),
          moments(SSIM_TAPS * MOMENTS * (widest + 2 * HALO)), maps(MAPS * (widest + 2 * HALO)),
          blurred(SSIM_TAPS * MAPS * widest), scratch(MOMENTS * (widest + 2 * HALO)), l1(widest),
          ssim(widest), square(widest) {}

    void resize(int64_t wide) {
        columns = wide, map_columns = wide + 2 * HALO, in_columns = wide + 4 * HALO;
        for (auto* sum : {&l1, &ssim, &square}) std::fill(sum->begin(), sum->end(), 0.0);
    }
    static int64_t slot(int64_t row) { return (row + 4 * SSIM_TAPS) % SSIM_TAPS; }
    T* x_row(int64_t row) { return x.data() + slot(row) * in_columns; }
    T* y_row(int64_t row) { return y.data() + slot(row) * in_columns; }
    T* moment_row(int64_t row, int64_t k) {
        return moments.data() + (slot(row) * MOMENTS + k) * map_columns;
    }
    T* blurred_row(int64_t row, int64_t k) {
        return blurred.data() + (slot(row) * MAPS + k) * columns;
    }
};

template <typename T>
void blur_across(const T* __restrict in, T* __restrict out, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
        out[i] = ssim_blur<T>([&](int k) { return in[i + HALO + k]; });
}

template <typename T>
void blur_down(const T* const* rows, T* __restrict out, int64_t count) {
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i)
        out[i] = ssim_blur<T>([&](int k) { return rows[HALO + k][i]; });
}

// Image and photo row as T, zero outside the image.
template <typename T>
void load_row(const Loss<T>& loss, Rings<T>& rings, int64_t channel, int64_t left, int64_t row) {
    T* __restrict x = rings.x_row(row);
    T* __restrict y = rings.y_row(row);
    if (row < 0 || row >= loss.height) {
        for (int64_t i = 0; i < rings.in_columns; ++i) x[i] = y[i] = T(0);
        return;
    }
    const int64_t first = left < 0 ? -left : 0;
    const int64_t room = loss.width - left;
    const int64_t last = rings.in_columns < room ? rings.in_columns : room;
    const T* image = loss.image + loss.plane * channel + loss.stride * row + left;
    const uint8_t* photo = loss.photo + 3 * (loss.width * row + left) + channel;
    for (int64_t i = 0; i < first; ++i) x[i] = y[i] = T(0);
    for (int64_t i = first; i < last; ++i) x[i] = image[i];
    for (int64_t i = first; i < last; ++i) y[i] = T(photo[3 * i]) / T(255);
    for (int64_t i = last; i < rings.in_columns; ++i) x[i] = y[i] = T(0);
}

template <typename T>
void blur_moments(Rings<T>& rings, int64_t row) {
    const T* __restrict x = rings.x_row(row);
    const T* __restrict y = rings.y_row(row);
    T* __restrict squares = rings.products.data();
    T* __restrict product = squares + rings.in_columns;
    for (int64_t i = 0; i < rings.in_columns; ++i) {
        squares[i] = x[i] * x[i] + y[i] * y[i];
        product[i] = x[i] * y[i];
    }
    const T* inputs[MOMENTS] = {x, y, squares, product};
    for (int64_t k = 0; k < MOMENTS; ++k)
        blur_across(inputs[k], rings.moment_row(row, k), rings.map_columns);
}

// SSIM of a row and its derivatives, from the moments of the 11 rows around it. Pixels outside
// the image have no SSIM.
template <typename T>
void map_row(const Loss<T>& loss, Rings<T>& rings, int64_t left, int64_t row, bool counted) {
    const int64_t count = rings.map_columns;
    T* __restrict by_mean = rings.maps.data();
    T* __restrict by_square = by_mean + count;
    T* __restrict by_product = by_square + count;
    if (row < 0 || row >= loss.height) {
        for (int64_t i = 0; i < MAPS * count; ++i) by_mean[i] = T(0);
        return;
    }
    T* __restrict moment = rings.scratch.data();
    for (int64_t k = 0; k < MOMENTS; ++k) {
        const T* rows[SSIM_TAPS];
        for (int64_t j = 0; j < SSIM_TAPS; ++j) rows[j] = rings.moment_row(row - HALO + j, k);
        blur_down(rows, moment + k * count, count);
    }
    for (int64_t i = 0; i < count; ++i) {
        const SsimPoint<T> point = ssim_point(moment[i], moment[count + i], moment[2 * count + i],
                                              moment[3 * count + i]);
        by_mean[i] = point.by_mean;
        by_square[i] = point.by_square;
        by_product[i] = point.by_product;
        moment[i] = T(1) - point.value;
    }
    for (int64_t i = 0; i < count; ++i)
        if (left + i < 0 || left + i >= loss.width)
            by_mean[i] = by_square[i] = by_product[i] = T(0);
    if (!counted) return;
    double* __restrict sum = rings.ssim.data();
    for (int64_t i = 0; i < rings.columns; ++i) sum[i] += moment[HALO + i];
}

template <typename T>
void blur_maps(Rings<T>& rings, int64_t row) {
    for (int64_t k = 0; k < MAPS; ++k)
        blur_across(rings.maps.data() + k * rings.map_columns, rings.blurred_row(row, k),
                    rings.columns);
}

// Gradient of a row of the window into rings.scratch, and the sums of L1 and squares.
template <typename T>
void gradient_row(const Loss<T>& loss, Rings<T>& rings, int64_t row) {
    const int64_t count = rings.columns;
    const T* __restrict x = rings.x_row(row) + 2 * HALO;
    const T* __restrict y = rings.y_row(row) + 2 * HALO;
    T* __restrict blurred = rings.scratch.data();
    for (int64_t k = 0; k < MAPS; ++k) {
        const T* rows[SSIM_TAPS];
        for (int64_t j = 0; j < SSIM_TAPS; ++j) rows[j] = rings.blurred_row(row - HALO + j, k);
        blur_down(rows, blurred + k * count, count);
    }
    double* __restrict l1 = rings.l1.data();
    double* __restrict square = rings.square.data();
    const T l1_weight = loss.l1_weight, ssim_weight = loss.ssim_weight;
    for (int64_t i = 0; i < count; ++i) {
        const T inner = ssim_backward(x[i], y[i], blurred[i], blurred[count + i],
                                      blurred[2 * count + i]);
        blurred[i] = l1_weight * sign_of_difference(x[i], y[i]) - ssim_weight * inner;
    }
    for (int64_t i = 0; i < count; ++i) {
        const T difference = x[i] - y[i];
        const T clipped = (x[i] < T(0) ? T(0) : x[i] > T(1) ? T(1) : x[i]) - y[i];
        l1[i] += difference < T(0) ? -difference : difference;
        square[i] += clipped * clipped;
    }
}

// Add the columns of one tile row to its tiles and start again.
template <typename T>
void flush(const Loss<T>& loss, const Window& window, int64_t row, std::vector<double>& columns,
           int64_t count, int kind) {
    for (int64_t tile = window.x0; tile < window.x1; ++tile) {
        const int64_t index = row / SIDE * loss.tiles_x + tile;
        if (!loss.supervised[index]) continue;
        const int64_t from = (tile - window.x0) * SIDE;
        for (int64_t i = from; i < from + SIDE && i < count; ++i)
            loss.sums[SUMS * index + kind] += columns[i];
    }
    for (double& value : columns) value = 0;
}

template <typename T>
void store_row(const Loss<T>& loss, const Rings<T>& rings, const Window& window, int64_t channel,
               int64_t row) {
    const uint8_t* supervised = loss.supervised + row / SIDE * loss.tiles_x;
    T* out = loss.gradient + loss.plane * channel + loss.stride * row + SIDE * window.x0;
    for (int64_t i = 0; i < rings.columns; ++i)
        if (supervised[window.x0 + i / SIDE]) out[i] = rings.scratch[i];
}

template <typename T>
inline __attribute__((always_inline)) void sweep(const Loss<T>& loss, const Window& window,
                                                 int64_t channel, Rings<T>& rings) {
    const int64_t left = SIDE * window.x0, top = SIDE * window.y0;
    const int64_t right = SIDE * window.x1 < loss.width ? SIDE * window.x1 : loss.width;
    const int64_t bottom = SIDE * window.y1 < loss.height ? SIDE * window.y1 : loss.height;
    rings.resize(right - left);
    for (int64_t row = top - 2 * HALO; row < bottom + 2 * HALO; ++row) {
        load_row(loss, rings, channel, left - 2 * HALO, row);
        blur_moments(rings, row);
        const int64_t middle = row - HALO, done = row - 2 * HALO;
        if (middle < top - HALO) continue;
        const bool counted = middle >= top && middle < bottom;
        map_row(loss, rings, left - HALO, middle, counted);
        blur_maps(rings, middle);
        if (counted && (middle % SIDE == SIDE - 1 || middle == bottom - 1))
            flush(loss, window, middle, rings.ssim, rings.columns, 1);
        if (done < top) continue;
        gradient_row(loss, rings, done);
        store_row(loss, rings, window, channel, done);
        if (done % SIDE == SIDE - 1 || done == bottom - 1) {
            flush(loss, window, done, rings.l1, rings.columns, 0);
            flush(loss, window, done, rings.square, rings.columns, 2);
        }
    }
}

template <typename T>
__attribute__((target("avx2"), flatten)) void sweep_avx2(const Loss<T>& loss, const Window& window,
                                                         int64_t channel, Rings<T>& rings) {
    sweep(loss, window, channel, rings);
}

template <typename T>
__attribute__((flatten)) void sweep_base(const Loss<T>& loss, const Window& window,
                                         int64_t channel, Rings<T>& rings) {
    sweep(loss, window, channel, rings);
}

// Bounds of the supervised tiles of columns [x0, x1) in one tile row; false without any.
template <typename T>
bool span_of(const Loss<T>& loss, int64_t row, int64_t x0, int64_t x1, Window& span) {
    span = {x1, x0, row, row + 1};
    for (int64_t x = x0; x < x1; ++x)
        if (loss.supervised[row * loss.tiles_x + x]) {
            span.x0 = x < span.x0 ? x : span.x0;
            span.x1 = x + 1;
        }
    return span.x0 < span.x1;
}

// Windows that hold every supervised tile of the bounds; empty tile rows end a window.
template <typename T>
std::vector<Window> windows_of(const Loss<T>& loss, const Window& bounds, int64_t tallest) {
    std::vector<Window> out;
    for (int64_t x = bounds.x0; x < bounds.x1; x += WINDOW_TILES) {
        const int64_t end = x + WINDOW_TILES < bounds.x1 ? x + WINDOW_TILES : bounds.x1;
        bool open = false;
        for (int64_t row = bounds.y0; row < bounds.y1; ++row) {
            Window span;
            const bool any = span_of(loss, row, x, end, span);
            if (any && open && row - out.back().y0 < tallest) {
                Window& last = out.back();
                last.x0 = span.x0 < last.x0 ? span.x0 : last.x0;
                last.x1 = span.x1 > last.x1 ? span.x1 : last.x1;
                last.y1 = row + 1;
            } else if (any) {
                out.push_back(span);
            }
            open = any;
        }
    }
    return out;
}

// Windows share no tile, so their order and their cut change no result.
template <typename T>
int64_t run(const Loss<T>& loss, const Window& bounds, int64_t threads) {
    const auto body = __builtin_cpu_supports("avx2") ? sweep_avx2<T> : sweep_base<T>;
    const int64_t rows = bounds.y1 - bounds.y0;
    const auto windows = windows_of(loss, bounds, threads > 1 ? WINDOW_ROWS : rows);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        Rings<T> rings(WINDOW_TILES * SIDE);
#pragma omp for schedule(dynamic)
        for (size_t k = 0; k < windows.size(); ++k)
            for (int64_t channel = 0; channel < 3; ++channel)
                body(loss, windows[k], channel, rings);
    }
    return 0;
}

}  // namespace

// x0, y0, x1, y1: tile bounds of what may be supervised. gradient and sums come in as zeros.
#define SPX_KERNELS(T, SUFFIX)                                                                  \
    extern "C" int64_t spx_loss_##SUFFIX(const T* image, const uint8_t* photo, int64_t width,   \
                                         int64_t height, const uint8_t* tiles, int64_t x0,      \
                                         int64_t y0, int64_t x1, int64_t y1,                    \
                                         double ssim_weight, T* gradient, double* sums,         \
                                         int64_t threads) {                                     \
        const int64_t tiles_x = (width + SIDE - 1) / SIDE, tiles_y = (height + SIDE - 1) / SIDE; \
        const double values = 3.0 * double(width) * double(height);                             \
        const Loss<T> loss = {image, photo, width, height, SIDE * tiles_x,                      \
                              SIDE * SIDE * tiles_x * tiles_y, tiles_x, tiles,                  \
                              T((1 - ssim_weight) / values), T(ssim_weight / values), gradient, \
                              sums};                                                            \
        return run<T>(loss, {x0, x1, y0, y1}, threads);                                         \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
