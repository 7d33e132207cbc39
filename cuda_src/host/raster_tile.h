// A tile in vector registers: order of its pixels, units of a mask, which units a splat touches.
// No standard containers or algorithms in raster_*.h: their code would be shared by files that
// are compiled for different instruction sets.
#pragma once

#include "host/raster.h"
#include "math/alpha.cuh"
#include "math/blend.cuh"

SPX_NAMESPACE_BEGIN

using namespace spx_host;

// Pixels are in the order of pixel_of(). A unit is what one bit of a mask stands for: a block of
// 4 columns by 2 rows, or by 4 rows where one register holds it.
template <class T>
struct Layout {
    typedef typename Lanes<T>::Real Real;
    typedef typename Lanes<T>::Integer Integer;
    typedef typename Lanes<T>::Index Index;
    typedef decltype(at_least(Real{}, Real{})) Mask;
    static constexpr int width = Lanes<T>::width;
    static constexpr int vectors = PIXELS / width;
    static constexpr int unit = width > 8 ? width : 8;
    static constexpr int unit_vectors = unit / width;
    static constexpr int unit_rows = unit / 4;
    static constexpr int bands = TILE / unit_rows;  // units in four columns
    static constexpr int units = 4 * bands;
};

// Pixel `position` of a tile that starts at (left, top).
struct Place {
    int x, y, pixel;
    bool inside;  // the image
};

template <class T>
inline Place place_of(const Job<T>& job, int64_t held, int position) {
    const int across = (job.width + TILE - 1) / TILE;
    const int tile = job.tiles[held], pixel = pixel_of(position);
    const int x = tile % across * TILE + pixel % TILE;
    const int y = tile / across * TILE + pixel / TILE;
    return {x, y, pixel, x < job.width && y < job.height};
}

// Lane k holds k / divide % modulo.
template <class T>
inline typename Lanes<T>::Real lane_index(int divide, int modulo) {
    typename Lanes<T>::Real result = {};
    for (int k = 0; k < Lanes<T>::width; ++k) result[k] = T(k / divide % modulo);
    return result;
}

// Units in which the splat can reach alpha >= 1/255. (x, y): centre of the tile's first pixel.
template <class T>
inline uint32_t unit_mask(const Record<T>& s, T x, T y) {
    typedef Layout<T> L;
    typedef typename L::Real F;
    constexpr int stacked = L::width < L::bands ? L::width : L::bands;  // bands in a register
    constexpr int columns = L::width / stacked;                         // fours of columns
    const Ellipse<F> ellipse = {constant<F>(s.tilt),   constant<F>(s.chord),
                                constant<F>(s.inverse), constant<F>(s.reach),
                                constant<F>(s.summit), constant<F>(s.margin)};
    const F rows = lane_index<T>(1, stacked) * constant<F>(T(L::unit_rows));
    const F starts = lane_index<T>(stacked, 4) * constant<F>(T(4));
    uint32_t mask = 0;
    for (int band = 0; band < L::bands; band += stacked) {
        const F low = rows + constant<F>(y - s.v + T(band * L::unit_rows));
        F left, right;
        const typename L::Mask met = ellipse_span(
            ellipse, low, low + constant<F>(T(L::unit_rows - 1)), left, right);
        for (int column = 0; column < 4; column += columns) {
            const F start = starts + constant<F>(x - s.u + T(4 * column));
            const typename L::Mask hit = met & at_least(right, start) &
                                         at_least(start + constant<F>(T(3)), left);
            mask |= lane_bits(hit) << (column * L::bands + band);
        }
    }
    return mask;
}

// A splat in every lane.
template <class T>
struct Brush {
    typedef typename Lanes<T>::Real F;
    F u, v;
    Conic<F> conic;
    F opacity, red, green, blue;

    explicit Brush(const Record<T>& s)
        : u(constant<F>(s.u)), v(constant<F>(s.v)),
          conic{constant<F>(s.a), constant<F>(s.tilt), constant<F>(s.c)}, opacity(constant<F>(s.opacity)), red(constant<F>(s.red)),
          green(constant<F>(s.green)), blue(constant<F>(s.blue)) {}
};

// Bits of a list position k that lanes of `last` are compared with.
template <class T>
inline typename Lanes<T>::Integer position_lanes(int64_t k) {
    return (typename Lanes<T>::Index)(k) + typename Lanes<T>::Integer{};
}

// How far ahead the record of a coming splat is fetched: about two splats' worth of work.
constexpr int AHEAD = 8;

template <class T>
inline void fetch_ahead(const Job<T>& job, int64_t at, int64_t end) {
    if (at < end) __builtin_prefetch(job.records + job.items[at]);
}

SPX_NAMESPACE_END
