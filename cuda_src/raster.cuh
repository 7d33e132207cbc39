// What the rasterizer's two passes share. A tile is walked by independent warps, each over its
// own patch of pixels: it takes the splats of the tile's list that meet the patch, 32 at a time
// (one a lane), and puts them in a queue in shared memory that all its lanes then walk.
//
// Light tiles: four patches of 8 x 8, two pixels a lane. Heavy tiles: eight patches of 4 x 8, one
// pixel a lane: a long list is walked serially, so fewer and cheaper steps a warp are what ends
// the last one sooner. Their lists are cut into segments, each blended from T = 1 on like the
// partial pixels of a cell: the backward pass starts at the end of every segment at once.
#pragma once

#include "math/blend.cuh"
#include "math/patch.cuh"

namespace raster {

using namespace spx;

constexpr unsigned EVERY = 0xffffffffu;
constexpr int TILE = 16;
constexpr int PIXELS = TILE * TILE;
constexpr int PLANES = 4;
constexpr int COLUMNS = 12;        // of Splats.data
constexpr int REGIONS = 8;         // of 4 x 8 pixels, in two rows of four: the unit of masks
constexpr int REGION_HEIGHT = 8;
constexpr int LANE_COLUMNS = 4;    // lanes side by side; eight in a column
constexpr int PATCHES = 4;         // of a light tile; warps that one entry of the order needs
#ifndef RASTER_SEGMENT
#define RASTER_SEGMENT 1024
#endif
constexpr int SEGMENT = RASTER_SEGMENT;  // list positions
constexpr int BATCH = 32;          // splats a warp looks at together
constexpr int SLOT = 3;            // float4 of a splat, as Splats.data or a queue holds it
#ifndef RASTER_WARPS
#define RASTER_WARPS 4             // of a block
#endif

// Entries of the order of work: 4 held + what of the tile, and which segment.
constexpr int WHOLE = 0, UPPER = 2, LOWER = 3;
constexpr int KINDS = 4;

// The lists of one call; held, n as in backends/base.py.
struct Lists {
    const int* tiles;          // (held,)
    const long long* offsets;  // (held + 1,)
    const int* items;          // (instances,)
    const float4* splats;      // (n, 3), rows of Splats.data
    const float* intervals;    // (held, 2, 256), or null
    int held, width, height;
};

// Where a warp's pixels are: lane (column, row) has PX neighbours of a row.
template <int PX>
struct Patch {
    int held, region;   // first of its PX regions
    int first;          // index in the tile of the lane's first pixel
    float center_x, center_y;
    float x, y;         // from the centre to the lane's first pixel centre
    bool inside[PX];    // the image

    static constexpr float half_width = (LANE_COLUMNS * PX - 1) * 0.5f;
    static constexpr float half_height = (REGION_HEIGHT - 1) * 0.5f;

    __device__ Patch(const Lists& lists, int held_, int region_) : held(held_), region(region_) {
        const int lane = threadIdx.x % 32, across = (lists.width + TILE - 1) / TILE;
        const int tile = lists.tiles[held];
        const int column = region % 4 * LANE_COLUMNS, row = region / 4 * REGION_HEIGHT;
        const int dx = lane % LANE_COLUMNS * PX, dy = lane / LANE_COLUMNS;
        const int left = tile % across * TILE + column, top = tile / across * TILE + row;
        first = (row + dy) * TILE + column + dx;
        center_x = float(left) + 0.5f * LANE_COLUMNS * PX;
        center_y = float(top) + 0.5f * REGION_HEIGHT;
        x = float(dx) - half_width, y = float(dy) - half_height;
        for (int j = 0; j < PX; ++j)
            inside[j] = left + dx + j < lists.width && top + dy < lists.height;
    }
};

// Loads and stores of a lane's PX neighbours.
template <int PX>
__device__ __forceinline__ void load_pixels(const float* from, float* to) {
    if constexpr (PX == 2) {
        const float2 pair = *reinterpret_cast<const float2*>(from);
        to[0] = pair.x, to[1] = pair.y;
    } else {
        to[0] = *from;
    }
}
template <int PX>
__device__ __forceinline__ void store_pixels(float* to, const float* from) {
    if constexpr (PX == 2)
        *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
    else
        *to = from[0];
}

// A row of Splats.data.
__device__ __forceinline__ void unpack_row(const float4* row, float* data) {
    for (int k = 0; k < 3; ++k) {
        const float4 part = row[k];
        data[4 * k] = part.x, data[4 * k + 1] = part.y;
        data[4 * k + 2] = part.z, data[4 * k + 3] = part.w;
    }
}

// A splat as the inner loops read it, 48 bytes of a queue in shared memory.
struct Event {
    float scale, lean, across, along;
    float dy, peak, red, green;
    float blue;
    int position;  // in the tile's list
    float depth;

