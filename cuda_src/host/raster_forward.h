// Forward pass over one tile: blend front to back, end a pixel after T falls below stop.
#pragma once

#include "host/raster_tile.h"

SPX_NAMESPACE_BEGIN

template <class T>
struct ForwardPixels {
    typename Layout<T>::Real x, y, t, r, g, b, in, out;
    typename Layout<T>::Integer last;
};

// T of pixels outside the image: below any stop, so that nothing is drawn there.
constexpr int OUTSIDE = -1;

// Sets up the tile's pixels and returns the units that lie in the image.
template <class T>
uint32_t begin_forward(const Job<T>& job, int64_t held, ForwardPixels<T>* pixels) {
    typedef Layout<T> L;
    const int row = job.interval_rows ? job.interval_rows[held] : -1;
    const T* interval = row < 0 ? nullptr : job.intervals + int64_t(row) * 2 * PIXELS;
    uint32_t live = 0;
    for (int position = 0; position < PIXELS; ++position) {
        const Place place = place_of(job, held, position);
        ForwardPixels<T>& p = pixels[position / L::width];
        const int lane = position % L::width;
        p.x[lane] = T(place.x) + T(0.5);
        p.y[lane] = T(place.y) + T(0.5);
        p.t[lane] = T(place.inside ? 1 : OUTSIDE);
        p.r[lane] = p.g[lane] = p.b[lane] = 0;
        p.last[lane] = place.inside ? INT32_MAX : OUTSIDE;
        p.in[lane] = interval ? interval[position] : 0;
        p.out[lane] = interval ? interval[PIXELS + position] : 0;
        if (place.inside) live |= 1u << (position / L::unit);
    }
    return live;
}

template <class T>
void end_forward(const Job<T>& job, int64_t held, const ForwardPixels<T>* pixels) {
    typedef Layout<T> L;
    T* out = job.pixels + held * PLANES * PIXELS;
    int32_t* last = job.last + held * PIXELS;
    for (int position = 0; position < PIXELS; ++position) {
        const ForwardPixels<T>& p = pixels[position / L::width];
        const int lane = position % L::width, pixel = pixel_of(position);
        out[pixel] = p.r[lane];
        out[PIXELS + pixel] = p.g[lane];
        out[2 * PIXELS + pixel] = p.b[lane];
        out[3 * PIXELS + pixel] = p.t[lane] == T(OUTSIDE) ? T(1) : p.t[lane];
        last[position] = int32_t(p.last[lane]);
    }
}

// Blends a splat into one register of pixels; returns the lanes that it finishes.
template <class T, bool CUT>
inline typename Layout<T>::Mask forward_vector(const Brush<T>& s, typename Layout<T>::Real depth,
                                               typename Layout<T>::Real stop,
                                               ForwardPixels<T>& p) {
    typedef typename Layout<T>::Real F;
    typedef typename Layout<T>::Mask Mask;
    const F distance = scaled_distance(p.x - s.u, p.y - s.v, s.conic);
    const F raw = raw_alpha(distance, s.opacity);
    Mask drawn = at_least(distance, constant<F>(0)) & at_least(raw, constant<F>(ALPHA_LEAST)) &
                 at_least(p.t, stop);
    if (CUT) drawn = drawn & at_least(depth, p.in) & below(depth, p.out);
    const F alpha = keep(drawn, minimum(raw, constant<F>(ALPHA_MOST)));
    F r = p.r, g = p.g, b = p.b, t = p.t;
    blend(alpha, s.red, s.green, s.blue, r, g, b, t);
    p.r = r, p.g = g, p.b = b, p.t = t;
    return drawn & below(t, stop);
}

// Whether any of the unit's pixels goes on.
template <class T>
inline bool unit_lives(typename Layout<T>::Real stop, const ForwardPixels<T>* unit) {
    uint32_t live = 0;
    for (int v = 0; v < Layout<T>::unit_vectors; ++v)
        live |= lane_bits(at_least(unit[v].t, stop));
    return live != 0;
}

// CUT: each pixel draws only depths inside its interval.
template <class T, bool CUT>
__attribute__((flatten)) int64_t forward_list(const Job<T>& job, int64_t held, uint32_t live,
                                              ForwardPixels<T>* pixels) {
    typedef Layout<T> L;
    typedef typename L::Real F;
    const int64_t begin = job.offsets[held], end = job.offsets[held + 1];
    const Place first = place_of(job, held, 0);
    const F stop = constant<F>(job.stop);
    int64_t at = begin, evaluated = 0;
    for (; at < end && live; ++at) {
        fetch_ahead(job, at + AHEAD, end);
        const Record<T>& record = job.records[job.items[at]];
        uint32_t mask = live & unit_mask(record, T(first.x) + T(0.5), T(first.y) + T(0.5));
        job.masks[at] = mask;
        evaluated += __builtin_popcount(mask);
        const Brush<T> brush(record);
        const F depth = constant<F>(record.depth);
        for (; mask; mask &= mask - 1) {
            const int unit = __builtin_ctz(mask);
            ForwardPixels<T>* p = pixels + unit * L::unit_vectors;
            uint32_t any = 0;
            for (int v = 0; v < L::unit_vectors; ++v) {
                const typename L::Mask ended = forward_vector<T, CUT>(brush, depth, stop, p[v]);
                if (__builtin_expect(lane_bits(ended), 0)) {
                    p[v].last = select(ended, position_lanes<T>(at - begin), p[v].last);
                    any = 1;
                }
            }
            if (__builtin_expect(any, 0) && !unit_lives<T>(stop, p)) live &= ~(1u << unit);
        }
    }
    job.steps[held] = int32_t(at - begin);
    return evaluated * L::unit;
}

template <class T>
int64_t forward_tile(const Job<T>& job, int64_t held) {
    ForwardPixels<T> pixels[Layout<T>::vectors];
    const uint32_t live = begin_forward(job, held, pixels);
    const bool cut = job.interval_rows && job.interval_rows[held] >= 0;
    const int64_t evaluated = cut ? forward_list<T, true>(job, held, live, pixels)
                                  : forward_list<T, false>(job, held, live, pixels);
    end_forward(job, held, pixels);
    return evaluated;
}

SPX_NAMESPACE_END
