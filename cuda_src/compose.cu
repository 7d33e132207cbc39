// Composition of partial tiles front to back and its gradient. 64 threads take a tile, four
// pixels each: every access is 16 bytes a thread, and the kernels run at memory speed.
#include "counted.cuh"
#include "math/compose.cuh"

using namespace spx;

namespace {

constexpr int SIDE = 16, PIXELS = SIDE * SIDE, QUAD = 4, QUADS = PIXELS / QUAD, THREADS = 256;
constexpr int PLANES = 4;

struct Pixels {
    float value[QUAD];
};

__device__ __forceinline__ Pixels load(const float* from) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    return {{quad.x, quad.y, quad.z, quad.w}};
}

__device__ __forceinline__ void store(float* to, const Pixels& p) {
    *reinterpret_cast<float4*>(to) = make_float4(p.value[0], p.value[1], p.value[2], p.value[3]);
}

// First pixel of this thread in plane `plane` of a tile of `planes` planes.
__device__ __forceinline__ long long place(long long tile, int planes, int plane) {
    return (tile * planes + plane) * PIXELS + threadIdx.x % QUADS * QUAD;
}

__device__ __forceinline__ long long this_tile() {
    return (long long)blockIdx.x * (THREADS / QUADS) + threadIdx.x / QUADS;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
compose(const float* __restrict__ pool,  // (rows, 4, 256): planes R, G, B, T
        int rows,
        const int* __restrict__ slots,   // (tiles, layers) rows of pool, -1 for none
        int tiles, int layers, float red, float green, float blue,
        float* __restrict__ image,          // (tiles, 3, 256)
        float* __restrict__ transmittance   // (tiles, 256)
) {
    const long long tile = this_tile();
    if (tile >= tiles) return;
    const float background[3] = {red, green, blue};
    Pixels sums[3] = {}, passed = {{1, 1, 1, 1}};
    for (int m = 0; m < layers; ++m) {
        const int slot = slots[tile * layers + m];
        if (slot < 0 || slot >= rows) continue;
        for (int c = 0; c < 3; ++c) {
            const Pixels colour = load(pool + place(slot, PLANES, c));
            for (int i = 0; i < QUAD; ++i)
                sums[c].value[i] = compose_over(passed.value[i], colour.value[i],
                                                sums[c].value[i]);
        }
        const Pixels t = load(pool + place(slot, PLANES, 3));
        for (int i = 0; i < QUAD; ++i) passed.value[i] *= t.value[i];
    }
    for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < QUAD; ++i)
            sums[c].value[i] = compose_over(passed.value[i], background[c], sums[c].value[i]);
        store(image + place(tile, 3, c), sums[c]);
    }
    store(transmittance + place(tile, 1, 0), passed);
}

