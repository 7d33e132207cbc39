// Tiles of 16 x 16 pixels to and from a dense stream; edge tiles are clipped to the image.
#include <omp.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t SIDE = 16, PIXELS = SIDE * SIDE, PLANES = 4;

struct Clip {
    int64_t width, height;
};

Clip clip_of(int32_t tile, int64_t width, int64_t height) {
    const int64_t tiles_x = (width + SIDE - 1) / SIDE;
    const int64_t x = tile % tiles_x * SIDE, y = tile / tiles_x * SIDE;
    return {width - x < SIDE ? width - x : SIDE, height - y < SIDE ? height - y : SIDE};
}

// Start of each tile in the stream, and the length at the end.
std::vector<int64_t> starts_of(const int32_t* tiles, int64_t count, int64_t width,
                               int64_t height) {
    std::vector<int64_t> starts(count + 1, 0);
    for (int64_t k = 0; k < count; ++k) {
        const Clip clip = clip_of(tiles[k], width, height);
        starts[k + 1] = starts[k] + PLANES * clip.width * clip.height;
    }
    return starts;
}

template <typename T>
int64_t pack(const T* pixels, const int32_t* index, const int32_t* tiles, int64_t count,
             int64_t width, int64_t height, T* stream, int64_t threads) {
    const std::vector<int64_t> starts = starts_of(tiles, count, width, height);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Clip clip = clip_of(tiles[k], width, height);
        T* to = stream + starts[k];
        for (int64_t plane = 0; plane < PLANES; ++plane)
            for (int64_t y = 0; y < clip.height; ++y, to += clip.width)
                std::memcpy(to, pixels + (PLANES * index[k] + plane) * PIXELS + SIDE * y,
                            clip.width * sizeof(T));
    }
    return starts[count];
}

// Pixels outside the image become zero (colour) and one (transmittance).
template <typename T>
int64_t unpack(const T* stream, const int32_t* tiles, int64_t count, int64_t width,
               int64_t height, T* out, int64_t threads) {
    const std::vector<int64_t> starts = starts_of(tiles, count, width, height);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Clip clip = clip_of(tiles[k], width, height);
        const T* from = stream + starts[k];
        for (int64_t plane = 0; plane < PLANES; ++plane) {
            T* to = out + (PLANES * k + plane) * PIXELS;
            if (clip.width < SIDE || clip.height < SIDE)
                for (int64_t i = 0; i < PIXELS; ++i) to[i] = T(plane == PLANES - 1);
            for (int64_t y = 0; y < clip.height; ++y, from += clip.width)
                std::memcpy(to + SIDE * y, from, clip.width * sizeof(T));
        }
    }
    return starts[count];
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                  \
    extern "C" int64_t spx_pack_##SUFFIX(const T* pixels, const int32_t* index,                 \
                                         const int32_t* tiles, int64_t count, int64_t width,    \
                                         int64_t height, T* stream, int64_t threads) {          \
        return pack<T>(pixels, index, tiles, count, width, height, stream, threads);            \
    }                                                                                           \
    extern "C" int64_t spx_unpack_##SUFFIX(const T* stream, const int32_t* tiles,               \
                                           int64_t count, int64_t width, int64_t height,        \
                                           T* out, int64_t threads) {                           \
        return unpack<T>(stream, tiles, count, width, height, out, threads);                    \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
