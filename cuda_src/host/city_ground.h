// Everything that is not a facade: streets and their markings, slabs, roofs, leaves, cars.
#pragma once

#include "city_facade.h"

namespace city {

constexpr double LANES = 4.5;       // half a carriageway, metres; as in data/city_layout.py
constexpr double WALK = 2.5;        // a sidewalk's width

inline Rgb asphalt(double x, double y, double px, uint32_t seed) {
    double tone = 1.0 + 0.30 * rough(x, y, seed + 11, 6.0, 6, px);
    // Repairs: darker rectangles in some cells of 7 m.
    double cx = (double)whole(x / 7.0), cy = (double)whole(y / 7.0);
    uint32_t key = hash((uint32_t)(int64_t)cx, (uint32_t)(int64_t)cy, seed + 3);
    if (fraction(key) < 0.4) {
        double a = 0.5 + 2.5 * fraction(scramble(key + 1));
        double b = 0.5 + 2.5 * fraction(scramble(key + 2));
        double fx = x - 7.0 * cx, fy = y - 7.0 * cy;
        tone -= 0.22 * cover(fx, a, a + 2.8, px) * cover(fy, b, b + 2.2, px);
    }
    if (fraction(scramble(key + 7)) < 0.25) {       // a manhole
        double fx = x - 7.0 * cx - 3.5, fy = y - 7.0 * cy - 3.5;
        double r = std::sqrt(fx * fx + fy * fy);
        tone -= 0.35 * cover(r, 0.0, 0.45, px);
        tone += 0.30 * cover(r, 0.40, 0.52, px);
    }
    return tone * Rgb{.47, .47, .48};
}

// Paint of a street along b with its middle at a = 0; b = 0 at a crossing's middle.
inline double paint(double a, double b, double pitch, double px) {
    double along = std::fabs(b);
    double clear = LANES + WALK + 1.6;
    double dashes = cover(a, -0.09, 0.09, px) * stripes(along - clear, 1.6, 3.2, px) *
                    cover(along, clear, 0.5 * pitch, px);
    double zebra = stripes(a + 4.0, 0.5, 1.0, px) * cover(a, -4.0, 4.0, px) *
                   cover(along, LANES + 0.3, LANES + WALK - 0.1, px);
    double stop = cover(a * (b > 0 ? -1.0 : 1.0), 0.2, 4.2, px) *
                  cover(along, LANES + WALK + 0.6, LANES + WALK + 1.0, px);
    double parking = cover(std::fabs(a), 2.45, 2.57, px) * cover(along, clear, 0.5 * pitch, px);
    return std::min(1.0, dashes + zebra + stop + 0.7 * parking);
}

inline Rgb meadow(double x, double y, double px, uint32_t seed) {
    double dry = rough(x, y, seed + 21, 24.0, 4, px);
    Rgb grass = mix({.36, .46, .26}, {.58, .56, .36}, clamp(0.5 + 0.9 * dry, 0, 1));
    return (1.0 + 0.45 * rough(x, y, seed + 23, 3.0, 4, px)) * grass;
}

inline Rgb ground(const Scene& scene, double x, double y, double px, uint32_t seed) {
    double reach = scene.half + LANES;
    if (std::fabs(x) > reach || std::fabs(y) > reach) return meadow(x, y, px, seed);
    auto offset = [&](double v) {
        double q = (v - scene.line) / scene.pitch;
        return scene.pitch * (q - std::round(q));
    };
    double a = offset(x), b = offset(y);
    double white = 0;
    if (std::fabs(a) < LANES && std::fabs(b) >= LANES) white = paint(a, b, scene.pitch, px);
    if (std::fabs(b) < LANES && std::fabs(a) >= LANES) white = paint(b, a, scene.pitch, px);
    double worn = 0.85 + 0.5 * rough(x, y, seed + 29, 1.5, 3, px);
    return mix(asphalt(x, y, px, seed), {.84, .83, .78}, clamp(white * worn, 0, 1));
}

// Paving of a block; (u, v) from its lower left corner.
inline Rgb paving(const Piece& piece, double x, double y, double px, uint32_t seed) {
    double edge = std::min(std::min(x - piece.low[0], piece.high[0] - x),
                           std::min(y - piece.low[1], piece.high[1] - y));
    int64_t i = whole(x / 1.2), j = whole(y / 1.2);
    double tone = 1.0 + 0.14 * kept(2.0, px) * (draw(i, j, seed) - 0.5);
    tone += 0.22 * rough(x, y, seed + 2, 5.0, 5, px);
    tone -= 0.25 * std::max(stripes(x, 0.06, 1.2, px), stripes(y, 0.06, 1.2, px));
    Rgb stone = edge < WALK ? Rgb{.64, .62, .59} : Rgb{.60, .54, .47};
    stone = mix(stone, {.76, .75, .72}, cover(edge, -1.0, 0.3, px));        // kerb
    return tone * stone;
}

inline Rgb park(const Piece& piece, double x, double y, double px, uint32_t seed) {
    double edge = std::min(std::min(x - piece.low[0], piece.high[0] - x),
                           std::min(y - piece.low[1], piece.high[1] - y));
    if (edge < WALK) return paving(piece, x, y, px, seed);
    double a = x - 0.5 * (piece.low[0] + piece.high[0]);
    double b = y - 0.5 * (piece.low[1] + piece.high[1]);
    double r = std::sqrt(a * a + b * b);
    double path = std::min(1.0, cover(a - b, -1.2, 1.2, px) + cover(a + b, -1.2, 1.2, px) +
                                    cover(r, 0.0, 4.0, px));
    Rgb grass = (1.0 + 0.5 * rough(x, y, seed, 4.0, 5, px)) * Rgb{.40, .52, .27};
    Rgb sand = (1.0 + 0.25 * rough(x, y, seed + 9, 3.0, 4, px)) * Rgb{.76, .68, .53};
    return mix(grass, sand, path);
}

inline Rgb flat_roof(const Piece& piece, double x, double y, double px, uint32_t seed) {
    constexpr Rgb kinds[4] = {{.58, .57, .55}, {.66, .61, .54}, {.48, .50, .52}, {.60, .47, .42}};
    double tone = 1.0 + 0.28 * rough(x, y, seed, 6.0, 6, px);
    double u = x - piece.low[0], v = y - piece.low[1];
    int64_t i = whole(u / 2.4), j = whole(v / 4.8);
    tone += 0.12 * (draw(i, j, seed + 4) - 0.5) * kept(4.0, px);            // sheets and seams
    tone -= 0.20 * std::max(stripes(u, 0.10, 2.4, px), stripes(v, 0.10, 4.8, px));
    return tone * kinds[hash(seed, 4, 7) % 4];
}

// Pitched roof: rows of tiles down the slope; (u along the ridge, v down).
inline Rgb tiles(double u, double v, double px, uint32_t seed) {
    constexpr Rgb kinds[4] = {{.68, .38, .28}, {.58, .36, .30}, {.46, .44, .46}, {.72, .48, .34}};
    double row = (double)whole(v / 0.5);
    double each = draw(whole(u / 0.6 + 0.5 * row), (int64_t)row, seed) - 0.5;
    double tone = 1.0 + 0.25 * rough(u, v, seed + 5, 4.0, 4, px) + 0.3 * kept(0.6, px) * each;
    tone -= 0.25 * stripes(v, 0.12, 0.5, px);
    return tone * kinds[hash(seed, 6, 7) % 4];
}

inline Rgb foliage(Vec p, Vec n, double px, uint32_t seed) {
    double tufts = rough(p.x + 0.7 * p.z, p.y - 0.7 * p.z, seed, 1.6, 4, px);
    Rgb leaf = mix({.24, .38, .18}, {.58, .66, .34}, clamp(0.5 + 1.5 * tufts, 0, 1));
    Rgb tree = 0.85 * leaf + (0.15 * fraction(hash(seed, 8, 7))) * Rgb{.7, .6, .2};
    return (0.80 + 0.25 * n.z) * tree;
}

inline Rgb car(const Piece& piece, const Kind& kind, Vec p, Vec n, double px) {
    constexpr Rgb coats[6] = {{.72, .16, .15}, {.20, .30, .52}, {.84, .84, .83},
                              {.26, .27, .29}, {.56, .58, .60}, {.78, .68, .40}};
    Rgb coat = coats[hash(kind.seed, 5, 7) % 6];
    bool along_x = piece.high[0] - piece.low[0] > piece.high[1] - piece.low[1];
    double u = along_x ? p.x - piece.low[0] : p.y - piece.low[1];
    double length = along_x ? piece.high[0] - piece.low[0] : piece.high[1] - piece.low[1];
    double z = p.z - piece.low[2], high = piece.high[2] - piece.low[2];
    if (n.z > 0.5) return kind.material == CABIN ? 0.95 * coat : coat;
    if (kind.material == CABIN) {
        double post = stripes(u + 0.05, 0.12, 0.5 * length, px);
        Rgb pane = mix({.16, .19, .23}, {.40, .46, .52}, clamp(z / high, 0, 1));
        return mix(pane, coat, std::max(post, cover(z, 0.85 * high, high, px)));
    }
    double wheels = cover(u, 0.5, 1.15, px) + cover(u, length - 1.15, length - 0.5, px);
    Rgb side = mix(coat, {.14, .14, .15}, cover(z, 0.0, 0.22, px));
    return mix(side, {.12, .12, .13}, std::min(1.0, wheels) * cover(z, 0.0, 0.55, px));
}

inline Rgb metal(const Piece& piece, Vec p, Vec n, double px, uint32_t seed) {
    Rgb base = (0.85 + 0.3 * fraction(hash(seed, 9, 7))) * Rgb{.68, .69, .69};
    double v = n.z > 0.5 ? p.x - piece.low[0] : p.z - piece.low[2];
    double tone = 1.0 + 0.2 * rough(p.x + p.y, p.z + p.y, seed, 1.5, 3, px);
    return (tone - 0.25 * stripes(v, 0.12, 0.36, px)) * base;
}

}  // namespace city
