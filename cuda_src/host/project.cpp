// Host drivers of projection: threads over contiguous ranges of rows.
#include <omp.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "math/projection.cuh"
#include "math/sh.cuh"

namespace {

using namespace spx;

template <typename T>
struct Parameters {
    T *means, *scales, *quats, *opacities, *sh0, *shN;
};

constexpr int REST = 45;  // values of shN per Gaussian

// Rows handled at a time: their working set stays in the first-level cache.
constexpr int64_t BLOCK = 128;

// Asks for the SH coefficients of a row, four cache lines, before they are needed.
template <typename T>
void prefetch_row(const T* row) {
    for (size_t byte = 0; byte < REST * sizeof(T); byte += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(row) + byte);
}

// Geometry of rows begin to end; returns the count of those kept, in rows and data.
template <typename T>
int64_t project_block(const Parameters<const T>& in, const View<T>& view, int degree,
                      int64_t begin, int64_t end, int32_t* rows, T* data) {
    int32_t candidates[BLOCK];
    int64_t found = 0, count = 0;
    for (int64_t i = begin; i < end; ++i) {
        T delta[3], position[3];
        view_position(view, in.means + 3 * i, delta, position);
        candidates[found] = int32_t(i);
        found += may_be_visible(view, position, in.scales + 3 * i);
    }
    for (int64_t k = 0; k < found; ++k) {
        const int64_t i = candidates[k];
        T delta[3], position[3];
        view_position(view, in.means + 3 * i, delta, position);
        if (!project_splat(view, position, in.scales + 3 * i, in.quats + 4 * i, in.opacities[i],
                           data + SPLAT * count))
            continue;
        rows[count++] = int32_t(i);
        if (degree) prefetch_row(in.shN + REST * i);
    }
    return count;
}

// Project rows begin to end; visible ones are written one after another. Returns their count.
template <typename T>
int64_t project_range(const Parameters<const T>& in, const View<T>& view, int degree,
                      int64_t begin, int64_t end, int32_t* rows, T* data) {
    int64_t total = 0;
    for (int64_t start = begin; start < end; start += BLOCK) {
        const int64_t stop = start + BLOCK < end ? start + BLOCK : end;
        const int64_t first = total;
        const int64_t last = first + project_block(in, view, degree, start, stop, rows + first,
                                                   data + SPLAT * first);
        for (int64_t k = first; k < last; ++k) {
            const int64_t i = rows[k];
            T delta[3], position[3];
            view_position(view, in.means + 3 * i, delta, position);
            T* splat = data + SPLAT * k;
            if (!sh_colour(degree, delta, in.sh0 + 3 * i, in.shN + REST * i, splat + RED))
                continue;
            if (k != total) {  // an earlier one was dropped for its colour
                rows[total] = rows[k];
                std::memcpy(data + SPLAT * total, splat, SPLAT * sizeof(T));
            }
            ++total;
        }
    }
    return total;
}

// rows, data: room for n. Each thread fills the front of its own range; closing the gaps keeps
// the rows ascending whatever the number of threads.
template <typename T>
int64_t project(int64_t n, const Parameters<const T>& in, const double* camera, int64_t width,
                int64_t height, int64_t degree, double near_plane, int64_t threads, int32_t* rows,
                T* data) {
    const View<T> view = make_view<T>(camera, double(width), double(height), near_plane);
    std::vector<int64_t> counts(threads, 0);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int64_t k = 0; k < threads; ++k) {
        const int64_t begin = n * k / threads, end = n * (k + 1) / threads;
        counts[k] = project_range(in, view, int(degree), begin, end, rows + begin,
                                  data + SPLAT * begin);
    }
    int64_t total = counts[0];
    for (int64_t k = 1; k < threads; ++k) {
        const int64_t begin = n * k / threads;
        std::memmove(rows + total, rows + begin, counts[k] * sizeof(int32_t));
        std::memmove(data + SPLAT * total, data + SPLAT * begin, counts[k] * SPLAT * sizeof(T));
        total += counts[k];
    }
    return total;
}

template <typename T>
bool any_nonzero(const T* values, int count) {
    bool any = false;
    for (int k = 0; k < count; ++k) any |= values[k] != T(0);
    return any;
}

