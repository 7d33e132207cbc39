// Procedural texture in world coordinates, filtered to the width of a pixel so that a photograph
// holds no detail finer than it can show. Colours are display values in [0, 1]: splats are blended
// in the photographs' own values, so light and antialiasing work there too.
#pragma once

#include "city_scene.h"

namespace city {

struct Rgb {
    double r, g, b;
};

inline Rgb operator*(double s, Rgb c) { return {s * c.r, s * c.g, s * c.b}; }
inline Rgb operator*(Rgb a, Rgb b) { return {a.r * b.r, a.g * b.g, a.b * b.b}; }
inline Rgb operator+(Rgb a, Rgb b) { return {a.r + b.r, a.g + b.g, a.b + b.b}; }
inline Rgb mix(Rgb a, Rgb b, double t) { return (1.0 - t) * a + t * b; }

inline uint32_t scramble(uint32_t h) {
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ (h >> 16);
}

inline uint32_t hash(uint32_t a, uint32_t b, uint32_t c) {
    return scramble(a * 0x9e3779b1u ^ scramble(b * 0x85ebca77u ^ scramble(c + 0xc2b2ae3du)));
}

inline double fraction(uint32_t h) { return h * (1.0 / 4294967296.0); }

// Random number in [0, 1) of a lattice cell.
inline double draw(int64_t i, int64_t j, uint32_t seed) {
    return fraction(hash((uint32_t)i, (uint32_t)j, seed));
}

inline double smooth(double t) { return t * t * (3.0 - 2.0 * t); }

inline double ramp(double v, double low, double high) {
    return smooth(clamp((v - low) / (high - low), 0.0, 1.0));
}

// Value noise in [-0.5, 0.5), one lattice cell a unit; corners are those of draw().
inline double noise(double x, double y, uint32_t seed) {
    int64_t i = whole(x), j = whole(y);
    double tx = smooth(x - (double)i), ty = smooth(y - (double)j);
    uint32_t base = scramble(seed + 0xc2b2ae3du);
    auto row = [&](int64_t k) {
        uint32_t h = scramble((uint32_t)k * 0x85ebca77u ^ base);
        double left = fraction(scramble((uint32_t)i * 0x9e3779b1u ^ h));
        double right = fraction(scramble((uint32_t)(i + 1) * 0x9e3779b1u ^ h));
        return left + tx * (right - left);
    };
    double low = row(j), high = row(j + 1);
    return low + ty * (high - low) - 0.5;
}

// How much of a detail of this wavelength a pixel of this width keeps: all of it from four
// pixels a wave, nothing below two (Nyquist).
inline double kept(double wavelength, double width) {
    return ramp(wavelength / width, 2.0, 4.0);
}

// Octaves from `wavelength` metres down, each with 0.75 of the one before: contrast at every
// scale, and no single scale that dominates.
inline double rough(double x, double y, uint32_t seed, double wavelength, int octaves,
                    double width) {
    double sum = 0, weight = 1;
    for (int k = 0; k < octaves; ++k) {
        double keep = kept(wavelength, width);
        if (keep <= 0) break;
        sum += weight * keep * noise(x / wavelength, y / wavelength, seed + k);
        weight *= 0.75;
        wavelength *= 0.5;
    }
    return sum;
}

// Part of a pixel of this width around x that lies in [a, b].
inline double cover(double x, double a, double b, double width) {
    double w = std::max(width, 1e-3);
    double low = std::max(a, x - 0.5 * w), high = std::min(b, x + 0.5 * w);
    return high > low ? (high - low) / w : 0.0;
}

// The same for stripes [0, part) of every period.
inline double stripes(double x, double part, double period, double width) {
    double w = std::max(width, 1e-3);
    auto filled = [&](double v) {
        double turns = (double)whole(v / period);
        return turns * part + std::min(v - turns * period, part);
    };
    return (filled(x + 0.5 * w) - filled(x - 0.5 * w)) / w;
}

}  // namespace city