// Front to back dL/dC_m = P_m g is final, and P_m waits in the plane of dL/dT_m for the way
// back, which knows what lies behind: any number of layers without memory of its own.
extern "C" __global__ void __launch_bounds__(THREADS)
compose_backward(const float* __restrict__ pool,  // (rows, 4, 256): planes R, G, B, T
                 int rows,
                 const int* __restrict__ slots,   // (tiles, layers) rows of pool, -1 for none
                 int tiles, int layers, float red, float green, float blue,
                 const float* __restrict__ gradient,  // (tiles, 3, 256), g = dL/dC
                 const int* __restrict__ wanted,      // (tiles, layers) rows of out, -1 for none
                 int count,
                 float* out  // (count, 4, 256), zero where nothing is wanted
) {
    const long long tile = this_tile();
    if (tile >= tiles) return;
    Pixels g[3], passed = {{1, 1, 1, 1}};
    for (int c = 0; c < 3; ++c) g[c] = load(gradient + place(tile, 3, c));
    for (int m = 0; m < layers; ++m) {
        const int slot = slots[tile * layers + m], row = wanted[tile * layers + m];
        if (slot < 0 || slot >= rows) continue;
        if (row >= 0 && row < count) {
            for (int c = 0; c < 3; ++c) {
                Pixels by_colour;
                for (int i = 0; i < QUAD; ++i)
                    by_colour.value[i] = compose_colour_backward(passed.value[i], g[c].value[i]);
                store(out + place(row, PLANES, c), by_colour);
            }
            store(out + place(row, PLANES, 3), passed);
        }
        const Pixels t = load(pool + place(slot, PLANES, 3));
        for (int i = 0; i < QUAD; ++i) passed.value[i] *= t.value[i];
    }
    Pixels behind[3];
    const float background[3] = {red, green, blue};
    for (int c = 0; c < 3; ++c)
        for (int i = 0; i < QUAD; ++i) behind[c].value[i] = background[c];
    for (int m = layers - 1; m >= 0; --m) {
        const int slot = slots[tile * layers + m], row = wanted[tile * layers + m];
        if (slot < 0 || slot >= rows) continue;
        if (row >= 0 && row < count) {
            Pixels by_t = load(out + place(row, PLANES, 3));
            for (int i = 0; i < QUAD; ++i) {
                const float at[3] = {g[0].value[i], g[1].value[i], g[2].value[i]};
                const float s[3] = {behind[0].value[i], behind[1].value[i], behind[2].value[i]};
                by_t.value[i] = compose_transmittance_backward(by_t.value[i], at, s);
            }
            store(out + place(row, PLANES, 3), by_t);
        }
        const Pixels t = load(pool + place(slot, PLANES, 3));
        for (int c = 0; c < 3; ++c) {
            const Pixels colour = load(pool + place(slot, PLANES, c));
            for (int i = 0; i < QUAD; ++i)
                behind[c].value[i] =
                    colour_behind(colour.value[i], t.value[i], behind[c].value[i]);
        }
    }
}