// One splat: its screen gradient g to the gradients of the Gaussian in row i.
template <typename T>
void project_row_backward(const Parameters<const T>& in, const View<T>& view, int degree,
                          int64_t i, const T* splat, const T* g, const Parameters<T>& out) {
    T delta[3], position[3], d_delta[3] = {T(0), T(0), T(0)};
    view_position(view, in.means + 3 * i, delta, position);
    if (any_nonzero(g + RED, 3))
        sh_colour_backward(degree, delta, in.shN + REST * i, splat + RED, g + RED,
                           out.sh0 + 3 * i, out.shN + REST * i, d_delta);
    project_splat_backward(view, position, in.scales + 3 * i, in.quats + 4 * i, splat, g, d_delta,
                           out.scales + 3 * i, out.quats + 4 * i, out.opacities + i);
    for (int j = 0; j < 3; ++j) out.means[3 * i + j] += d_delta[j];
}

// Rows between asking for coefficients and using them; covers a miss to main memory.
constexpr int64_t AHEAD = 4;

// gradient: (visible, columns); of more than SPLAT_GRADIENT the two behind, sums of absolute
// gradients, go into norm. Rows are unique within a view, so threads never meet. Returns 0, or -1
// for a row outside n.
template <typename T>
int64_t project_backward(int64_t n, const Parameters<const T>& in, const double* camera,
                         int64_t width, int64_t height, int64_t degree, int64_t threads,
                         int64_t visible, const int32_t* rows, const T* data, const T* gradient,
                         int64_t columns, const Parameters<T>& out, uint8_t* seen, T* norm,
                         int32_t* count) {
    const View<T> view = make_view<T>(camera, double(width), double(height), 0);
    const T half_width = T(width) / 2, half_height = T(height) / 2;
    for (int64_t k = 0; k < visible; ++k)
        if (rows[k] < 0 || rows[k] >= n) return -1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < visible; ++k) {
        const int64_t i = rows[k];
        const T* g = gradient + columns * k;
        if (degree && k + AHEAD < visible) {
            prefetch_row(in.shN + REST * rows[k + AHEAD]);
            prefetch_row(out.shN + REST * rows[k + AHEAD]);
        }
        seen[i] = 1;
        if (count) count[i] += 1;
        // splats behind saturated pixels come back with nothing
        if (!any_nonzero(g, int(columns))) continue;
        if (norm) {
            const T* moved = columns > SPLAT_GRADIENT ? g + SPLAT_GRADIENT : g + U;
            const T du = half_width * moved[0], dv = half_height * moved[1];
            norm[i] += sqrt(du * du + dv * dv);
        }
        project_row_backward(in, view, int(degree), i, data + SPLAT * k, g, out);
    }
    return 0;
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                   \
    extern "C" int64_t spx_project_##SUFFIX(                                                     \
        int64_t n, const T* means, const T* scales, const T* quats, const T* opacities,          \
        const T* sh0, const T* shN, const double* camera, int64_t width, int64_t height,         \
        int64_t degree, double near_plane, int64_t threads, int32_t* rows, T* data) {            \
        return project<T>(n, {means, scales, quats, opacities, sh0, shN}, camera, width, height, \
                          degree, near_plane, threads, rows, data);                              \
    }                                                                                            \
    extern "C" int64_t spx_project_backward_##SUFFIX(                                            \
        int64_t n, const T* means, const T* scales, const T* quats, const T* opacities,          \
        const T* sh0, const T* shN, const double* camera, int64_t width, int64_t height,         \
        int64_t degree, int64_t threads, int64_t visible, const int32_t* rows, const T* data,    \
        const T* gradient, int64_t columns, T* d_means, T* d_scales, T* d_quats, T* d_opacities, \
        T* d_sh0, T* d_shN, uint8_t* seen, T* norm, int32_t* count) {                            \
        return project_backward<T>(n, {means, scales, quats, opacities, sh0, shN}, camera,       \
                                   width, height, degree, threads, visible, rows, data,          \
                                   gradient, columns, {d_means, d_scales, d_quats, d_opacities,  \
                                   d_sh0, d_shN}, seen, norm, count);                            \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
