// Backward pass over one tile: the forward list in reverse, with T and the scalar adjoint.
#pragma once

#include "host/raster_tile.h"

SPX_NAMESPACE_BEGIN

template <class T>
struct BackwardPixels {
    typename Layout<T>::Real x, y, t, adjoint, r, g, b, in, out;  // r, g, b: dL/dC
    typename Layout<T>::Integer last;
};

template <class T>
void begin_backward(const Job<T>& job, int64_t held, BackwardPixels<T>* pixels) {
    typedef Layout<T> L;
    const int row = job.interval_rows ? job.interval_rows[held] : -1;
    const T* interval = row < 0 ? nullptr : job.intervals + int64_t(row) * 2 * PIXELS;
    const T* gradient = job.gradient + held * PLANES * PIXELS;
    const T* transmittance = job.pixels + (held * PLANES + 3) * PIXELS;
    for (int position = 0; position < PIXELS; ++position) {
        const Place place = place_of(job, held, position);
        BackwardPixels<T>& p = pixels[position / L::width];
        const int lane = position % L::width;
        // whatever a caller left outside the image must not reach a sum, not even as 0 x NaN
        const auto seed = [&](int plane) {
            return place.inside ? gradient[plane * PIXELS + place.pixel] : T(0);
        };
        p.x[lane] = T(place.x) + T(0.5);
        p.y[lane] = T(place.y) + T(0.5);
        p.t[lane] = transmittance[place.pixel];
        p.r[lane] = seed(0);
        p.g[lane] = seed(1);
        p.b[lane] = seed(2);
        p.adjoint[lane] = seed(3);
        p.last[lane] = job.last[held * PIXELS + position];
        p.in[lane] = interval ? interval[position] : 0;
        p.out[lane] = interval ? interval[PIXELS + position] : 0;
    }
}

template <class F, int COLUMNS>
struct SumsOf {
    typedef SplatSums<F> Type;
};
template <class F>
struct SumsOf<F, ABSOLUTE> {
    typedef AbsoluteSums<F> Type;
};

template <class T, bool CUT, int COLUMNS>
inline void backward_vector(const Brush<T>& s, typename Layout<T>::Real depth,
                            typename Layout<T>::Integer at, BackwardPixels<T>& p,
                            typename SumsOf<typename Layout<T>::Real, COLUMNS>::Type& sums) {
    typedef typename Layout<T>::Real F;
    typedef typename Layout<T>::Mask Mask;
    const F dx = p.x - s.u, dy = p.y - s.v, most = constant<F>(ALPHA_MOST);
    const F distance = scaled_distance(dx, dy, s.conic);
    const F raw = raw_alpha(distance, s.opacity);
    Mask drawn = at_least(distance, constant<F>(0)) & at_least(raw, constant<F>(ALPHA_LEAST)) &
                 at_least(p.last, at);
    if (CUT) drawn = drawn & at_least(depth, p.in) & below(depth, p.out);
    const F alpha = keep(drawn, minimum(raw, most));
    F t = p.t, adjoint = p.adjoint, weight, change;
    unblend(alpha, s.red, s.green, s.blue, p.r, p.g, p.b, t, adjoint, weight, change);
    p.t = t, p.adjoint = adjoint;
    // a clamped alpha does not follow its opacity or position
    change = keep(at_least(most, raw), change);
    sums.add(change, dx, dy, weight, p.r, p.g, p.b);
    if constexpr (COLUMNS == ABSOLUTE)
        sums.add_slopes(change, dx, dy, s.conic.a, s.conic.tilt, s.conic.c);
}

template <class F, class T>
inline void add_lanes(const F& sum, T* out) {
    T total = 0;
    for (unsigned lane = 0; lane < sizeof(F) / sizeof(T); ++lane) total += sum[lane];
    *out += total;
}

template <class F, class T>
inline void add_lanes(const SplatSums<F>& sums, T* out) {
    for (int k = 0; k < SPLAT_SUMS; ++k) add_lanes(sums.sum[k], out + k);
}

