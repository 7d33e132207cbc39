// Rectangles of tiles to and from a dense stream, in which colour may be rounded to half. One
// block a rectangle.
#include "math/half.cuh"

using namespace spx;

namespace {

constexpr int SIDE = 16, PIXELS = SIDE * SIDE, PLANES = 4, THREADS = 256;
static_assert(PIXELS == THREADS, "a thread moves 16 bytes of a whole tile of four planes");
constexpr int WORDS = 5;  // of 16 bits a pixel: three halves and a float

struct Piece {
    long long row, start;
    int x0, y0, width, area;

    __device__ __forceinline__ explicit Piece(const long long* entry)
        : row(entry[0] & 0xffffffff), start(entry[1]) {
        const int rect = int(entry[0] >> 32);
        x0 = rect & 255, y0 = rect >> 8 & 255;
        width = (rect >> 16 & 255) - x0;
        area = width * ((rect >> 24 & 255) - y0);
    }
    // Place in a plane of a tile of pixel number k of the rectangle.
    __device__ __forceinline__ int place(int k) const {
        return (y0 + k / width) * SIDE + x0 + k % width;
    }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
pack(const float* __restrict__ pixels,     // (rows, planes, 256)
     int planes,
     const long long* __restrict__ table,  // (count, 2): row and rectangle, pixels before
     float* __restrict__ stream            // (planes x pixels,)
) {
    const Piece piece(table + 2 * blockIdx.x);
    const float* from = pixels + piece.row * planes * PIXELS;
    float* to = stream + piece.start * planes;
    if (piece.area == PIXELS && planes == PLANES) {
        reinterpret_cast<float4*>(to)[threadIdx.x] =
            reinterpret_cast<const float4*>(from)[threadIdx.x];
        return;
    }
    if (threadIdx.x >= piece.area) return;
    for (int plane = 0; plane < planes; ++plane)
        to[plane * piece.area + threadIdx.x] = from[plane * PIXELS + piece.place(threadIdx.x)];
}

extern "C" __global__ void __launch_bounds__(THREADS)
unpack(const float* __restrict__ stream,     // (planes x pixels,)
       int planes,
       const long long* __restrict__ table,  // (count, 2): row and rectangle, pixels before
       float* __restrict__ out               // (rows, planes, 256)
) {
    const Piece piece(table + 2 * blockIdx.x);
    const float* from = stream + piece.start * planes;
    float* to = out + piece.row * planes * PIXELS;
    if (piece.area == PIXELS && planes == PLANES) {
        reinterpret_cast<float4*>(to)[threadIdx.x] =
            reinterpret_cast<const float4*>(from)[threadIdx.x];
        return;
    }
    if (threadIdx.x >= piece.area) return;
    for (int plane = 0; plane < planes; ++plane)
        to[plane * PIXELS + piece.place(threadIdx.x)] = from[plane * piece.area + threadIdx.x];
}

// Of a rectangle, three planes of halves, then the floats of the fourth: these begin at any even
// address, so they travel as two words.
extern "C" __global__ void __launch_bounds__(THREADS)
pack_half(const float* __restrict__ pixels,     // (rows, 4, 256)
          const long long* __restrict__ table,  // (count, 2): row and rectangle, pixels before
          float scale,                          // of the three planes
          unsigned short* __restrict__ stream   // (5 x pixels,)
) {
    const Piece piece(table + 2 * blockIdx.x);
    if (threadIdx.x >= piece.area) return;
    const float* from = pixels + piece.row * PLANES * PIXELS + piece.place(threadIdx.x);
    unsigned short* to = stream + piece.start * WORDS + threadIdx.x;
    for (int plane = 0; plane < 3; ++plane)
        to[plane * piece.area] = half_of(from[plane * PIXELS] * scale);
    const unsigned bits = __float_as_uint(from[3 * PIXELS]);
    to += 3 * piece.area + threadIdx.x;
    to[0] = static_cast<unsigned short>(bits & 0xffffu);
    to[1] = static_cast<unsigned short>(bits >> 16);
}

extern "C" __global__ void __launch_bounds__(THREADS)
unpack_half(const unsigned short* __restrict__ stream,  // (5 x pixels,)
            const long long* __restrict__ table,  // (count, 2): row and rectangle, pixels before
            float scale,                          // of the three planes
            float* __restrict__ out               // (rows, 4, 256)
) {
    const Piece piece(table + 2 * blockIdx.x);
    if (threadIdx.x >= piece.area) return;
    const unsigned short* from = stream + piece.start * WORDS + threadIdx.x;
    float* to = out + piece.row * PLANES * PIXELS + piece.place(threadIdx.x);
    for (int plane = 0; plane < 3; ++plane)
        to[plane * PIXELS] = float_of_half(from[plane * piece.area]) * scale;
    from += 3 * piece.area + threadIdx.x;
    to[3 * PIXELS] = __uint_as_float(from[0] | unsigned(from[1]) << 16);
}
