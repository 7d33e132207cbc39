// Facades: storeys and bays of windows, doors and shops at street level, bands and cornices.
#pragma once

#include "city_noise.h"

namespace city {

// A point of a wall: u along it, z above its foot, both in metres.
struct Wall {
    double u, length, z, height;
    bool street;          // stands on the ground: has doors and shops
    int style;            // 0 brick, 1 plaster, 2 ribbon windows, 3 glass, 4 stone, 5 row house
    uint32_t seed, face;  // of the building, of this wall
    double width;         // of a pixel on the wall, metres
};

// Measures of a style, metres: spacing of windows and floors; the window itself and its sill.
struct Measure {
    double bay, storey, window, tall, sill;
};

constexpr int STYLES = 6;
constexpr Measure MEASURES[STYLES] = {
    {2.7, 3.2, 1.25, 1.75, 0.9},  {3.1, 3.1, 1.2, 1.6, 0.9},   {2.2, 3.4, 2.02, 1.6, 1.05},
    {1.7, 3.5, 1.52, 2.5, 0.85}, {3.0, 3.8, 1.3, 2.3, 0.8},   {3.3, 3.0, 1.3, 1.4, 0.95},
};

constexpr Rgb WALLS[STYLES][4] = {
    {{.62, .36, .28}, {.70, .47, .35}, {.55, .33, .29}, {.74, .58, .44}},
    {{.88, .80, .60}, {.86, .67, .55}, {.72, .79, .82}, {.90, .87, .80}},
    {{.76, .74, .69}, {.66, .67, .68}, {.82, .78, .70}, {.58, .60, .60}},
    {{.50, .60, .66}, {.46, .58, .56}, {.58, .62, .70}, {.52, .52, .55}},
    {{.80, .75, .64}, {.74, .70, .64}, {.84, .79, .70}, {.70, .64, .55}},
    {{.90, .86, .78}, {.72, .48, .38}, {.80, .84, .78}, {.92, .80, .66}},
};

constexpr Rgb ACCENTS[8] = {
    {.70, .22, .20}, {.20, .42, .60}, {.24, .50, .36}, {.86, .66, .24},
    {.50, .30, .50}, {.30, .32, .36}, {.84, .46, .22}, {.88, .86, .80},
};

inline Rgb wall_colour(int style, uint32_t seed) {
    Rgb base = WALLS[style][hash(seed, 1, 7) % 4];
    double tone = 0.94 + 0.12 * fraction(hash(seed, 2, 7));
    return tone * base;
}

inline Rgb accent(uint32_t seed) { return ACCENTS[hash(seed, 3, 7) % 8]; }

// The wall between windows: courses of brick or stone, stains at several scales.
inline Rgb masonry(const Wall& w) {
    Rgb colour = wall_colour(w.style, w.seed);
    double tone = 1.0 + 0.26 * rough(w.u, w.z, w.face, 4.0, 6, w.width);
    tone += 0.10 * kept(1.0, w.width) * noise(w.u / 0.5, w.z / 5.0, w.face + 31);  // rain streaks
    bool brick = w.style == 0 || w.style == 4;
    if (brick) {        // courses larger than real ones, so that a photograph can show them
        double high = w.style == 0 ? 0.3 : 0.6, wide = w.style == 0 ? 0.7 : 1.3;
        double row = (double)whole(w.z / high);
        double u = w.u + (((int64_t)row & 1) ? 0.5 * wide : 0.0);
        double keep = kept(wide, w.width);
        double each = draw(whole(u / wide), (int64_t)row, w.face + 5) - 0.5;
        double joint = std::max(stripes(w.z, 0.05, high, w.width), stripes(u, 0.05, wide, w.width));
        tone += 0.20 * keep * each - 0.22 * joint;
    }
    if (w.style == 2) tone -= 0.12 * stripes(w.u, 0.06, 4.4, w.width);
    tone -= 0.18 * (1.0 - ramp(w.z, 0.0, 1.2)) * (w.street ? 1.0 : 0.0);           // splash zone
    return tone * colour;
}

// Panes: dark rooms under a reflection that brightens upwards, curtains, blinds, some lamps.
inline Rgb glass(double fu, double fz, uint32_t key) {
    double pick = fraction(scramble(key)), tone = fraction(scramble(key + 1));
    Rgb pane = mix({.17, .21, .26}, {.46, .56, .64}, clamp(0.25 * tone + 0.75 * fz * fz, 0, 1));
    pane = (0.75 + 0.5 * tone) * pane;
    if (pick < 0.14) pane = mix(pane, {.90, .76, .50}, 0.7);
    if (pick > 0.55 && pick < 0.80) {       // curtains at both sides
        double side = 0.14 + 0.2 * tone;
        double cloth = cover(fu, 0.0, side, 0.12) + cover(fu, 1.0 - side, 1.0, 0.12);
        pane = mix(pane, {.80, .78, .73}, 0.8 * std::min(cloth, 1.0));
    }
    if (pick > 0.80) pane = mix(pane, {.74, .72, .66}, 0.8 * cover(fz, 1.0 - 0.8 * tone, 1.5, .08));
    return pane;
}

// One window in a cell of the wall; (u, z) from the cell's lower left corner, bay wide.
inline Rgb window(const Wall& w, Rgb wall, double u, double z, double bay, uint32_t key) {
    const Measure& m = MEASURES[w.style];
    double part = std::min(m.window, bay - 0.16);
    double left = 0.5 * (bay - part), right = left + part, low = m.sill, high = m.sill + m.tall;
    double px = w.width;
    Rgb frame = w.style == 3 ? Rgb{.66, .68, .70} : w.style == 2 ? Rgb{.40, .42, .44}
                                                                 : Rgb{.90, .89, .85};
    if (w.style == 1) {                     // shutters
        double beside = cover(u, left - 0.5, left - 0.08, px);
        beside += cover(u, right + 0.08, right + 0.5, px);
        wall = mix(wall, accent(w.seed + 9), 0.85 * beside * cover(z, low, high, px));
    }
    if (w.style != 3) {                     // sill and the shadow that it throws
        double wide = cover(u, left - 0.18, right + 0.18, px);
        wall = mix(wall, {.82, .80, .75}, wide * cover(z, low - 0.2, low - 0.03, px));
        wall = (1.0 - 0.28 * wide * cover(z, low - 0.42, low - 0.2, px)) * wall;
    }
    double rim = 0.12;
    double outer = cover(u, left - rim, right + rim, px) * cover(z, low - rim, high + rim, px);
    double inner = cover(u, left, right, px) * cover(z, low, high, px);
    double bars = 0;
    if (w.style != 2 && w.style != 3) {
        double middle = 0.5 * bay, cross = low + 0.68 * (high - low);
        bars = std::max(cover(u, middle - 0.05, middle + 0.05, px),
                        cover(z, cross - 0.05, cross + 0.05, px));
    }
    Rgb pane = glass(clamp((u - left) / part, 0, 1), clamp((z - low) / m.tall, 0, 1), key);
    Rgb colour = mix(wall, frame, outer);
    return mix(colour, pane, inner * (1.0 - bars));
}

// Shops, doors and their signs; u along the whole wall, bays as above.
inline Rgb ground_floor(const Wall& w, Rgb wall, double storey) {
    double unit_size = w.style == 5 ? 6.6 : 5.2, px = w.width;
    int64_t units = std::max<int64_t>(1, std::llround(w.length / unit_size));
    double size = w.length / units;
    int64_t i = std::min<int64_t>(std::max<int64_t>(whole(w.u / size), 0), units - 1);
    double u = w.u - i * size;
    uint32_t key = hash((uint32_t)i, w.face, 17);
    bool shop = w.style != 5 && fraction(scramble(key + 5)) < 0.62;
    double door = shop ? size - 1.5 : 0.5 * size - 0.55, top = 2.35;
    Rgb paint = accent(key);
    Rgb colour = wall;
    if (shop) {
        Rgb pane = glass(std::fmod(u, 1.6) / 1.6, clamp(w.z / 3.0, 0, 1), key + 40);
        double things = rough(w.u, w.z, key, 0.8, 3, px);           // goods in the window
        pane = pane + (0.22 * things) * Rgb{1.0, 0.9, 0.7};
        double bars = stripes(u - 0.3, 0.09, 1.6, px);
        double show = cover(u, 0.3, door - 0.3, px) * cover(w.z, 0.55, top, px);
        double front = cover(u, 0.12, size - 0.12, px) * cover(w.z, 0.0, 3.1, px);
        colour = mix(colour, 0.8 * paint, front);
        colour = mix(colour, pane, show * (1.0 - bars));
        double sign = cover(u, 0.2, size - 0.2, px) * cover(w.z, 2.5, 3.05, px);
        Rgb board = accent(key + 3);
        double letters = kept(0.4, px) * (noise(u / 0.22, 3.0, key + 2) > 0.05 ? 1.0 : 0.0) *
                         cover(u, 0.7, size - 1.2, px) * cover(w.z, 2.64, 2.92, px);
        colour = mix(colour, board, sign);
        colour = mix(colour, {.94, .92, .86}, letters);
    } else {                                                        // windows beside the door
        Wall beside = w;
        beside.style = w.style == 3 ? 2 : w.style;
        double off = u < 0.5 * size ? 0.0 : 0.5 * size + 0.5;
        colour = window(beside, wall, u - off, w.z, 0.5 * size - 0.5, key + (off > 0));
    }
    double frame = cover(u, door - 0.12, door + 1.22, px) * cover(w.z, 0.0, top + 0.12, px);
    double leaf = cover(u, door, door + 1.1, px) * cover(w.z, 0.0, top, px);
    double light = cover(u, door + 0.2, door + 0.9, px) * cover(w.z, 1.3, 2.1, px);
    colour = mix(colour, {.86, .84, .80}, frame);
    colour = mix(colour, 0.75 * accent(key + 8), leaf);
    colour = mix(colour, {.32, .38, .44}, light);
    double band = cover(w.z, storey - 0.32, storey - 0.04, px);
    return mix(colour, 1.08 * wall_colour(w.style, w.seed), band);
}

inline Rgb facade(const Wall& w) {
    const Measure& m = MEASURES[w.style];
    int64_t floors = std::max<int64_t>(1, (int64_t)((w.height + 0.3) / m.storey));
    int64_t bays = std::max<int64_t>(1, (int64_t)(w.length / m.bay));
    double storey = w.height / floors, bay = w.length / bays;
    int64_t j = std::min<int64_t>(std::max<int64_t>((int64_t)(w.z / storey), 0), floors - 1);
    int64_t i = std::min<int64_t>(std::max<int64_t>(whole(w.u / bay), 0), bays - 1);
    Rgb wall = masonry(w);
    if (w.street && j == 0) return ground_floor(w, wall, storey);
    double z = w.z - j * storey, u = w.u - i * bay;
    if (w.style == 3) wall = mix(wall, {.34, .40, .45}, cover(z, 0.1, m.sill - 0.1, w.width));
    Rgb colour = window(w, wall, u, z, bay, hash((uint32_t)i, (uint32_t)j, w.face));
    double band = w.style == 4 || w.style == 2 ? cover(z, 0.0, 0.28, w.width) : 0.0;
    band = std::max(band, cover(w.z, w.height - 0.45, w.height + 1, w.width));      // cornice
    return mix(colour, 1.1 * wall_colour(w.style, w.seed), 0.85 * band);
}

}  // namespace city