    __device__ __forceinline__ Event() {}
    __device__ __forceinline__ explicit Event(const float4* slot) {
        const float4 a = slot[0], b = slot[1], c = slot[2];
        scale = a.x, lean = a.y, across = a.z, along = a.w;
        dy = b.x, peak = b.y, red = b.z, green = b.w;
        blue = c.x, position = __float_as_int(c.y), depth = c.z;
    }
};

__device__ __forceinline__ void put_event(float4* slot, const PatchSplat<float>& s,
                                          const float* data, int position) {
    slot[0] = make_float4(s.scale, s.lean, s.across, s.along);
    slot[1] = make_float4(s.dy, s.peak, data[6], data[7]);
    slot[2] = make_float4(data[8], __int_as_float(position), data[9], 0.0f);
}

// An event that draws nothing fills a queue up to a multiple of what is walked at a time.
__device__ __forceinline__ void put_nothing(float4* slot) {
    slot[0] = make_float4(0, 0, 0, 0);
    slot[1] = make_float4(0, -1e30f, 0, 0);
    slot[2] = make_float4(0, __int_as_float(-1), 0, 0);
}

// log2 alpha before the clamp at a lane's PX pixels; (x, y): first of them from the centre.
template <int PX>
__device__ __forceinline__ void exponents(const Event& s, float x, float y, float* result) {
    const float start = fmaf(s.lean, y, s.across), down = y + s.dy;
    const float rest = fmaf(-(s.along * down), down, s.peak);
    for (int j = 0; j < PX; ++j) {
        const float p = fmaf(s.scale, x + float(j), start);
        result[j] = fmaf(-p, p, rest);
    }
}

// 2^x to 2 units in the last place, one instruction; exponents of what is drawn are -8 to 0.
__device__ __forceinline__ float power(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
// Copies a row of Splats.data into shared memory behind the back of the calling lane, who alone
// may read it, after wait_copies. At most one bundle of copies between two calls of end_copies.
__device__ __forceinline__ void copy_row(float4* to, const float4* splats, int item) {
    const float4* from = splats + 3ll * item;
#if __CUDA_ARCH__ >= 800
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    for (int k = 0; k < 3; ++k)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;"
                     :: "r"(address + 16 * k), "l"(from + k) : "memory");
#else
    for (int k = 0; k < 3; ++k) to[k] = __ldg(from + k);
#endif
}
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all bundles but the last LATER.
template <int LATER>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
#endif
}

__device__ __forceinline__ int warp_most(int value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(EVERY, value);
#else
    for (int step = 16; step; step /= 2) value = max(value, __shfl_xor_sync(EVERY, value, step));
    return value;
#endif
}

// Masks of a tile start here, in units of REGIONS words: one such unit for every BATCH of its
// list, so no two tiles share one. States of segments likewise, in units of PIXELS.
__device__ __forceinline__ long long first_mask(long long offset, int held) {
    return offset / BATCH + held;
}
__device__ __forceinline__ long long first_state(long long offset, int held) {
    return offset / SEGMENT + held;
}

// Runs the patch of entry `unit / PATCHES` of the order: walk.run<PX>(held, region, segment).
template <class Walk>
__device__ __forceinline__ void run_unit(const int2* order, int unit, const Walk& walk) {
    const int2 entry = order[unit / PATCHES];
    const int part = unit % PATCHES, held = entry.x / KINDS, kind = entry.x % KINDS;
    if (kind == WHOLE)
        walk.template run<2>(held, part / 2 * 4 + part % 2 * 2, entry.y);
    else
        walk.template run<1>(held, (kind - UPPER) * 4 + part, entry.y);
}

}  // namespace raster