// A warp reduces its half of a tile; the largest of both is written as an integer, which orders
// floats that are not negative.
extern "C" __global__ void __launch_bounds__(THREADS)
residuals(const float* __restrict__ pool,  // (rows, 4, 256): planes R, G, B, T
          int rows,
          const int* __restrict__ slots,   // (count, layers) rows of pool, -1 for none
          int count, int layers,
          const int* __restrict__ tiles,   // (count,) indices in the image
          int width, int height,
          int* out) {  // (count, layers + 1) floats, zero before: largest transmittance in the
                       // image's pixels of the tile before each layer and behind the last one
    const long long tile = this_tile();
    if (tile >= count) return;
    const int tiles_x = (width + SIDE - 1) / SIDE, quad = threadIdx.x % QUADS;
    const int x = tiles[tile] % tiles_x * SIDE + quad % (SIDE / QUAD) * QUAD;
    const int inside = tiles[tile] / tiles_x * SIDE + quad / (SIDE / QUAD) < height ? width - x : 0;
    Pixels passed = {{1, 1, 1, 1}};
    for (int m = 0; m <= layers; ++m) {
        float most = 0;
        for (int i = 0; i < QUAD; ++i)
            if (i < inside) most = fmaxf(most, passed.value[i]);
        for (int apart = 16; apart; apart /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        if (threadIdx.x % 32 == 0)
            atomicMax(out + tile * (layers + 1) + m, __float_as_int(most));
        const int slot = m < layers ? slots[tile * layers + m] : -1;
        if (slot < 0 || slot >= rows) continue;
        const Pixels t = load(pool + place(slot, PLANES, 3));
        for (int i = 0; i < QUAD; ++i) passed.value[i] *= t.value[i];
    }
}

// One layer over the background, straight into the image of the view, and back.

namespace {

// Place of this thread's pixels in a plane of the padded image; tile: of the image.
__device__ __forceinline__ long long image_place(int tile, int tiles_x) {
    const int quad = threadIdx.x % QUADS, row = quad / (SIDE / QUAD);
    const long long y = (long long)(tile / tiles_x) * SIDE + row;
    return y * tiles_x * SIDE + tile % tiles_x * SIDE + quad % (SIDE / QUAD) * QUAD;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
compose_layer(const float* __restrict__ pool,  // (rows, 4, 256): planes R, G, B, T
              int rows,
              const int* __restrict__ slots,   // (tiles_x tiles_y,) rows of pool, -1 for none
              int tiles_x, int tiles_y, float red, float green, float blue,
              float* __restrict__ image) {     // (3, 16 tiles_y, 16 tiles_x)
    const long long tile = this_tile();
    if (tile >= (long long)tiles_x * tiles_y) return;
    const int slot = slots[tile];
    const bool held = slot >= 0 && slot < rows;
    const float background[3] = {red, green, blue};
    const long long plane = (long long)PIXELS * tiles_x * tiles_y;
    Pixels passed = {{1, 1, 1, 1}};
    if (held) passed = load(pool + place(slot, PLANES, 3));
    for (int c = 0; c < 3; ++c) {
        Pixels colour = {};
        if (held) colour = load(pool + place(slot, PLANES, c));
        for (int i = 0; i < QUAD; ++i)
            colour.value[i] = compose_over(passed.value[i], background[c], colour.value[i]);
        store(image + c * plane + image_place(int(tile), tiles_x), colour);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
compose_layer_backward(const float* __restrict__ gradient,  // (3, 16 tiles_y, 16 tiles_x), dL/dC
                       const int* __restrict__ tiles,       // (rows,)
                       int rows,
                       const unsigned long long* count,     // (1,) rows in use, or null: all
                       int tiles_x, int tiles_y, float red, float green, float blue,
                       float* __restrict__ out) {           // (rows, 4, 256)
    const long long slot = this_tile();
    if (slot >= rows_in_use(rows, count)) return;
    const float background[3] = {red, green, blue};
    const long long plane = (long long)PIXELS * tiles_x * tiles_y;
    const long long from = image_place(tiles[slot], tiles_x);
    Pixels g[3], by_t;
    for (int c = 0; c < 3; ++c) {
        g[c] = load(gradient + c * plane + from);
        store(out + place(slot, PLANES, c), g[c]);
    }
    for (int i = 0; i < QUAD; ++i) {
        const float at[3] = {g[0].value[i], g[1].value[i], g[2].value[i]};
        by_t.value[i] = compose_transmittance_backward(1.0f, at, background);
    }
    store(out + place(slot, PLANES, 3), by_t);
}

// Tiles of a view to its padded image; the rest of the image stays as it is.
extern "C" __global__ void __launch_bounds__(THREADS)
tiles_to_image(const float* __restrict__ data,  // (count, 3, 256)
               const int* __restrict__ tiles,   // (count,)
               int count, int tiles_x, int tiles_y,
               float* __restrict__ image) {     // (3, 16 tiles_y, 16 tiles_x)
    const long long row = this_tile();
    if (row >= count) return;
    const long long plane = (long long)PIXELS * tiles_x * tiles_y;
    const long long to = image_place(tiles[row], tiles_x);
    for (int c = 0; c < 3; ++c) store(image + c * plane + to, load(data + place(row, 3, c)));
}

// And back.
extern "C" __global__ void __launch_bounds__(THREADS)
image_to_tiles(const float* __restrict__ image,  // (3, 16 tiles_y, 16 tiles_x)
               const int* __restrict__ tiles,    // (count,)
               int count, int tiles_x, int tiles_y,
               float* __restrict__ data) {       // (count, 3, 256)
    const long long row = this_tile();
    if (row >= count) return;
    const long long plane = (long long)PIXELS * tiles_x * tiles_y;
    const long long from = image_place(tiles[row], tiles_x);
    for (int c = 0; c < 3; ++c) store(data + place(row, 3, c), load(image + c * plane + from));
}
