// L1 and SSIM of a view with their gradient in one kernel. A block takes a region of pixels
// through shared memory, channel by channel: windowed moments, SSIM and its derivatives, their
// windows back, gradient. Both windows are separable; a thread slides them in registers over
// several outputs, so that a value is read from shared memory about twice, not eleven times.
//
// Compiled also with: REGION_WIDTH=32
#include "math/ssim.cuh"

using namespace spx;

// 64 x 32 takes 101 KiB of shared memory, two blocks a multiprocessor of sm_90 and sm_100;
// 32 x 32 serves devices that have less.
#ifndef REGION_WIDTH
#define REGION_WIDTH 64
#endif

namespace {

constexpr int SIDE = 16, HALO = SSIM_RADIUS;
constexpr int WIDE = REGION_WIDTH, HIGH = 32;
constexpr int TILES_X = WIDE / SIDE, TILES_Y = HIGH / SIDE, TILES = TILES_X * TILES_Y;
// Maps hold SSIM's derivatives, which reach HALO beyond the region; its inputs twice as far.
constexpr int MAP_WIDE = WIDE + 2 * HALO, MAP_HIGH = HIGH + 2 * HALO;
constexpr int IN_WIDE = WIDE + 4 * HALO, IN_HIGH = HIGH + 4 * HALO;
constexpr int QUAD = 4;  // outputs of a thread along a row: one 16-byte access
constexpr int MAP_QUADS = (MAP_WIDE + QUAD - 1) / QUAD, MAP_PITCH = QUAD * MAP_QUADS;
constexpr int QUADS = WIDE / QUAD;
constexpr int MOMENTS = 4;  // E[x], E[y], E[x x + y y], E[x y]
constexpr int MAPS = 3;     // derivatives of SSIM by E[x], E[x x], E[x y]
constexpr int SUMS = 3;     // |x - y|, 1 - SSIM, (clip(x) - y)^2
// A thread for every quad of the region, and as many blocks as shared memory has room for.
constexpr int THREADS = HIGH * QUADS, BLOCKS = WIDE == 64 ? 2 : 3;
// Outputs of a thread down a column: the moments of a map column take six threads.
constexpr int MOMENT_ROWS = 7, MAP_ROWS = 8;
constexpr int LANE_ROWS = 32 / QUADS;  // rows of the region that a warp covers

static_assert(MAP_HIGH % MOMENT_ROWS == 0 && HIGH % MAP_ROWS == 0, "columns are cut evenly");
static_assert(32 % QUADS == 0 && SIDE % LANE_ROWS == 0, "a warp stays in one tile row");

// The last quad of a row of moments reads into the next row, for outputs that nothing uses.
constexpr int MOMENT_SIZE = MOMENTS * MAP_HIGH * IN_WIDE + QUAD;

// What is not needed at the same time shares its place: two blocks must fit a multiprocessor.
struct Shared {
    union {
        float moments[MOMENT_SIZE];           // (4, MAP_HIGH, IN_WIDE), windowed down
        float rows[MAPS * HIGH * MAP_PITCH];  // maps windowed down
    };
    union {
        float inputs[2][IN_HIGH * IN_WIDE];         // image and photo
        float maps[MAPS * MAP_HIGH * MAP_PITCH];
    };
    float missing[HIGH * MAP_PITCH];  // 1 - SSIM of the region's rows
};

struct View {
    const float* image;
    const unsigned char* photo;
    int width, height, stride;
    long long plane;  // pixels of a channel, under 2^32
};

struct Region {
    int x, y;  // its first pixel
};

// Adds a value at place k of a series to the windows around places HALO ... HALO + N - 1.
template <int N>
__device__ __forceinline__ void spread(float (&windows)[N], float value, int k) {
#pragma unroll
    for (int o = 0; o < N; ++o)
        if (k - o >= 0 && k - o < SSIM_TAPS)
            windows[o] = fmaf(ssim_tap<float>(k - o - HALO), value, windows[o]);
}

// byte / 255 rounded as a division would be: where an image equals its photo, |x - y| must be 0.
__device__ __forceinline__ float unit_value(unsigned char byte) {
    const float value = byte, inverse = 1.0f / 255.0f, quotient = value * inverse;
    return fmaf(fmaf(-quotient, 255.0f, value), inverse, quotient);
}

__device__ __forceinline__ float photo_value(const View& view, int channel, int x, int y) {
    return unit_value(view.photo[3u * (unsigned(view.width) * y + x) + channel]);
}

// Image and photo of the region and what reaches it; zero outside the image.
__device__ __forceinline__ void load_inputs(const View& view, const Region& region, int channel,
                                            Shared& shared) {
    const float* image = view.image + view.plane * channel;
    const int left = region.x - 2 * HALO, top = region.y - 2 * HALO;
    for (int row = threadIdx.x / 32; row < IN_HIGH; row += THREADS / 32) {
        const int y = top + row;
        const bool in_height = y >= 0 && y < view.height;
#pragma unroll
        for (int first = 0; first < IN_WIDE; first += 32) {
            const int column = first + threadIdx.x % 32, x = left + column;
            if (column >= IN_WIDE) break;
            const bool inside = in_height && x >= 0 && x < view.width;
            shared.inputs[0][row * IN_WIDE + column] =
                inside ? image[unsigned(view.stride) * y + x] : 0.0f;
            shared.inputs[1][row * IN_WIDE + column] =
                inside ? photo_value(view, channel, x, y) : 0.0f;
        }
    }
}

// Moments windowed down the columns.
__device__ __forceinline__ void window_moments(Shared& shared) {
    for (int unit = threadIdx.x; unit < IN_WIDE * (MAP_HIGH / MOMENT_ROWS); unit += THREADS) {
        const int column = unit % IN_WIDE, first = unit / IN_WIDE * MOMENT_ROWS;
        const float* image = shared.inputs[0] + first * IN_WIDE + column;
        const float* photo = shared.inputs[1] + first * IN_WIDE + column;
        float windows[MOMENTS][MOMENT_ROWS] = {};
#pragma unroll
        for (int k = 0; k < MOMENT_ROWS + 2 * HALO; ++k) {
            const float a = image[k * IN_WIDE], b = photo[k * IN_WIDE];
            spread(windows[0], a, k);
            spread(windows[1], b, k);
            spread(windows[2], fmaf(a, a, b * b), k);
            spread(windows[3], a * b, k);
        }
#pragma unroll
        for (int q = 0; q < MOMENTS; ++q)
#pragma unroll
            for (int o = 0; o < MOMENT_ROWS; ++o)
                shared.moments[(q * MAP_HIGH + first + o) * IN_WIDE + column] = windows[q][o];
    }
}

// Windows along a row around QUAD places, from 16-byte reads.
__device__ __forceinline__ void window_quad(const float* row, float (&windows)[QUAD]) {
    float values[4 * QUAD];
#pragma unroll
    for (int k = 0; k < 4 * QUAD; k += QUAD) {
        const float4 part = *reinterpret_cast<const float4*>(row + k);
        values[k] = part.x, values[k + 1] = part.y, values[k + 2] = part.z, values[k + 3] = part.w;
    }
#pragma unroll
    for (int o = 0; o < QUAD; ++o) windows[o] = 0;
#pragma unroll
    for (int k = 0; k < QUAD + 2 * HALO; ++k) spread(windows, values[k], k);
}

// SSIM and its derivatives; pixels outside the image have none.
__device__ __forceinline__ void differentiate(const View& view, const Region& region,
                                              Shared& shared) {
    for (int unit = threadIdx.x; unit < MAP_HIGH * MAP_QUADS; unit += THREADS) {
        const int row = unit / MAP_QUADS, column = unit % MAP_QUADS * QUAD;
        float moments[MOMENTS][QUAD], maps[MAPS][QUAD], missing[QUAD];
#pragma unroll
        for (int q = 0; q < MOMENTS; ++q)
            window_quad(shared.moments + (q * MAP_HIGH + row) * IN_WIDE + column, moments[q]);
        const int y = region.y - HALO + row;
        const bool in_height = y >= 0 && y < view.height;
#pragma unroll
        for (int o = 0; o < QUAD; ++o) {
            const int x = region.x - HALO + column + o;
            const SsimPoint<float> point =
                ssim_point(moments[0][o], moments[1][o], moments[2][o], moments[3][o]);
            const bool inside = in_height && x >= 0 && x < view.width;
            maps[0][o] = inside ? point.by_mean : 0.0f;
            maps[1][o] = inside ? point.by_square : 0.0f;
            maps[2][o] = inside ? point.by_product : 0.0f;
            missing[o] = 1.0f - point.value;
        }
#pragma unroll
        for (int q = 0; q < MAPS; ++q)
            *reinterpret_cast<float4*>(shared.maps + (q * MAP_HIGH + row) * MAP_PITCH + column) =
                make_float4(maps[q][0], maps[q][1], maps[q][2], maps[q][3]);
        if (row >= HALO && row < HALO + HIGH)
            *reinterpret_cast<float4*>(shared.missing + (row - HALO) * MAP_PITCH + column) =
                make_float4(missing[0], missing[1], missing[2], missing[3]);
    }
}

// Derivatives windowed down the columns, onto the region's rows.
__device__ __forceinline__ void window_maps(Shared& shared) {
    constexpr int PARTS = HIGH / MAP_ROWS;
    for (int unit = threadIdx.x; unit < MAPS * PARTS * MAP_WIDE; unit += THREADS) {
        const int column = unit % MAP_WIDE, part = unit / MAP_WIDE % PARTS;
        const int map = unit / (MAP_WIDE * PARTS), first = part * MAP_ROWS;
        const float* from = shared.maps + (map * MAP_HIGH + first) * MAP_PITCH + column;
        float windows[MAP_ROWS] = {};
#pragma unroll
        for (int k = 0; k < MAP_ROWS + 2 * HALO; ++k) spread(windows, from[k * MAP_PITCH], k);
#pragma unroll
        for (int o = 0; o < MAP_ROWS; ++o)
            shared.rows[(map * HIGH + first + o) * MAP_PITCH + column] = windows[o];
    }
}

// Gradient of four pixels in a row; adds what they lose to sums.
__device__ __forceinline__ float4 gradient_quad(const View& view, const Shared& shared,
                                                int channel, int row, int column, int x, int y,
                                                float l1_weight, float ssim_weight,
                                                float (&sums)[SUMS]) {
    float by_mean[QUAD], by_square[QUAD], by_product[QUAD], out[QUAD];
    window_quad(shared.rows + row * MAP_PITCH + column, by_mean);
    window_quad(shared.rows + (HIGH + row) * MAP_PITCH + column, by_square);
    window_quad(shared.rows + (2 * HIGH + row) * MAP_PITCH + column, by_product);
    const float4 quad = *reinterpret_cast<const float4*>(view.image + view.plane * channel +
                                                         unsigned(view.stride) * y + x);
    const float values[QUAD] = {quad.x, quad.y, quad.z, quad.w};
    // columns of missing start HALO before the region
    const float4* missing = reinterpret_cast<const float4*>(shared.missing + row * MAP_PITCH +
                                                            column);
    const float4 first = missing[1], second = missing[2];
    const float lost[QUAD] = {first.y, first.z, first.w, second.x};
#pragma unroll
    for (int o = 0; o < QUAD; ++o) {
        out[o] = 0;
        if (x + o >= view.width || y >= view.height) continue;
        const float a = values[o], b = photo_value(view, channel, x + o, y);
        const float inner = ssim_backward(a, b, by_mean[o], by_square[o], by_product[o]);
        out[o] = l1_weight * sign_of_difference(a, b) - ssim_weight * inner;
        // not fminf and fmaxf, which would hide a NaN
        const float positive = a < 0 ? 0 : a, error = (positive > 1 ? 1 : positive) - b;
        sums[0] += fabsf(a - b);
        sums[1] += lost[o];
        sums[2] += error * error;
    }
    return make_float4(out[0], out[1], out[2], out[3]);
}

// Sums of a warp's pixels by tile column; lanes 4 t ... hold tile column t.
__device__ __forceinline__ double add_lanes(double value) {
    value += __shfl_xor_sync(~0u, value, 1);
    value += __shfl_xor_sync(~0u, value, 2);
    for (int lanes = QUADS; lanes < 32; lanes *= 2) value += __shfl_xor_sync(~0u, value, lanes);
    return value;
}

// Sums of the region's tiles, in a fixed order of addition.
__device__ __forceinline__ void store_sums(const float (&sums)[SUMS], unsigned supervised,
                                           int tile_x, int tile_y, int tiles_x, int tiles_y,
                                           double* out) {
    constexpr int PARTS = SIDE / LANE_ROWS;  // warps that share a tile row
    __shared__ double parts[TILES_Y][PARTS][TILES_X][SUMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        const double sum = add_lanes(sums[s]);
        if (lane < QUADS && lane % (SIDE / QUAD) == 0)
            parts[warp / PARTS][warp % PARTS][lane / (SIDE / QUAD)][s] = sum;
    }
    __syncthreads();
    for (int k = threadIdx.x; k < TILES * SUMS; k += THREADS) {
        const int s = k % SUMS, tile = k / SUMS, x = tile % TILES_X, y = tile / TILES_X;
        if (tile_x + x >= tiles_x || tile_y + y >= tiles_y) continue;
        double sum = 0;
        if (supervised >> tile & 1)
            for (int part = 0; part < PARTS; ++part) sum += parts[y][part][x][s];
        out[((long long)tiles_x * (tile_y + y) + tile_x + x) * SUMS + s] = sum;
    }
}

}  // namespace

