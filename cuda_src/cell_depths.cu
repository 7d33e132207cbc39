// Depths at which the rays of a view are inside a cell, by tile and by pixel.
#include "math/tiles.cuh"

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int BLOCK = 256;
constexpr int WARPS = BLOCK / WARP;

typedef spx::TileDepths<float> Depths;

// Camera.packed() and the bounds of the cell, low then high.
struct View {
    double camera[16], box[6];
};

// What rays need of them, made by one thread of a block.
struct Rays {
    spx::RayView<float> view;
    spx::CellFaces<float> faces;
};

__device__ void make_rays(const View& from, Rays& rays) {
    if (threadIdx.x == 0) {
        rays.view = spx::make_ray_view<float>(from.camera);
        rays.faces = spx::make_cell_faces<float>(from.box, rays.view.center);
    }
    __syncthreads();
}

}  // namespace

// Depths inside the cell of each part over the pixels of every live tile. A warp takes a tile at a
// time; blocks (x, part).
extern "C" __global__ void __launch_bounds__(BLOCK)
    tile_depths(const View* views,             // (parts,)
                int width, int height,
                const unsigned char* mask,     // (parts, tiles) or null
                const unsigned char* covered,  // (parts, tiles), 0 where the cell's bounds do not
                                               // count, or null
                Depths* depths) {              // (parts, tiles)
    __shared__ Rays rays;
    make_rays(views[blockIdx.y], rays);
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    const int lane = threadIdx.x % WARP, tiles = grid.across * grid.down;
    const long long first = (long long)tiles * blockIdx.y;
    if (mask) mask += first;
    if (covered) covered += first;
    depths += first;
    for (int tile = blockIdx.x * WARPS + threadIdx.x / WARP; tile < tiles;
         tile += gridDim.x * WARPS) {
        if (mask && !mask[tile]) continue;
        if (covered && !covered[tile]) {
            if (lane == 0) depths[tile] = spx::all_depths<float>();
            continue;
        }
        Depths d = spx::no_depths<float>();
        for (int pixel = lane; pixel < spx::TILE_PIXELS; pixel += WARP) {
            const spx::TilePixel place = spx::tile_pixel(grid, tile, pixel);
            if (place.inside)
                spx::add_pixel(d, spx::pixel_interval(rays.view, rays.faces, place));
        }
        for (int step = WARP / 2; step; step /= 2) {
            const float first = __shfl_xor_sync(ALL, d.first, step);
            const float last = __shfl_xor_sync(ALL, d.last, step);
            const float common_first = __shfl_xor_sync(ALL, d.common_first, step);
            const float common_last = __shfl_xor_sync(ALL, d.common_last, step);
            d = {spx::minimum(d.first, first), spx::maximum(d.last, last),
                 spx::maximum(d.common_first, common_first),
                 spx::minimum(d.common_last, common_last)};
        }
        if (lane == 0) depths[tile] = d;
    }
}

// [in, out) of every pixel of the held tiles, row major; empty outside the image. A block takes a
// run of tiles, so that it seldom meets another part.
extern "C" __global__ void __launch_bounds__(spx::TILE_PIXELS)
    pixel_intervals(const View* views,             // (parts,)
                    int width, int height,
                    const int* numbers,            // (held,), tiles of all parts, ascending
                    int held,
                    const unsigned char* covered,  // (parts, tiles) or null, see tile_depths
                    float* intervals) {            // (held, 2, 256)
    __shared__ Rays rays;
    const spx::TileGrid grid = spx::make_tile_grid(width, height);
    const int tiles = grid.across * grid.down, run = (held + gridDim.x - 1) / gridDim.x;
    int part = -1;
    for (int k = blockIdx.x * run; k < held && k < (int(blockIdx.x) + 1) * run; ++k) {
        if (numbers[k] / tiles != part) {
            part = numbers[k] / tiles;
            __syncthreads();  // the others still read the last part's
            make_rays(views[part], rays);
        }
        const spx::TilePixel place = spx::tile_pixel(grid, numbers[k] % tiles, threadIdx.x);
        const bool bounded = !covered || covered[numbers[k]];
        spx::Interval<float> z = {float(spx::FARTHEST), float(-spx::FARTHEST)};
        if (place.inside)
            z = bounded ? spx::pixel_interval(rays.view, rays.faces, place)
                        : spx::Interval<float>{-z.in, -z.out};
        float* out = intervals + 2LL * k * spx::TILE_PIXELS + threadIdx.x;
        out[0] = z.in, out[spx::TILE_PIXELS] = z.out;
    }
}
