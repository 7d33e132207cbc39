// Which cells of the k-d tree a splat's box, placed at its depth as a quad in space, touches
// (design section 5, boundary `exact`). All in double: what it decides is exact up to a margin.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

// Faces cut the plane of a quad along three families of parallel lines, so that a piece of it has
// 4 + 2 x 3 sides at most; a polygon with no room left is passed on whole, which is safe.
constexpr int POLYGON = 16;
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
    double center[3], columns[9];
    double fx, fy, cx, cy, width, height, inverse_fx, inverse_fy;
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
    view.inverse_fx = 1 / view.fx, view.inverse_fy = 1 / view.fy;
    return view;
}

// Rectangle of pixel centres inside a box, on the image plane at depth 1.
struct Quad {
    double x[2], y[2];  // bounds of x and y
    double depth;
    double slack;  // margin of a coordinate per unit of `relative`, without |s - c|
};

// Pixels by which boxes are widened: more than float32 rounds positions of 16384 pixels by.
constexpr double WIDER = 5e-3;

// Centres low to high of pixels 0 to size - 1 within [at - half, at + half]. False when there
// are none.
SPX_HD bool pixel_centres(double at, double half, double size, double& low, double& high) {
    low = ceil(at - half - WIDER - 0.5);
    high = floor(at + half + WIDER - 0.5);
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

// Faces of a cell seen from the camera, moved inwards by the margin of |s - c|.
struct Interior {
    double low[3], high[3];
};

// box: lower and upper bounds, 2 x 3; infinite faces stay infinite.
SPX_HD Interior make_interior(const ReachView& view, const double* box, double relative) {
    Interior cell;
    for (int a = 0; a < 3; ++a) {
        const double low = box[a] - view.center[a], high = box[3 + a] - view.center[a];
        cell.low[a] = low + relative * fabs(low);
        cell.high[a] = high - relative * fabs(high);
        if (box[a] < -FARTHEST) cell.low[a] = box[a];
        if (box[3 + a] > FARTHEST) cell.high[a] = box[3 + a];
    }
    return cell;
}

// Whether a splat's box at its depth lies inside a cell by more than the margin: it touches no
// other then. Most splats end here, so the box is neither clipped nor cut to pixel centres.
SPX_HD bool box_inside(const ReachView& view, double u, double v, double half_x, double half_y,
                       double depth, const Interior& cell, double relative) {
    const double x = (u - view.cx) * view.inverse_fx, y = (v - view.cy) * view.inverse_fy;
    // twice the widening: never tighter than pixel_centres
    const double wide = (half_x + 2 * WIDER) * view.inverse_fx;
    const double high = (half_y + 2 * WIDER) * view.inverse_fy;
    const double slack = relative * (1 + fabs(x) + wide + fabs(y) + high);
    const double* column = view.columns;
    bool inside = true;
    for (int a = 0; a < 3; ++a) {
        const double at = x * column[a] + y * column[3 + a] + column[6 + a];
        const double half = wide * fabs(column[a]) + high * fabs(column[3 + a]) + slack;
        inside &= (depth * (at - half) > cell.low[a]) & (depth * (at + half) < cell.high[a]);
    }
    return inside;
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

// The quad as a polygon.
SPX_HD void quad_polygon(const Quad& quad, Polygon& out) {
    out.count = 4;
    for (int k = 0; k < 4; ++k) {  // around the rectangle
        out.x[k] = quad.x[k == 1 || k == 2];
        out.y[k] = quad.y[k >= 2];
    }
}

// Which children of a node a polygon touches, or comes near within the margin.
struct Sides {
    bool below, above;
    double margin;
};

// g: distances of the polygon's vertices to the node's face along its axis, written here.
SPX_HD Sides node_sides(const TreeView& tree, const ReachView& view, const Quad& quad,
                        double relative, int node, const Polygon& polygon, double* g) {
    const int a = tree.axis[node];
    const double face = tree.split[node] - view.center[a];
    const double margin = relative * (fabs(face) + quad.slack);
    double least = FARTHEST, most = -FARTHEST;
    for (int k = 0; k < polygon.count; ++k) {
        g[k] = quad.depth * (polygon.x[k] * view.columns[a] +
                             polygon.y[k] * view.columns[3 + a] + view.columns[6 + a]) - face;
        least = fmin(least, g[k]);
        most = fmax(most, g[k]);
    }
    return {least <= margin, most >= -margin, margin};
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
    int depth = 0;
    stack[depth].child = tree.nodes ? 0 : -1;
    quad_polygon(quad, stack[depth++].polygon);
    while (depth) {
        const int child = stack[--depth].child;
        if (child < 0) {
            emit(-1 - child);
            continue;
        }
        // a child that gets the whole polygon finds it in the entry just taken
        const Polygon polygon = stack[depth].polygon;
        double g[POLYGON];
        const Sides at = node_sides(tree, view, quad, relative, child, polygon, g);
        if (at.above) {
            stack[depth].child = tree.right[child];
            if (at.below) clip_polygon(polygon, g, 1, at.margin, stack[depth].polygon);
            ++depth;
        }
        if (at.below) {
            stack[depth].child = tree.left[child];
            if (at.above) clip_polygon(polygon, g, -1, at.margin, stack[depth].polygon);
            ++depth;
        }
    }
}

// As walk_tree, with room for two polygons instead of one a level: where memory is scarce, the
// few cells that a splat reaches are each cut again from the root.
template <typename Emit>
SPX_HD void walk_tree_again(const TreeView& tree, const ReachView& view, const Quad& quad,
                            double relative, Polygon* room, Emit emit) {
    unsigned right = 0;  // bit l: the path goes right at level l
    unsigned later = 0;  // bit l: the right child at level l waits for its turn
    int fixed = 0;       // levels at which the path is given
    while (true) {
        int child = tree.nodes ? 0 : -1, held = 0;
        bool inside = true;
        quad_polygon(quad, room[0]);
        for (int level = 0; child >= 0 && inside; ++level) {
            double g[POLYGON];
            const Sides at = node_sides(tree, view, quad, relative, child, room[held], g);
            const unsigned bit = 1u << level;
            const bool both = at.below && at.above;
            if (level >= fixed) {
                right = at.below ? right & ~bit : right | bit;
                if (both) later |= bit;
            }
            const bool turn = right & bit;
            if (both) {
                clip_polygon(room[held], g, turn ? 1 : -1, at.margin, room[1 - held]);
                held = 1 - held;
            }
            inside = at.below || at.above;
            child = turn ? tree.right[child] : tree.left[child];
        }
        if (inside) emit(-1 - child);
        if (!later) return;
        fixed = TREE_DEPTH;
        while (!(later >> (fixed - 1) & 1)) --fixed;
        right = (right & ((1u << (fixed - 1)) - 1)) | 1u << (fixed - 1);
        later &= ~(1u << (fixed - 1));
    }
}

SPX_NAMESPACE_END
