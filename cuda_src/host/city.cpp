// Ray caster of the synthetic city: photographs and visibility from geometry alone.

#include <omp.h>

#include "city_ground.h"

namespace city {
namespace {

// Afternoon sun, 50 degrees high; it lights two of the four directions that walls face.
const Vec SUN = unit({0.56, -0.40, 0.82});
constexpr Rgb SUNLIGHT{.64, .61, .555}, SKYLIGHT{.515, .535, .57};
constexpr double LIFT = 1e-3;       // metres off a surface where shadow rays start

Scene scene_of(const double* frame, int64_t count, const double* bounds, const int32_t* kinds,
               const int64_t* start, const int32_t* item, const int64_t* near_start,
               const int32_t* near_item, const double* cell_top) {
    Scene s;
    s.count = count;
    s.pieces = reinterpret_cast<const Piece*>(bounds);
    s.kinds = reinterpret_cast<const Kind*>(kinds);
    s.origin_x = frame[0], s.origin_y = frame[1], s.cell = frame[2], s.top = frame[3];
    s.columns = (int64_t)frame[4], s.rows = (int64_t)frame[5];
    s.pitch = frame[6], s.line = frame[7], s.half = frame[8], s.reach = frame[9];
    s.start = start, s.item = item, s.near_start = near_start, s.near_item = near_item;
    s.cell_top = cell_top;
    return s;
}

// Bright at the horizon, blue above, with thin cloud; smooth, since it has no distance.
Rgb sky(Vec d) {
    double up = clamp(d.z, 0.0, 1.0);
    return mix({.80, .87, .93}, {.46, .64, .86}, ramp(std::sqrt(up), 0.0, 1.0));
}

Rgb wall(const Piece& piece, const Kind& kind, Vec p, Vec n, double px) {
    bool on_x = std::fabs(n.x) > 0.5;
    int axis = on_x ? 1 : 0;
    Wall w;
    w.u = (on_x ? p.y : p.x) - piece.low[axis];
    w.length = piece.high[axis] - piece.low[axis];
    w.z = p.z - piece.low[2], w.height = piece.high[2] - piece.low[2];
    w.street = piece.low[2] < 1.0;
    w.style = (int)clamp(kind.style, 0, STYLES - 1);
    w.seed = (uint32_t)kind.seed;
    w.face = hash(w.seed, (on_x ? 2 : 0) + (n.x + n.y > 0), (uint32_t)std::llround(piece.low[2]));
    w.width = px;
    return facade(w);
}

Rgb roof(const Piece& piece, const Kind& kind, Vec p, Vec n, double px) {
    double slope = std::sqrt(std::max(1e-6, 1.0 - n.z * n.z));
    uint32_t seed = (uint32_t)kind.seed;
    if (n.z < 0.05)                                     // the gable's end
        return (1.0 + 0.22 * rough(p.x + p.y, p.z, seed, 3.0, 4, px)) * wall_colour(5, seed);
    bool ridge_x = kind.shape == GABLE_X;
    double v = (piece.high[2] - p.z) / slope;
    return tiles(ridge_x ? p.x : p.y, v, px, seed);
}

Rgb surface(const Scene& scene, const Hit& hit, Vec p, double px, uint32_t seed) {
    if (hit.piece == GROUND) return ground(scene, p.x, p.y, px, seed);
    const Piece& piece = scene.pieces[hit.piece];
    const Kind& kind = scene.kinds[hit.piece];
    uint32_t own = (uint32_t)kind.seed;
    bool flat = hit.normal.z > 0.5;
    switch (kind.material) {
        case FACADE:
            if (flat) return flat_roof(piece, p.x, p.y, px, own);
            return wall(piece, kind, p, hit.normal, px);
        case SLAB: return paving(piece, p.x, p.y, px, own);
        case PARK: return park(piece, p.x, p.y, px, own);
        case FOLIAGE: return foliage(p, hit.normal, px, own);
        case BARK:
            return (1.0 + 0.4 * rough(p.x + p.y, 0.3 * p.z, own, 0.5, 2, px)) * Rgb{.42, .34, .26};
        case CAR:
        case CABIN: return car(piece, kind, p, hit.normal, px);
        case METAL: return metal(piece, p, hit.normal, px, own);
        case TILES: return roof(piece, kind, p, hit.normal, px);
        default:    // PARAPET: what a building's walls are made of
            return (1.06 + 0.25 * rough(p.x + p.y, p.z + p.y, own, 3.0, 5, px)) *
                   wall_colour((int)clamp(kind.style, 0, STYLES - 1), own);
    }
}

// Light on a surface: the sun where nothing stands before it, and the part of the sky that
// nearby walls leave (distance samples along the normal) and that a street canyon leaves.
Rgb light(const Scene& scene, const Hit& hit, Vec p) {
    Vec n = hit.normal;
    double facing = dot(n, SUN);
    double sun = 0.0;
    if (facing > 0) {
        Ray ray(p + LIFT * n, SUN);
        if (trace(scene, ray, FAR_AWAY, true).piece == SKY) sun = facing;
    }
    double open = 1.0;
    for (double step : {0.5, scene.reach})
        open -= 0.22 * (1.0 - clearance(scene, p + step * n, step) / step);
    double canyon = 0.86 + 0.14 * ramp(p.z, 0.0, 12.0);
    double ambient = std::max(open, 0.4) * canyon;
    return ambient * SKYLIGHT + sun * SUNLIGHT;
}

Rgb radiance(const Scene& scene, const Ray& ray, double angle, uint32_t seed) {
    Hit hit = trace(scene, ray, FAR_AWAY, false);
    if (hit.piece == SKY) return sky(unit(ray.along));
    Vec p = ray.at(hit.t);
    double length = std::sqrt(dot(ray.along, ray.along));
    double cosine = std::fabs(dot(hit.normal, ray.along)) / length;
    // A pixel's width on the surface: between its two axes, so that grazing views keep texture.
    double px = hit.t * length * angle / std::sqrt(std::max(cosine, 0.02));
    Rgb seen = surface(scene, hit, p, px, seed) * light(scene, hit, p);
    // Haze: far things fade a little into the sky, as in any city.
    return mix(seen, {.74, .80, .86}, 1.0 - std::exp(-hit.t * length / 1500.0));
}

int team(int64_t threads) { return threads > 0 ? (int)threads : omp_get_max_threads(); }

}  // namespace
}  // namespace city

