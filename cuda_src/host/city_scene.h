// Geometry of the synthetic city: convex pieces on a flat ground, found through a uniform grid.
// Frame: metres, x east, y north, z up, ground at z = 0.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace city {

constexpr double FAR_AWAY = std::numeric_limits<double>::infinity();
constexpr int64_t SKY = -1, GROUND = -2;

struct Vec {
    double x, y, z;
};

inline Vec operator+(Vec a, Vec b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
inline Vec operator-(Vec a, Vec b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
inline Vec operator*(double s, Vec a) { return {s * a.x, s * a.y, s * a.z}; }
inline double dot(Vec a, Vec b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline Vec unit(Vec a) { return (1.0 / std::sqrt(dot(a, a))) * a; }

// Largest integer not above v. (std::floor is a library call on baseline x86-64.)
inline int64_t whole(double v) {
    int64_t i = (int64_t)v;
    return i - (v < (double)i);
}

inline double clamp(double v, double low, double high) { return std::min(std::max(v, low), high); }

// Numbers shared with data/city_layout.py.
enum Shape { BOX = 0, ELLIPSOID = 1, GABLE_X = 2, GABLE_Y = 3 };
enum Material { FACADE = 0, SLAB, PARK, FOLIAGE, BARK, CAR, CABIN, METAL, PARAPET, TILES };

struct Piece {
    double low[3], high[3];
};

struct Kind {
    int32_t shape, material, style, seed;
};

// What the layout hands over; see Scene.arguments in data/city_layout.py.
struct Scene {
    int64_t count;
    const Piece* pieces;
    const Kind* kinds;
    double origin_x, origin_y, cell, top;   // grid corner, side of a cell, highest point
    int64_t columns, rows;
    double pitch, line, half;               // street spacing, x of one street, half the city's side
    double reach;                           // how far `near` lists look beyond a cell
    const int64_t* start;                   // (cells + 1) ranges of items that touch the cell
    const int32_t* item;
    const int64_t* near_start;              // the same for pieces within `reach` of the cell
    const int32_t* near_item;
    const double* cell_top;                 // highest point over the cell
};

struct Ray {
    Vec from, along;
    double inverse[3];
    Ray(Vec o, Vec d) : from(o), along(d), inverse{1.0 / d.x, 1.0 / d.y, 1.0 / d.z} {}
    Vec at(double t) const { return from + t * along; }
};

struct Hit {
    double t = FAR_AWAY;
    int64_t piece = SKY;
    Vec normal{0, 0, 0};
};

// Entry and exit of a box by its slabs; `axis` is that of the entry face. A ray inside a face
// gives 0 * inf = nan there, which the comparisons below ignore.
inline bool slabs(const Piece& piece, const Ray& ray, double& enter, double& leave, int& axis) {
    const double from[3] = {ray.from.x, ray.from.y, ray.from.z};
    for (int k = 0; k < 3; ++k) {
        double a = (piece.low[k] - from[k]) * ray.inverse[k];
        double b = (piece.high[k] - from[k]) * ray.inverse[k];
        if (a > b) std::swap(a, b);
        if (a > enter) {
            enter = a;
            axis = k;
        }
        if (b < leave) leave = b;
    }
    return enter < leave;
}

inline bool hit_box(const Piece& piece, const Ray& ray, double limit, Hit& hit) {
    double enter = 0.0, leave = limit;
    int axis = -1;
    if (!slabs(piece, ray, enter, leave, axis) || axis < 0) return false;
    hit.t = enter;
    hit.normal = {0, 0, 0};
    double* n = &hit.normal.x;
    n[axis] = (&ray.along.x)[axis] > 0 ? -1.0 : 1.0;
    return true;
}

inline bool hit_ellipsoid(const Piece& piece, const Ray& ray, double limit, Hit& hit) {
    Vec o, d, radius;
    for (int k = 0; k < 3; ++k) {
        double r = 0.5 * (piece.high[k] - piece.low[k]);
        double c = 0.5 * (piece.high[k] + piece.low[k]);
        (&radius.x)[k] = r;
        (&o.x)[k] = ((&ray.from.x)[k] - c) / r;
        (&d.x)[k] = (&ray.along.x)[k] / r;
    }
    double a = dot(d, d), b = dot(o, d), c = dot(o, o) - 1.0;
    double disc = b * b - a * c;
    if (disc <= 0 || c <= 0) return false;      // a miss, or the ray starts inside
    double t = (-b - std::sqrt(disc)) / a;
    if (t <= 0 || t >= limit) return false;
    hit.t = t;
    Vec p = o + t * d;
    hit.normal = unit({p.x / radius.x, p.y / radius.y, p.z / radius.z});
    return true;
}

// A roof: the box cut by two planes that meet in a ridge along x (GABLE_X) or y at full height.
inline bool hit_gable(const Piece& piece, const Ray& ray, int across, double limit, Hit& hit) {
    double enter = 0.0, leave = limit;
    int axis = -1;
    if (!slabs(piece, ray, enter, leave, axis)) return false;
    double half = 0.5 * (piece.high[across] - piece.low[across]);
    double centre = 0.5 * (piece.high[across] + piece.low[across]);
    double rise = (piece.high[2] - piece.low[2]) / half;
    Vec best{0, 0, 0};
    if (axis >= 0) (&best.x)[axis] = (&ray.along.x)[axis] > 0 ? -1.0 : 1.0;
    for (double side : {-1.0, 1.0}) {           // inside: z + rise side (q - centre) <= high z
        double over = ray.from.z + rise * side * ((&ray.from.x)[across] - centre) - piece.high[2];
        double speed = ray.along.z + rise * side * (&ray.along.x)[across];
        if (speed == 0) {
            if (over > 0) return false;
            continue;
        }
        double t = -over / speed;
        if (speed < 0 && t > enter) {
            enter = t;
            best = {0, 0, 1};
            (&best.x)[across] = rise * side;
            best = unit(best);
        }
        if (speed > 0 && t < leave) leave = t;
    }
    if (enter >= leave || enter <= 0) return false;
    hit.t = enter;
    hit.normal = best;
    return true;
}

inline bool hit_piece(const Scene& scene, int64_t k, const Ray& ray, double limit, Hit& hit) {
    const Piece& piece = scene.pieces[k];
    bool found = false;
    switch (scene.kinds[k].shape) {
        case BOX: found = hit_box(piece, ray, limit, hit); break;
        case ELLIPSOID: found = hit_ellipsoid(piece, ray, limit, hit); break;
        case GABLE_X: found = hit_gable(piece, ray, 1, limit, hit); break;
        case GABLE_Y: found = hit_gable(piece, ray, 0, limit, hit); break;
    }
    if (found) hit.piece = k;
    return found;
}

// First hit before `limit`, or any hit at all (shadow rays). The walk goes through the cells in
// the ray's order and skips those whose content lies below it.
inline Hit trace(const Scene& scene, const Ray& ray, double limit, bool any) {
    Hit best;
    best.t = limit;
    if (ray.along.z < 0) {
        double t = -ray.from.z / ray.along.z;
        if (t > 0 && t < best.t) {
            best.t = t;
            best.piece = GROUND;
            best.normal = {0, 0, 1};
        }
    }
    const Piece all{{scene.origin_x, scene.origin_y, 0.0},
                    {scene.origin_x + scene.columns * scene.cell,
                     scene.origin_y + scene.rows * scene.cell, scene.top}};
    double enter = 0.0, leave = best.t;
    int axis = -1;
    if (!slabs(all, ray, enter, leave, axis)) return best;
    Vec p = ray.at(enter);
    const int64_t size[2] = {scene.columns, scene.rows};
    int64_t index[2], step[2];
    double next[2], delta[2];
    for (int k = 0; k < 2; ++k) {
        double origin = k ? scene.origin_y : scene.origin_x, d = (&ray.along.x)[k];
        double q = ((&p.x)[k] - origin) / scene.cell;
        index[k] = std::min<int64_t>(std::max<int64_t>(whole(q), 0), size[k] - 1);
        step[k] = d > 0 ? 1 : -1;
        double border = origin + (index[k] + (d > 0)) * scene.cell;
        next[k] = d != 0 ? (border - (&ray.from.x)[k]) * ray.inverse[k] : FAR_AWAY;
        delta[k] = d != 0 ? scene.cell * std::fabs(ray.inverse[k]) : FAR_AWAY;
    }
    double t = enter;
    while (t < best.t && t <= leave) {
        int64_t cell = index[1] * scene.columns + index[0];
        double out = std::min(std::min(next[0], next[1]), best.t);
        double lowest = std::min(ray.from.z + t * ray.along.z, ray.from.z + out * ray.along.z);
        if (lowest <= scene.cell_top[cell]) {
            for (int64_t i = scene.start[cell]; i < scene.start[cell + 1]; ++i) {
                Hit hit;
                if (hit_piece(scene, scene.item[i], ray, best.t, hit)) {
                    best = hit;
                    if (any) return best;
                }
            }
        }
        int k = next[0] < next[1] ? 0 : 1;
        t = next[k];
        next[k] += delta[k];
        index[k] += step[k];
        if (index[k] < 0 || index[k] >= size[k]) break;
    }
    return best;
}

// Distance to the nearest piece within `reach` of p; ellipsoids do not count (leaves let light by).
inline double clearance(const Scene& scene, Vec p, double reach) {
    double nearest = std::min(reach, std::max(p.z, 0.0));
    int64_t i = whole((p.x - scene.origin_x) / scene.cell);
    int64_t j = whole((p.y - scene.origin_y) / scene.cell);
    if (i < 0 || j < 0 || i >= scene.columns || j >= scene.rows) return nearest;
    int64_t cell = j * scene.columns + i;
    double bound = nearest * nearest;
    for (int64_t a = scene.near_start[cell]; a < scene.near_start[cell + 1]; ++a) {
        const Piece& piece = scene.pieces[scene.near_item[a]];
        double square = 0;
        for (int k = 2; k >= 0 && square < bound; --k) {    // most pieces are out by height
            double q = (&p.x)[k];
            double away = std::max(std::max(piece.low[k] - q, q - piece.high[k]), 0.0);
            square += away * away;
        }
        bound = std::min(bound, square);
    }
    return std::sqrt(bound);
}

}  // namespace city
