// Which tiles a splat is drawn in: the decision that the lists of host and device share, to the
// bit (no fused operation). A splat is drawn in a tile when its ellipse alpha >= 1/255 meets the
// rectangle of the tile's pixel centres, the tile is live, and some pixel's ray may be inside
// the cell at the splat's depth.
#pragma once

#include "math/alpha.cuh"
#include "math/interval.cuh"

SPX_NAMESPACE_BEGIN

constexpr int TILE_SIDE = 16;  // pixels
constexpr int TILE_PIXELS = TILE_SIDE * TILE_SIDE;

// Spacing of the numbers next to one.
template <class T>
struct Spacing;
template <>
struct Spacing<float> {
    static constexpr float value = 1.0f / (1 << 23);
};
template <>
struct Spacing<double> {
    static constexpr double value = 1.0 / (1LL << 52);
};

// An image cut into tiles.
struct TileGrid {
    int width, height;  // pixels
    int across, down;   // tiles
};

SPX_HD TileGrid make_tile_grid(int width, int height) {
    TileGrid grid;
    grid.width = width, grid.height = height;
    grid.across = (width + TILE_SIDE - 1) / TILE_SIDE;
    grid.down = (height + TILE_SIDE - 1) / TILE_SIDE;
    return grid;
}

// ---- on the screen ----

// Tiles [low, high] of `count` in a line whose pixel centres meet [first, last]; clamped before
// the conversion, since a splat may lie millions of pixels away. NaN gives an empty range.
template <class T>
SPX_HD bool tile_range(T first, T last, int count, int& low, int& high) {
    const T begin = (first - T(TILE_SIDE - 0.5)) / T(TILE_SIDE);
    const T end = (last - T(0.5)) / T(TILE_SIDE);
    if (!(end >= 0) || !(begin <= T(count - 1))) return false;
    low = begin > 0 ? int(begin) + (T(int(begin)) < begin) : 0;
    high = end < T(count - 1) ? int(end) : count - 1;
    return low <= high;
}

// The tiles that a splat meets: rows top to bottom (none when top > bottom). Where one row of
// tiles holds all heights of the shape, its widths decide (it touches all sides of its box) and
// the row is first to last; otherwise first > last and the ellipse is asked row by row.
template <class T>
struct Footprint {
    T u, v;
    int top, bottom, first, last;
    Ellipse<T> ellipse;
};

// splat: a row of Splats.data.
template <class T>
SPX_HD Footprint<T> make_footprint(const T* splat, const TileGrid& grid) {
    const T epsilon = Spacing<T>::value;
    Footprint<T> f = {splat[0], splat[1], 0, -1, 0, -1, {}};
    const T margin = ellipse_margin(splat, epsilon);
    const T wide = splat[10] + margin, high = splat[11] + margin;
    int top, bottom, first, last;
    if (!(f.u - wide <= T(grid.width) - T(0.5)) ||
        !tile_range(f.u - wide, f.u + wide, grid.across, first, last) ||
        !tile_range(f.v - high, f.v + high, grid.down, top, bottom))
        return f;
    f.top = top, f.bottom = bottom;
    const T upper = T(top * TILE_SIDE) + T(0.5);
    if (top == bottom && f.v - high >= upper &&
        f.v + high <= minimum(upper + T(TILE_SIDE - 1), T(grid.height) - T(0.5))) {
        f.first = first, f.last = last;
        return f;
    }
    f.ellipse = make_ellipse(splat, make_conic(splat[2], splat[3], splat[4]), epsilon);
    return f;
}

// Columns [first, last] of tiles in a row of the footprint; false when there are none.
template <class T>
SPX_HD bool footprint_row(const Footprint<T>& f, const TileGrid& grid, int row, int& first,
                          int& last) {
    first = f.first, last = f.last;
    if (first <= last) return true;
    const T start = T(row * TILE_SIDE) + T(0.5);
    const T end = minimum(start + T(TILE_SIDE - 1), T(grid.height) - T(0.5));
    T left, right;
    return ellipse_span(f.ellipse, start - f.v, end - f.v, left, right) &&
           f.u + left <= T(grid.width) - T(0.5) &&
           tile_range(f.u + left, f.u + right, grid.across, first, last);
}

// ---- in depth ----

// Depths inside the cell over the pixels of a tile.
template <class T>
struct TileDepths {
    T first, last;                // [first, last): some pixel may be inside the cell
    T common_first, common_last;  // [...): every pixel is
};

template <class T>
SPX_HD TileDepths<T> no_depths() {
    const T far = T(FARTHEST);
    return {far, -far, -far, far};
}

template <class T>
SPX_HD TileDepths<T> all_depths() {
    const T far = T(FARTHEST);
    return {-far, far, -far, far};
}

template <class T>
SPX_HD void add_pixel(TileDepths<T>& depths, const Interval<T>& z) {
    depths.first = minimum(depths.first, z.in), depths.last = maximum(depths.last, z.out);
    depths.common_first = maximum(depths.common_first, z.in);
    depths.common_last = minimum(depths.common_last, z.out);
}

template <class T>
SPX_HD bool some_pixel_holds(const TileDepths<T>& depths, T depth) {
    return depth >= depths.first && depth < depths.last;
}

template <class T>
SPX_HD bool every_pixel_holds(const TileDepths<T>& depths, T depth) {
    return depth >= depths.common_first && depth < depths.common_last;
}

// Pixel `pixel` (row major) of a tile.
struct TilePixel {
    int x, y;
    bool inside;  // the image
};

SPX_HD TilePixel tile_pixel(const TileGrid& grid, int tile, int pixel) {
    const int x = tile % grid.across * TILE_SIDE + pixel % TILE_SIDE;
    const int y = tile / grid.across * TILE_SIDE + pixel / TILE_SIDE;
    return {x, y, x < grid.width && y < grid.height};
}

// Depths of a pixel's ray inside the cell; in > out when there are none.
template <class T>
SPX_HD Interval<T> pixel_interval(const RayView<T>& view, const CellFaces<T>& faces,
                                  const TilePixel& pixel) {
    T direction[3];
    ray_direction(view, pixel.x, pixel.y, direction);
    return ray_interval(faces, direction);
}

// ---- both ----

// Whether a tile of the footprint lists the splat. mask: (tiles,), 0 for tiles that are not live,
// or null; depths: (tiles,) or null for all of space.
template <class T>
SPX_HD bool tile_lists_depth(const unsigned char* mask, const TileDepths<T>* depths, int tile,
                             T depth) {
    return !(mask && !mask[tile]) && !(depths && !some_pixel_holds(depths[tile], depth));
}

SPX_NAMESPACE_END
