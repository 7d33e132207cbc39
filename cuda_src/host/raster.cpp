// Drivers of the rasterizer: choice of the instruction set, threads over tiles.
#include "host/raster.h"

#include <limits>

#include "math/alpha.cuh"
#include "math/blend.cuh"

using namespace spx_host;

namespace {

enum Isa { BASE = 0, AVX2 = 1, AVX512 = 2 };

Isa best_isa() {
    const bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi");
    if (wide && __builtin_cpu_supports("avx512f")) return AVX512;
    return wide ? AVX2 : BASE;
}

template <class T>
const Kernels<T>& kernels_for(int64_t isa);

const KernelTable& table_for(int64_t isa) {
    return isa == AVX512 ? *raster_avx512() : isa == AVX2 ? *raster_avx2() : *raster_base();
}
template <>
const Kernels<float>& kernels_for<float>(int64_t isa) {
    return table_for(isa).single;
}
template <>
const Kernels<double>& kernels_for<double>(int64_t isa) {
    return table_for(isa).real;
}

template <class T>
void make_records(const T* data, int64_t n, Record<T>* records, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; ++i) {
        const T* s = data + i * SPLAT_COLUMNS;
        Record<T>& r = records[i];
        r.u = s[0], r.v = s[1];
        const spx::Conic<T> conic = spx::make_conic(s[2], s[3], s[4]);
        r.a = conic.a, r.tilt = conic.tilt, r.c = conic.c;
        r.opacity = s[5], r.red = s[6], r.green = s[7], r.blue = s[8], r.depth = s[9];
        const auto e = spx::make_ellipse(s, conic, std::numeric_limits<T>::epsilon());
        r.chord = e.chord, r.inverse = e.inverse, r.reach = e.reach;
        r.summit = e.summit, r.margin = e.margin, r.unused = 0;
    }
}

// Runs a kernel on every tile in the order of `schedule` (null: ascending).
template <class T>
int64_t run_tiles(TileKernel<T> kernel, const Job<T>& job, const int32_t* schedule, int threads) {
    int64_t evaluated = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(+ : evaluated)
    for (int64_t k = 0; k < job.held; ++k) evaluated += kernel(job, schedule ? schedule[k] : k);
    return evaluated;
}

// Adds the rows of each splat in the order of the lists, as a single thread adds them directly:
// every thread looks at all rows and takes those of its own range of splats.
template <class T>
void gather_rows(const Job<T>& job, int64_t n, int64_t columns, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int part = 0; part < threads; ++part) {
        const int64_t low = n * part / threads, high = n * (part + 1) / threads;
        for (int64_t held = 0; held < job.held; ++held) {
            const int64_t begin = job.offsets[held];
            for (int64_t at = begin; at < begin + job.steps[held]; ++at) {
                const int64_t item = job.items[at];
                if (item < low || item >= high || !job.masks[at]) continue;
                for (int64_t k = 0; k < columns; ++k)
                    job.sums[item * columns + k] += job.rows[at * columns + k];
            }
        }
    }
}

template <class T>
void finish_gradients(const T* data, int64_t n, int64_t columns, T* sums, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; ++i) {
        const T* s = data + i * SPLAT_COLUMNS;
        T* row = sums + i * columns;
        T out[SUMS];
        spx::splat_gradient(row, s[2], s[3], s[4], s[5], out);
        for (int k = 0; k < SUMS; ++k) row[k] = out[k];
        for (int64_t k = SUMS; k < columns; ++k) row[k] = spx::absolute_gradient(row[k]);
    }
}

template <class T>
Job<T> make_job(int64_t held, const void* records, const int32_t* tiles, const int64_t* offsets,
                const int32_t* items, const int32_t* interval_rows, const T* intervals,
                int64_t width, int64_t height) {
    Job<T> job = {};
    job.held = held;
    job.records = static_cast<const Record<T>*>(records);
    job.tiles = tiles, job.offsets = offsets, job.items = items;
    job.interval_rows = interval_rows, job.intervals = intervals;
    job.width = int(width), job.height = int(height);
    return job;
}

}  // namespace

// The widest instruction set that this CPU has: 0 base, 1 AVX2, 2 AVX-512.
extern "C" int64_t raster_best_isa() { return best_isa(); }

// See Job for the arrays. records: (n, 16) T, filled by raster_records.
#define RASTER_FUNCTIONS(T, NAME)                                                               \
    extern "C" int64_t raster_records_##NAME(const T* data, int64_t n, T* records,              \
                                             int64_t threads) {                                 \
        make_records(data, n, reinterpret_cast<Record<T>*>(records), int(threads));             \
        return 0;                                                                               \
    }                                                                                           \
    extern "C" int64_t raster_forward_##NAME(                                                   \
        int64_t isa, int64_t threads, const int32_t* schedule, int64_t held, const T* records,  \
        const int32_t* tiles, const int64_t* offsets, const int32_t* items,                     \
        const int32_t* interval_rows, const T* intervals, int64_t width, int64_t height,        \
        double stop, T* pixels, int32_t* last, uint32_t* masks, int32_t* steps) {               \
        Job<T> job = make_job(held, records, tiles, offsets, items, interval_rows, intervals,   \
                              width, height);                                                   \
        job.stop = spx::effective_stop<T>(stop);                                                \
        job.pixels = pixels, job.last = last, job.masks = masks, job.steps = steps;             \
        return run_tiles(kernels_for<T>(isa).forward, job, schedule, int(threads));             \
    }                                                                                           \
    extern "C" int64_t raster_backward_##NAME(                                                  \
        int64_t isa, int64_t threads, const int32_t* schedule, int64_t held, const T* records,  \
        const int32_t* tiles, const int64_t* offsets, const int32_t* items,                     \
        const int32_t* interval_rows, const T* intervals, int64_t width, int64_t height,        \
        const T* pixels, int32_t* last, uint32_t* masks, int32_t* steps, const T* gradient,     \
        const T* data, int64_t n, int64_t columns, T* rows, T* sums) {                          \
        Job<T> job = make_job(held, records, tiles, offsets, items, interval_rows, intervals,   \
                              width, height);                                                   \
        job.pixels = const_cast<T*>(pixels), job.last = last, job.masks = masks;                \
        job.steps = steps, job.gradient = gradient, job.rows = rows, job.sums = sums;           \
        const Kernels<T>& kernels = kernels_for<T>(isa);                                        \
        const int64_t evaluated =                                                               \
            run_tiles(columns == ABSOLUTE ? kernels.absolute : kernels.backward, job, schedule, \
                      int(threads));                                                            \
        if (rows) gather_rows(job, n, columns, int(threads));                                   \
        finish_gradients(data, n, columns, sums, int(threads));                                 \
        return evaluated;                                                                       \
    }

RASTER_FUNCTIONS(float, f32)
RASTER_FUNCTIONS(double, f64)