// Dynamic shared memory of a block of `loss`, for who launches it.
extern "C" __device__ int loss_shared_bytes = sizeof(Shared);

// One block a region; every element of gradient and sums is written.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
loss(const float* image,           // (3, 16 tiles_y, 16 tiles_x)
     const unsigned char* photo,   // (height, width, 3)
     int width, int height,
     const unsigned char* tiles,   // (tiles_y tiles_x,) 1 where supervised
     int x0, int y0, int x1, int y1,  // tile bounds of what may be supervised
     float l1_weight, float ssim_weight,  // divided by the number of values in the view
     float* gradient,              // (3, 16 tiles_y, 16 tiles_x)
     double* sums                  // (tiles_y tiles_x, 3)
) {
    extern __shared__ float4 memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int tiles_x = (width + SIDE - 1) / SIDE, tiles_y = (height + SIDE - 1) / SIDE;
    const int tile_x = blockIdx.x * TILES_X, tile_y = blockIdx.y * TILES_Y;
    const View view = {image, photo, width, height, SIDE * tiles_x,
                       (long long)SIDE * SIDE * tiles_x * tiles_y};
    const Region region = {SIDE * tile_x, SIDE * tile_y};
    unsigned supervised = 0;
    for (int k = 0; k < TILES; ++k) {
        const int x = tile_x + k % TILES_X, y = tile_y + k / TILES_X;
        if (x >= x0 && x < x1 && y >= y0 && y < y1 && tiles[(long long)tiles_x * y + x])
            supervised |= 1u << k;
    }
    const int row = threadIdx.x / QUADS, column = threadIdx.x % QUADS * QUAD;
    const int x = region.x + column, y = region.y + row;
    const bool wanted = supervised >> (row / SIDE * TILES_X + column / SIDE) & 1;
    float lost[SUMS] = {};
#pragma unroll 1
    for (int channel = 0; channel < 3; ++channel) {
        if (supervised) {
            // over maps, which nobody reads any more; rows and missing are others' to read yet
            load_inputs(view, region, channel, shared);
            __syncthreads();
            window_moments(shared);
            __syncthreads();
            differentiate(view, region, shared);
            __syncthreads();
            window_maps(shared);
            __syncthreads();
        }
        float4 out = make_float4(0, 0, 0, 0);
        if (wanted)
            out = gradient_quad(view, shared, channel, row, column, x, y, l1_weight, ssim_weight,
                                lost);
        if (x < view.stride && y < SIDE * tiles_y)
            *reinterpret_cast<float4*>(gradient + view.plane * channel +
                                       unsigned(view.stride) * y + x) = out;
    }
    store_sums(lost, supervised, tile_x, tile_y, tiles_x, tiles_y, sums);
}
