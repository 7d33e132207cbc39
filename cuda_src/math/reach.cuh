// Which cells of the k-d tree a splat's box, placed at its depth as a quad in space, touches
// (design section 5, boundary `exact`). All in double: what it decides is exact up to a margin.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

// A clip adds one vertex at most; a polygon with no room left is passed on whole, which is safe.
constexpr int POLYGON = 32;
// Deepest tree that can be walked; a balanced tree of 2^30 cells is no deeper.
constexpr int TREE_DEPTH = 31;
// distances above are to faces at infinity
constexpr double FARTHEST = 1e300;

struct TreeView {
    const int* axis;
    const double* split;
    const int* left;
    const int* right;
    int nodes;
};

// Pinhole as reach needs it: the point of pixel position p at depth d is
// center + d (x column 0 + y column 1 + column 2), with x = (px - cx) / fx, y = (py - cy) / fy
// and columns those of the camera-to-world rotation.
struct ReachView {
    double center[3], columns[9], fx, fy, cx, cy, width, height;
};

// packed: Camera.packed(), 16 values.
SPX_HD ReachView make_reach_view(const double* packed, double width, double height) {
    ReachView view;
    for (int a = 0; a < 3; ++a) {
        view.center[a] = 0;
        for (int j = 0; j < 3; ++j) {
            view.columns[3 * j + a] = packed[3 * j + a];  // a row of R is a column of its inverse
            view.center[a] -= packed[3 * j + a] * packed[9 + j];
        }
    }
    view.fx = packed[12], view.fy = packed[13], view.cx = packed[14], view.cy = packed[15];
    view.width = width, view.height = height;
    return view;
}

// Rectangle of pixel centres inside a box, on the image plane at depth 1.
struct Quad {
    double x[2], y[2];  // bounds of x and y
    double depth;
    double slack;  // margin of a coordinate per unit of `relative`, without |s - c|
};

// Centres low to high of pixels 0 to size - 1 within [at - half, at + half]. The box is widened
// by far less than a pixel, by more than the rounding of its bounds. False when there are none.
SPX_HD bool pixel_centres(double at, double half, double size, double& low, double& high) {
    const double widened = half + 1e-3 + 1e-6 * (at < 0 ? -at : at);
    low = ceil(at - widened - 0.5);
    high = floor(at + widened - 0.5);
    low = (low > 0 ? low : 0) + 0.5;
    high = (high < size - 1 ? high : size - 1) + 0.5;
    return low <= high;
}

// False when the box holds no pixel centre of the image.
SPX_HD bool make_quad(const ReachView& view, double u, double v, double half_x, double half_y,
                      double depth, Quad& quad) {
    double x0, x1, y0, y1;
    if (!pixel_centres(u, half_x, view.width, x0, x1)) return false;
    if (!pixel_centres(v, half_y, view.height, y0, y1)) return false;
    quad.x[0] = (x0 - view.cx) / view.fx, quad.x[1] = (x1 - view.cx) / view.fx;
    quad.y[0] = (y0 - view.cy) / view.fy, quad.y[1] = (y1 - view.cy) / view.fy;
    quad.depth = depth;
    // |direction| <= 1 + |x| + |y|
    quad.slack = depth * (1 + fmax(fabs(quad.x[0]), fabs(quad.x[1])) +
                          fmax(fabs(quad.y[0]), fabs(quad.y[1])));
    return true;
}

// Whether something of half-size `half` is on the inner side of a face by more than the margin.
SPX_HD bool clear_of(double distance, double face, double half, double slack, double relative) {
    return distance > FARTHEST || distance > half + relative * (fabs(face) + slack);
}

