// Rectangles of tiles to and from a dense stream, in which colour may be rounded to half.
#include <omp.h>

#include <cstdint>
#include <cstring>

#include "math/half.cuh"

namespace {

using namespace spx;

constexpr int64_t SIDE = 16, PIXELS = SIDE * SIDE;

// An entry of the table: row of the tiles in 32 bits and a byte for each side of the rectangle, x0
// lowest, above; pixels of the stream before it.
struct Piece {
    int64_t row, x0, y0, width, height, start;

    explicit Piece(const int64_t* entry)
        : row(entry[0] & 0xffffffff), x0(entry[0] >> 32 & 255), y0(entry[0] >> 40 & 255),
          width((entry[0] >> 48 & 255) - x0), height((entry[0] >> 56 & 255) - y0),
          start(entry[1]) {}
};

template <typename T>
int64_t pack(const T* pixels, int64_t planes, const int64_t* table, int64_t count, T* stream,
             int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Piece piece(table + 2 * k);
        T* to = stream + planes * piece.start;
        for (int64_t plane = 0; plane < planes; ++plane) {
            const T* from = pixels + (planes * piece.row + plane) * PIXELS + piece.x0;
            for (int64_t y = 0; y < piece.height; ++y, to += piece.width)
                std::memcpy(to, from + SIDE * (piece.y0 + y), piece.width * sizeof(T));
        }
    }
    return 0;
}

template <typename T>
int64_t unpack(const T* stream, int64_t planes, const int64_t* table, int64_t count, T* out,
               int64_t threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Piece piece(table + 2 * k);
        const T* from = stream + planes * piece.start;
        for (int64_t plane = 0; plane < planes; ++plane) {
            T* to = out + (planes * piece.row + plane) * PIXELS + piece.x0;
            for (int64_t y = 0; y < piece.height; ++y, from += piece.width)
                std::memcpy(to + SIDE * (piece.y0 + y), from, piece.width * sizeof(T));
        }
    }
    return 0;
}

// Of a piece, three planes of halves, then the fourth as it is.
template <typename T>
int64_t pack_half(const T* pixels, const int64_t* table, int64_t count, double scale,
                  uint16_t* stream, int64_t threads) {
    constexpr int64_t WORDS = 3 + sizeof(T) / sizeof(uint16_t);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Piece piece(table + 2 * k);
        uint16_t* to = stream + WORDS * piece.start;
        for (int64_t plane = 0; plane < 4; ++plane) {
            const T* from = pixels + (4 * piece.row + plane) * PIXELS + piece.x0;
            for (int64_t y = piece.y0; y < piece.y0 + piece.height; ++y) {
                if (plane == 3) {
                    std::memcpy(to, from + SIDE * y, piece.width * sizeof(T));
                    to += piece.width * (WORDS - 3);
                    continue;
                }
                for (int64_t x = 0; x < piece.width; ++x)
                    *to++ = half_of(float(from[SIDE * y + x] * T(scale)));
            }
        }
    }
    return 0;
}

template <typename T>
int64_t unpack_half(const uint16_t* stream, const int64_t* table, int64_t count, double scale,
                    T* out, int64_t threads) {
    constexpr int64_t WORDS = 3 + sizeof(T) / sizeof(uint16_t);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < count; ++k) {
        const Piece piece(table + 2 * k);
        const uint16_t* from = stream + WORDS * piece.start;
        for (int64_t plane = 0; plane < 4; ++plane) {
            T* to = out + (4 * piece.row + plane) * PIXELS + piece.x0;
            for (int64_t y = piece.y0; y < piece.y0 + piece.height; ++y) {
                if (plane == 3) {
                    std::memcpy(to + SIDE * y, from, piece.width * sizeof(T));
                    from += piece.width * (WORDS - 3);
                    continue;
                }
                for (int64_t x = 0; x < piece.width; ++x)
                    to[SIDE * y + x] = T(float_of_half(*from++)) * T(scale);
            }
        }
    }
    return 0;
}

}  // namespace

// pixels, out: (rows, planes, 256); table: (count, 3); scale: on colour, before and after.
#define SPX_KERNELS(T, SUFFIX)                                                                  \
    extern "C" int64_t spx_pack_##SUFFIX(const T* pixels, int64_t planes, const int64_t* table, \
                                         int64_t count, T* stream, int64_t threads) {           \
        return pack<T>(pixels, planes, table, count, stream, threads);                          \
    }                                                                                           \
    extern "C" int64_t spx_unpack_##SUFFIX(const T* stream, int64_t planes,                     \
                                           const int64_t* table, int64_t count, T* out,         \
                                           int64_t threads) {                                   \
        return unpack<T>(stream, planes, table, count, out, threads);                           \
    }                                                                                           \
    extern "C" int64_t spx_pack_half_##SUFFIX(const T* pixels, const int64_t* table,            \
                                              int64_t count, double scale, uint16_t* stream,    \
                                              int64_t threads) {                                \
        return pack_half<T>(pixels, table, count, scale, stream, threads);                      \
    }                                                                                           \
    extern "C" int64_t spx_unpack_half_##SUFFIX(const uint16_t* stream, const int64_t* table,   \
                                                int64_t count, double scale, T* out,            \
                                                int64_t threads) {                              \
        return unpack_half<T>(stream, table, count, scale, out, threads);                       \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)

// table: (pieces, 2). Returns the first piece that does not lie in so many tiles and pixels, or -1.
extern "C" int64_t spx_check_pieces(const int64_t* table, int64_t pieces, int64_t rows,
                                    int64_t pixels) {
    for (int64_t k = 0; k < pieces; ++k) {
        const Piece piece(table + 2 * k);
        const bool inside = piece.width >= 0 && piece.height >= 0 &&
                            piece.x0 + piece.width <= SIDE && piece.y0 + piece.height <= SIDE;
        if (piece.row >= rows || !inside || piece.start < 0 ||
            piece.start > pixels - piece.width * piece.height)
            return k;
    }
    return -1;
}
