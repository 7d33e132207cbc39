// What the drivers (raster.cpp) and the per-width kernels (raster_*.cpp) share: plain data only,
// so that no function is compiled for two instruction sets under one name.
#pragma once

#include <stdint.h>

namespace spx_host {

constexpr int TILE = 16;
constexpr int PIXELS = TILE * TILE;
constexpr int PLANES = 4;
constexpr int SPLAT_COLUMNS = 12;  // of Splats.data
constexpr int SUMS = 9, ABSOLUTE = 11;  // SPLAT_SUMS and ABSOLUTE_SUMS of blend.cuh

// A splat as the kernels read it: one cache line in float.
template <class T>
struct Record {
    T u, v;
    T a, tilt, c;  // Conic of alpha.cuh
    T opacity, red, green, blue, depth;
    T chord, inverse, reach, summit, margin;  // Ellipse of alpha.cuh
    T unused;
};

// One call of rasterize or rasterize_backward. Pixels of `intervals` and `last` are in the order
// of pixel_of() in raster_kernel.h, all others row major.
template <class T>
struct Job {
    int64_t held;
    const Record<T>* records;  // of all splats
    const int32_t* tiles;
    const int64_t* offsets;
    const int32_t* items;
    const int32_t* interval_rows;  // (held,), -1: all of the tile's list is inside the cell
    const T* intervals;            // (rows, 2, 256): in, out
    int width, height;
    T stop;
    T* pixels;          // (held, 4, 256)
    int32_t* last;      // (held, 256), list position after which the pixel is finished
    uint32_t* masks;    // (instances,), units of 8 or 16 pixels that the splat may touch
    int32_t* steps;     // (held,), list positions walked
    const T* gradient;  // (held, 4, 256)
    T* rows;            // (instances, SUMS or ABSOLUTE), or null: add to sums at once
    T* sums;            // (n, SUMS or ABSOLUTE)
};

// Both return the pairs of pixel and splat evaluated.
template <class T>
using TileKernel = int64_t (*)(const Job<T>&, int64_t held);

template <class T>
struct Kernels {
    TileKernel<T> forward, backward, absolute;  // absolute: backward with ABSOLUTE sums
};

struct KernelTable {
    Kernels<float> single;
    Kernels<double> real;
};

const KernelTable* raster_base();
const KernelTable* raster_avx2();
const KernelTable* raster_avx512();

// Where the ISA-specific kernels keep pixel `position`: four columns of 4 x 16 pixels, each row
// major, so that 8 neighbours are a block of 4 x 2 and 16 a block of 4 x 4. Blocks waste fewer
// lanes on small splats than rows do.
static constexpr int pixel_of(int position) {
    return (position % 64) / 4 * TILE + position / 64 * 4 + position % 4;
}

}  // namespace spx_host