// Whether the quad lies inside a cell (bounds low, high) by more than the margin: then it
// touches no other.
SPX_HD bool quad_inside(const ReachView& view, const Quad& quad, const double* low,
                        const double* high, double relative) {
    const double x = 0.5 * (quad.x[0] + quad.x[1]), half_x = 0.5 * fabs(quad.x[1] - quad.x[0]);
    const double y = 0.5 * (quad.y[0] + quad.y[1]), half_y = 0.5 * fabs(quad.y[1] - quad.y[0]);
    const double* column = view.columns;
    for (int a = 0; a < 3; ++a) {
        const double at = quad.depth * (x * column[a] + y * column[3 + a] + column[6 + a]);
        const double half = quad.depth * (half_x * fabs(column[a]) + half_y * fabs(column[3 + a]));
        if (!clear_of(at - (low[a] - view.center[a]), low[a] - view.center[a], half, quad.slack,
                      relative) ||
            !clear_of((high[a] - view.center[a]) - at, high[a] - view.center[a], half, quad.slack,
                      relative))
            return false;
    }
    return true;
}

struct Polygon {
    int count;
    double x[POLYGON], y[POLYGON];
};

// The part of a convex polygon where sign * g >= -margin, g linear along edges with the values
// given at the vertices.
SPX_HD void clip_polygon(const Polygon& in, const double* g, double sign, double margin,
                         Polygon& out) {
    if (in.count >= POLYGON) {
        out = in;
        return;
    }
    out.count = 0;
    for (int k = 0; k < in.count; ++k) {
        const int next = k + 1 < in.count ? k + 1 : 0;
        const double here = sign * g[k] + margin, there = sign * g[next] + margin;
        if (here >= 0 && out.count < POLYGON) {
            out.x[out.count] = in.x[k], out.y[out.count] = in.y[k];
            ++out.count;
        }
        if ((here < 0) != (there < 0) && out.count < POLYGON) {
            const double t = here / (here - there);
            out.x[out.count] = in.x[k] + t * (in.x[next] - in.x[k]);
            out.y[out.count] = in.y[k] + t * (in.y[next] - in.y[k]);
            ++out.count;
        }
    }
}

// Calls emit(cell) for every cell that the quad touches or comes near within the margin
// relative * (|s - c| + depth |direction|) of a face s, in ascending order.
template <typename Emit>
SPX_HD void walk_tree(const TreeView& tree, const ReachView& view, const Quad& quad,
                      double relative, Emit emit) {
    struct Entry {
        int child;
        Polygon polygon;
    };
    Entry stack[TREE_DEPTH + 1];
    Polygon first;
    first.count = 4;
    for (int k = 0; k < 4; ++k) {  // around the rectangle
        first.x[k] = quad.x[k == 1 || k == 2];
        first.y[k] = quad.y[k >= 2];
    }
    int depth = 0;
    stack[depth++] = {tree.nodes ? 0 : -1, first};
    while (depth) {
        const int child = stack[--depth].child;
        if (child < 0) {
            emit(-1 - child);
            continue;
        }
        // a child that gets the whole polygon finds it in the entry just taken
        const Polygon polygon = stack[depth].polygon;
        const int a = tree.axis[child];
        const double face = tree.split[child] - view.center[a];
        const double margin = relative * (fabs(face) + quad.slack);
        double g[POLYGON], least = FARTHEST, most = -FARTHEST;
        for (int k = 0; k < polygon.count; ++k) {
            g[k] = quad.depth * (polygon.x[k] * view.columns[a] +
                                 polygon.y[k] * view.columns[3 + a] + view.columns[6 + a]) - face;
            least = fmin(least, g[k]);
            most = fmax(most, g[k]);
        }
        const bool below = least <= margin, above = most >= -margin;
        if (above) {
            stack[depth].child = tree.right[child];
            if (below) clip_polygon(polygon, g, 1, margin, stack[depth].polygon);
            ++depth;
        }
        if (below) {
            stack[depth].child = tree.left[child];
            if (above) clip_polygon(polygon, g, -1, margin, stack[depth].polygon);
            ++depth;
        }
    }
}

SPX_NAMESPACE_END