extern "C" {

// One photograph. camera: rotation (9, world to camera), translation (3), fx, fy, cx, cy.
// side: rays along a pixel's side. out: (height, width, 3) float32 in [0, 1]. Returns 0.
int64_t city_render(const double* frame, int64_t count, const double* bounds,
                    const int32_t* kinds, const int64_t* start, const int32_t* item,
                    const int64_t* near_start, const int32_t* near_item, const double* cell_top,
                    const double* camera, int64_t width, int64_t height, int64_t side,
                    int64_t seed, int64_t threads, float* out) {
    using namespace city;
    const Scene scene = scene_of(frame, count, bounds, kinds, start, item, near_start, near_item,
                                 cell_top);
    const double *r = camera, *t = camera + 9;
    const double fx = camera[12], fy = camera[13], cx = camera[14], cy = camera[15];
    Vec eye{};
    for (int k = 0; k < 3; ++k) (&eye.x)[k] = -(r[k] * t[0] + r[3 + k] * t[1] + r[6 + k] * t[2]);
#pragma omp parallel for schedule(dynamic, 4) num_threads(team(threads))
    for (int64_t row = 0; row < height; ++row) {
        for (int64_t column = 0; column < width; ++column) {
            Rgb sum{0, 0, 0};
            for (int64_t s = 0; s < side * side; ++s) {
                double x = (column + (s % side + 0.5) / side - cx) / fx;
                double y = (row + (s / side + 0.5) / side - cy) / fy;
                Vec along{r[0] * x + r[3] * y + r[6], r[1] * x + r[4] * y + r[7],
                          r[2] * x + r[5] * y + r[8]};
                Rgb c = radiance(scene, Ray(eye, along), 1.0 / fx, (uint32_t)seed);
                sum = sum + Rgb{clamp(c.r, 0, 1), clamp(c.g, 0, 1), clamp(c.b, 0, 1)};
            }
            float* pixel = out + 3 * (row * width + column);
            double share = 1.0 / (double)(side * side);
            pixel[0] = (float)(share * sum.r);
            pixel[1] = (float)(share * sum.g);
            pixel[2] = (float)(share * sum.b);
        }
    }
    return 0;
}

// First hits of rays (n, 3) + (n, 3). distance (n): in lengths of the direction, inf for sky;
// piece (n): row of the layout, -1 sky, -2 ground; normal (n, 3). Returns 0.
int64_t city_trace(const double* frame, int64_t count, const double* bounds, const int32_t* kinds,
                   const int64_t* start, const int32_t* item, const int64_t* near_start,
                   const int32_t* near_item, const double* cell_top, int64_t rays,
                   const double* origin, const double* direction, int64_t threads,
                   double* distance, int64_t* piece, double* normal) {
    using namespace city;
    const Scene scene = scene_of(frame, count, bounds, kinds, start, item, near_start, near_item,
                                 cell_top);
#pragma omp parallel for schedule(dynamic, 256) num_threads(team(threads))
    for (int64_t i = 0; i < rays; ++i) {
        const double *o = origin + 3 * i, *d = direction + 3 * i;
        Hit hit = trace(scene, Ray({o[0], o[1], o[2]}, {d[0], d[1], d[2]}), FAR_AWAY, false);
        distance[i] = hit.piece == SKY ? FAR_AWAY : hit.t;
        piece[i] = hit.piece;
        for (int k = 0; k < 3; ++k) normal[3 * i + k] = (&hit.normal.x)[k];
    }
    return 0;
}

}  // extern "C"
