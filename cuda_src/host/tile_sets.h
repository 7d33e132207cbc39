// Sets of tiles of a view: as bytes (one a tile, 0 or 1, row major) where Python sees them, as bits
// (tile t is bit t % 64 of word t / 64) where they are worked with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace spx {

using Word = uint64_t;

constexpr int64_t TILE_SIDE = 16, WORD_BITS = 64;

inline int64_t words_of(int64_t count) { return (count + WORD_BITS - 1) / WORD_BITS; }

// The tiles of a view, those at the right and lower side clipped.
struct Grid {
    int64_t width, height, tiles_x, tiles_y, count, words;

    Grid(int64_t width, int64_t height)
        : width(width), height(height), tiles_x((width + TILE_SIDE - 1) / TILE_SIDE),
          tiles_y((height + TILE_SIDE - 1) / TILE_SIDE), count(tiles_x * tiles_y),
          words(words_of(count)) {}

    int64_t wide(int64_t x) const { return std::min(TILE_SIDE, width - TILE_SIDE * x); }
    int64_t high(int64_t y) const { return std::min(TILE_SIDE, height - TILE_SIDE * y); }
    // the tiles that the last word has
    Word last() const { return ~Word(0) >> (WORD_BITS * words - count); }
};

inline int64_t ones(Word w) {  // without the instruction, which not every x86-64 has
    w -= w >> 1 & 0x5555555555555555u;
    w = (w & 0x3333333333333333u) + (w >> 2 & 0x3333333333333333u);
    return int64_t(((w + (w >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

inline int64_t size_of(const Word* set, int64_t words) {
    int64_t sum = 0;
    for (int64_t w = 0; w < words; ++w) sum += ones(set[w]);
    return sum;
}

inline bool has(const Word* set, int64_t tile) {
    return set[tile / WORD_BITS] >> tile % WORD_BITS & 1;
}

// Adds tiles first to last - 1.
inline void add_run(Word* set, int64_t first, int64_t last) {
    for (int64_t end; first < last; first = end) {
        end = std::min(last, (first / WORD_BITS + 1) * WORD_BITS);
        set[first / WORD_BITS] |= ~Word(0) >> (WORD_BITS - (end - first)) << first % WORD_BITS;
    }
}

// f(tile) for all tiles of a word, ascending.
template <typename F>
void each_of(Word word, int64_t first, F f) {
    if (word == ~Word(0)) {
        for (int64_t k = 0; k < WORD_BITS; ++k) f(first + k);
        return;
    }
    for (; word; word &= word - 1) f(first + __builtin_ctzll(word));
}

template <typename F>
void each(const Word* set, int64_t words, F f) {
    for (int64_t w = 0; w < words; ++w) each_of(set[w], WORD_BITS * w, f);
}

inline void bits_of_bytes(const uint8_t* bytes, int64_t count, Word* bits) {
    std::memset(bits, 0, words_of(count) * sizeof(Word));
    int64_t t = 0;
#ifdef __SSE2__
    for (; t + 16 <= count; t += 16) {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + t));
        const Word top = Word(_mm_movemask_epi8(_mm_slli_epi16(some, 7)));
        bits[t / WORD_BITS] |= top << t % WORD_BITS;
    }
#endif
    for (; t + 8 <= count; t += 8) {
        Word eight;
        std::memcpy(&eight, bytes + t, 8);
        // byte i, at bit 8 i, times 2^(56 - 7 i) is bit 56 + i; no two products share a bit
        bits[t / WORD_BITS] |= (eight * 0x0102040810204080u >> 56) << t % WORD_BITS;
    }
    for (; t < count; ++t) bits[t / WORD_BITS] |= Word(bytes[t] & 1) << t % WORD_BITS;
}

// Eight bytes of 0 and 1 for every byte of bits.
struct Spread {
    Word bytes[256];

    constexpr Spread() : bytes() {
        for (int value = 0; value < 256; ++value)
            for (int i = 0; i < 8; ++i) bytes[value] |= Word(value >> i & 1) << 8 * i;
    }
};

inline constexpr Spread SPREAD;

inline void bytes_of_bits(const Word* bits, int64_t count, uint8_t* bytes) {
    int64_t t = 0;
#ifdef __SSE2__
    const __m128i each_bit = _mm_set1_epi64x(int64_t(0x8040201008040201u));
    for (; t + 16 <= count; t += 16) {
        // eight times the lower of two bytes of bits, eight times the upper one
        __m128i two = _mm_cvtsi32_si128(int(bits[t / WORD_BITS] >> t % WORD_BITS & 0xffff));
        two = _mm_unpacklo_epi8(two, two);
        two = _mm_unpacklo_epi32(_mm_shufflelo_epi16(two, 0), _mm_shufflelo_epi16(two, 0x55));
        two = _mm_shuffle_epi32(two, 0xd8);
        two = _mm_cmpeq_epi8(_mm_and_si128(two, each_bit), each_bit);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + t),
                         _mm_and_si128(two, _mm_set1_epi8(1)));
    }
#endif
    for (; t + 8 <= count; t += 8)
        std::memcpy(bytes + t, SPREAD.bytes + (bits[t / WORD_BITS] >> t % WORD_BITS & 255), 8);
    for (; t < count; ++t) bytes[t] = has(bits, t);
}

// Some sets of tiles of one view.
struct Sets {
    int64_t words;
    std::vector<Word> data;

    Sets(int64_t rows, int64_t words) : words(words), data(rows * words) {}
    Word* operator[](int64_t row) { return data.data() + words * row; }
};

// Widens sets of tiles of a view by one tile in all eight directions.
class Dilation {
  public:
    explicit Dilation(const Grid& grid)
        : grid(grid), room(grid.tiles_x / WORD_BITS + 1), inner(2, grid.words),
          padded(2, grid.words + 2 * room) {
        std::fill(inner[0], inner[0] + 2 * grid.words, ~Word(0));
        for (int64_t y = 0; y < grid.tiles_y; ++y) {
            drop(inner[0], y * grid.tiles_x);
            drop(inner[1], (y + 1) * grid.tiles_x - 1);
        }
        inner[0][grid.words - 1] &= grid.last();
    }

    void operator()(const Word* set, Word* out) {
        Word *in = padded[0] + room, *wide = padded[1] + room;
        std::copy(set, set + grid.words, in);
        const Word *left = inner[0], *right = inner[1];
        for (int64_t w = 0; w < grid.words; ++w)
            wide[w] = in[w] | ((in[w] << 1 | in[w - 1] >> 63) & left[w]) |
                      ((in[w] >> 1 | in[w + 1] << 63) & right[w]);
        const int64_t whole = grid.tiles_x / WORD_BITS, part = grid.tiles_x % WORD_BITS;
        const Word *before = wide - whole, *behind = wide + whole;
        if (part)
            for (int64_t w = 0; w < grid.words; ++w)
                out[w] = wide[w] | before[w] << part | before[w - 1] >> (WORD_BITS - part) |
                         behind[w] >> part | behind[w + 1] << (WORD_BITS - part);
        else
            for (int64_t w = 0; w < grid.words; ++w) out[w] = wide[w] | before[w] | behind[w];
        out[grid.words - 1] &= grid.last();
    }

  private:
    static void drop(Word* set, int64_t tile) {
        set[tile / WORD_BITS] &= ~(Word(1) << tile % WORD_BITS);
    }

    Grid grid;
    int64_t room;  // words of zeros before and behind what is widened: more than a row
    Sets inner;    // tiles with one to the left, and with one to the right
    Sets padded;
};

struct Rect {
    int64_t x0, y0, x1, y1;

    int64_t area() const { return (x1 - x0) * (y1 - y0); }
    int64_t packed() const { return x0 | y0 << 8 | x1 << 16 | y1 << 24; }
};

// Of a tile the rectangle around its pixels that lie within reach of a set that it is not in.
inline Rect strip(const Word* set, const Grid& grid, int64_t tile, int64_t reach) {
    const int64_t x = tile % grid.tiles_x, y = tile / grid.tiles_x;
    const auto in = [&](int64_t dx, int64_t dy) {
        const int64_t u = x + dx, v = y + dy;
        return u >= 0 && v >= 0 && u < grid.tiles_x && v < grid.tiles_y &&
               has(set, v * grid.tiles_x + u);
    };
    const bool above = in(0, -1), below = in(0, 1), before = in(-1, 0), after = in(1, 0);
    const bool above_left = in(-1, -1), above_right = in(1, -1);
    const bool below_left = in(-1, 1), below_right = in(1, 1);
    // every neighbour but one to the right reaches pixels at the left edge, and so on
    const bool touched = above || below, across = before || after;
    const bool left = touched || above_left || before || below_left;
    const bool right = touched || above_right || after || below_right;
    const bool top = across || above || above_left || above_right;
    const bool bottom = across || below || below_left || below_right;
    const int64_t far = TILE_SIDE - reach;
    return {left ? 0 : far, top ? 0 : far, std::min(grid.wide(x), right ? TILE_SIDE : reach),
            std::min(grid.high(y), bottom ? TILE_SIDE : reach)};
}

}  // namespace spx
