// View depths at which the ray of a pixel is inside a cell (design section 4).
//
// The ray is c + z d with d = R^T ((px - cx) / fx, (py - cy) / fy, 1): z is the view depth. Two
// cells that share a face compute the same z = (s - c) / d for it from the same numbers by the
// same operations, none of them fused: one takes it as the end, the other as the start of a
// half-open interval. So the intervals of all cells of a tree tile the ray.
#pragma once

#include "math/lanes.cuh"

SPX_NAMESPACE_BEGIN

// Stands for infinity: deeper than anything drawn, and a number in float as well.
constexpr double FARTHEST = 3e38;

template <class T>
struct Interval {
    T in, out;
};

// The camera as rays need it.
template <class T>
struct RayView {
    T rotation[9];  // world to view, row major
    T fx, fy, cx, cy;
    double center[3];
};

// packed: Camera.packed(), 16 values.
template <class T>
SPX_HD RayView<T> make_ray_view(const double* packed) {
    RayView<T> view;
    for (int k = 0; k < 9; ++k) view.rotation[k] = T(packed[k]);
    view.fx = T(packed[12]), view.fy = T(packed[13]);
    view.cx = T(packed[14]), view.cy = T(packed[15]);
    for (int axis = 0; axis < 3; ++axis) {
        double sum = exact_product(packed[axis], packed[9]);
        sum = exact_sum(sum, exact_product(packed[3 + axis], packed[10]));
        sum = exact_sum(sum, exact_product(packed[6 + axis], packed[11]));
        view.center[axis] = -sum;
    }
    return view;
}

// The faces of a cell as seen from the camera, per axis.
template <class T>
struct CellFaces {
    T low[3], high[3];                // s - c
    bool has_low[3], has_high[3];     // false at infinity
    bool above_low[3], below_high[3]; // c >= low, c < high: for a ray along the face
};

// box: lower bounds (3), upper bounds (3).
template <class T>
SPX_HD CellFaces<T> make_cell_faces(const double* box, const double* center) {
    const double limit = 1.7e308;  // beyond are only the infinities of outer faces
    CellFaces<T> faces;
    for (int axis = 0; axis < 3; ++axis) {
        const double low = box[axis], high = box[3 + axis];
        faces.low[axis] = T(exact_sum(low, -center[axis]));
        faces.high[axis] = T(exact_sum(high, -center[axis]));
        faces.has_low[axis] = low > -limit;
        faces.has_high[axis] = high < limit;
        faces.above_low[axis] = center[axis] >= low;
        faces.below_high[axis] = center[axis] < high;
    }
    return faces;
}

// Direction of the ray through the centre of pixel (x, y).
template <class T>
SPX_HD void ray_direction(const RayView<T>& view, int x, int y, T* direction) {
    const T right = exact_sum(T(x) + T(0.5), -view.cx) / view.fx;
    const T down = exact_sum(T(y) + T(0.5), -view.cy) / view.fy;
    for (int axis = 0; axis < 3; ++axis) {
        const T sum = exact_sum(exact_product(view.rotation[axis], right),
                                exact_product(view.rotation[3 + axis], down));
        direction[axis] = exact_sum(sum, view.rotation[6 + axis]);
    }
}

// Depths of the ray inside the cell; in > out when there are none.
template <class T>
SPX_HD Interval<T> ray_interval(const CellFaces<T>& faces, const T* direction) {
    Interval<T> z = {T(-FARTHEST), T(FARTHEST)};
    bool empty = false;
    for (int axis = 0; axis < 3; ++axis) {
        const T d = direction[axis];
        if (faces.has_low[axis]) {
            const T face = faces.low[axis] / d;
            if (d > 0) z.in = maximum(z.in, face);
            if (d < 0) z.out = minimum(z.out, face);
            if (d == 0) empty |= !faces.above_low[axis];
        }
        if (faces.has_high[axis]) {
            const T face = faces.high[axis] / d;
            if (d > 0) z.out = minimum(z.out, face);
            if (d < 0) z.in = maximum(z.in, face);
            if (d == 0) empty |= !faces.below_high[axis];
        }
    }
    if (empty || !(z.in < z.out)) z = {T(FARTHEST), T(-FARTHEST)};
    return z;
}

SPX_NAMESPACE_END