#if SPX_VECTOR_BYTES >= 32
typedef float Eight __attribute__((vector_size(32)));

// Sums of the lanes of eight registers by halving: 8 registers, 4, 2, 1.
inline Eight lane_sums(const Eight* s) {
    const Eight front = _mm256_hadd_ps(_mm256_hadd_ps(s[0], s[1]), _mm256_hadd_ps(s[2], s[3]));
    const Eight back = _mm256_hadd_ps(_mm256_hadd_ps(s[4], s[5]), _mm256_hadd_ps(s[6], s[7]));
    return (Eight)_mm256_permute2f128_ps(front, back, 0x20) +
           (Eight)_mm256_permute2f128_ps(front, back, 0x31);
}

inline Eight to_eight(Float x) {
#if SPX_VECTOR_BYTES == 64
    const __m256d high = _mm512_extractf64x4_pd((__m512d)x, 1);
    return (Eight)_mm512_castps512_ps256(x) + (Eight)high;
#else
    return x;
#endif
}

inline void add_lanes(const SplatSums<Float>& sums, float* out) {
    Eight parts[8], old;
    for (int k = 0; k < 8; ++k) parts[k] = to_eight(sums.sum[k]);
    __builtin_memcpy(&old, out, sizeof old);
    old += lane_sums(parts);
    __builtin_memcpy(out, &old, sizeof old);
    add_lanes(to_eight(sums.sum[8]), out + 8);
}
#endif

template <class F, class T>
inline void add_lanes(const AbsoluteSums<F>& sums, T* out) {
    add_lanes(static_cast<const SplatSums<F>&>(sums), out);
    add_lanes(sums.across, out + SUMS);
    add_lanes(sums.down, out + SUMS + 1);
}

template <class T, int COLUMNS>
inline void fetch_ahead(const Job<T>& job, int64_t at) {
    const int64_t item = job.items[at];
    __builtin_prefetch(job.records + item);
    if (job.rows) return;
    __builtin_prefetch(job.sums + item * COLUMNS, 1);
    __builtin_prefetch(job.sums + item * COLUMNS + COLUMNS - 1, 1);
}

template <class T, bool CUT, int COLUMNS>
__attribute__((flatten)) int64_t backward_list(const Job<T>& job, int64_t held,
                                               BackwardPixels<T>* pixels) {
    typedef Layout<T> L;
    typedef typename L::Real F;
    const int64_t begin = job.offsets[held];
    int64_t evaluated = 0;
    for (int64_t at = begin + job.steps[held] - 1; at >= begin; --at) {
        if (at - AHEAD >= begin) fetch_ahead<T, COLUMNS>(job, at - AHEAD);
        uint32_t mask = job.masks[at];
        if (!mask) continue;
        evaluated += __builtin_popcount(mask);
        const int64_t item = job.items[at];
        const Record<T>& record = job.records[item];
        const Brush<T> brush(record);
        const F depth = constant<F>(record.depth);
        const typename L::Integer position = position_lanes<T>(at - begin);
        typename SumsOf<F, COLUMNS>::Type sums;
        sums.clear();
        for (; mask; mask &= mask - 1) {
            BackwardPixels<T>* p = pixels + __builtin_ctz(mask) * L::unit_vectors;
            for (int v = 0; v < L::unit_vectors; ++v)
                backward_vector<T, CUT, COLUMNS>(brush, depth, position, p[v], sums);
        }
        add_lanes(sums, job.rows ? job.rows + at * COLUMNS : job.sums + item * COLUMNS);
    }
    return evaluated * L::unit;
}

template <class T, int COLUMNS>
int64_t backward_tile(const Job<T>& job, int64_t held) {
    BackwardPixels<T> pixels[Layout<T>::vectors];
    begin_backward(job, held, pixels);
    const bool cut = job.interval_rows && job.interval_rows[held] >= 0;
    return cut ? backward_list<T, true, COLUMNS>(job, held, pixels)
               : backward_list<T, false, COLUMNS>(job, held, pixels);
}

SPX_NAMESPACE_END
