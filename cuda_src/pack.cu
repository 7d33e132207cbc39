// Tiles of 16 x 16 pixels to and from a dense stream; edge tiles are clipped to the image.

namespace {

constexpr int SIDE = 16, PIXELS = SIDE * SIDE, PLANES = 4, TILE = PLANES * PIXELS;
constexpr int THREADS = 256, SCAN_THREADS = 1024;
static_assert(TILE == 4 * THREADS, "a thread moves 16 bytes of a whole tile");

struct Clip {
    int width, height;
};

__device__ __forceinline__ Clip clip_of(int tile, int width, int height) {
    const int tiles_x = (width + SIDE - 1) / SIDE;
    const int x = tile % tiles_x * SIDE, y = tile / tiles_x * SIDE;
    return {min(width - x, SIDE), min(height - y, SIDE)};
}

// Place in a tile of number k in its clipped form.
__device__ __forceinline__ int unclipped(int k, const Clip& clip) {
    const int plane = k / (clip.width * clip.height), inner = k % (clip.width * clip.height);
    return plane * PIXELS + inner / clip.width * SIDE + inner % clip.width;
}

__device__ __forceinline__ long long add_lanes_before(long long value) {
    for (int distance = 1; distance < 32; distance *= 2) {
        const long long other = __shfl_up_sync(~0u, value, distance);
        if (threadIdx.x % 32 >= distance) value += other;
    }
    return value;
}

}  // namespace

// One block: a view has a few thousand tiles, and one launch beats a scan of several.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS)
tile_starts(const int* __restrict__ tiles,  // (count,) tile indices
            int count, int width, int height,
            long long* starts  // (count + 1,) first value of each tile in the stream, and the end
) {
    __shared__ long long warps[SCAN_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long before = 0;
    for (int first = 0; first < count; first += SCAN_THREADS) {
        const int k = first + threadIdx.x;
        long long size = 0;
        if (k < count) {
            const Clip clip = clip_of(tiles[k], width, height);
            size = PLANES * clip.width * clip.height;
        }
        const long long through = add_lanes_before(size);
        if (lane == 31) warps[warp] = through;
        __syncthreads();
        if (warp == 0) warps[lane] = add_lanes_before(warps[lane]);
        __syncthreads();
        if (k < count) starts[k] = before + (warp ? warps[warp - 1] : 0) + through - size;
        before += warps[SCAN_THREADS / 32 - 1];
        __syncthreads();
    }
    if (threadIdx.x == 0) starts[count] = before;
}

// One block a tile.
extern "C" __global__ void __launch_bounds__(THREADS)
pack(const float* __restrict__ pixels,  // (held, 4, 256)
     const int* __restrict__ index,     // (count,) rows of pixels
     const int* __restrict__ tiles,     // (count,) their tile indices
     const long long* __restrict__ starts,  // (count + 1,)
     int width, int height,
     float* __restrict__ stream  // (starts[count],)
) {
    const Clip clip = clip_of(tiles[blockIdx.x], width, height);
    const float* from = pixels + (long long)index[blockIdx.x] * TILE;
    float* to = stream + starts[blockIdx.x];
    if (clip.width == SIDE && clip.height == SIDE) {
        reinterpret_cast<float4*>(to)[threadIdx.x] =
            reinterpret_cast<const float4*>(from)[threadIdx.x];
        return;
    }
    for (int k = threadIdx.x; k < PLANES * clip.width * clip.height; k += THREADS)
        to[k] = from[unclipped(k, clip)];
}

// One block a tile. Pixels outside the image become zero (colour) and one (transmittance).
extern "C" __global__ void __launch_bounds__(THREADS)
unpack(const float* __restrict__ stream,  // (starts[count],)
       const int* __restrict__ tiles,     // (count,) tile indices
       const long long* __restrict__ starts,  // (count + 1,)
       long long length,  // values in the stream; nothing beyond them is read
       int width, int height,
       float* __restrict__ out  // (count, 4, 256)
) {
    const Clip clip = clip_of(tiles[blockIdx.x], width, height);
    const long long start = starts[blockIdx.x];
    const float* from = stream + start;
    float* to = out + (long long)blockIdx.x * TILE;
    if (start + PLANES * clip.width * clip.height > length) return;
    if (clip.width == SIDE && clip.height == SIDE) {
        reinterpret_cast<float4*>(to)[threadIdx.x] =
            reinterpret_cast<const float4*>(from)[threadIdx.x];
        return;
    }
    for (int k = threadIdx.x; k < TILE; k += THREADS) {
        const int plane = k / PIXELS, y = k % PIXELS / SIDE, x = k % SIDE;
        const bool inside = x < clip.width && y < clip.height;
        to[k] = inside ? from[(plane * clip.height + y) * clip.width + x]
                       : float(plane == PLANES - 1);
    }
}
