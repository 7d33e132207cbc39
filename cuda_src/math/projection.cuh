// EWA projection of a 3D Gaussian to a splat, and its gradient (design section 5).
//
// With W the camera's rotation, J the Jacobian of the pinhole at the mean, R the Gaussian's
// rotation and s its scales, the 2D covariance is F F^T + 0.3 I with F = J W R diag(s), 2 x 3.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

// columns of a splat, as in splaxel_mpi/backends/base.py
enum SplatColumn { U, V, CONIC_A, CONIC_B, CONIC_C, OPACITY, RED, GREEN, BLUE, DEPTH,
                   EXTENT_X, EXTENT_Y, SPLAT };
constexpr int SPLAT_GRADIENT = 9;

// variance in square pixels that every splat gets, so that none falls between pixel centres
constexpr double LOW_PASS = 0.3;
// alpha = 1/255 lies sqrt(2 ln 255) = 3.329 standard deviations out at opacity 1
constexpr double REACH = 3.33;
// standard deviations added to the box, far above the rounding of its float32 bounds
constexpr double REACH_MARGIN = 1e-3;

// Camera as kernels use it. center stays double: the difference to a mean is taken in double
// because coordinates of a city leave float32 too few digits.
template <typename T>
struct View {
    double center[3];
    T rotation[9];
    T fx, fy, cx, cy, width, height, near_plane;
    T low[2], high[2];  // range of x/z and y/z in the Jacobian
    T steepest[2];      // focal sqrt(1 + ratio^2) for the largest |ratio| in that range
};

// packed: Camera.packed(), 16 values.
template <typename T>
SPX_HD View<T> make_view(const double* packed, double width, double height, double near_plane) {
    View<T> view;
    const double fx = packed[12], fy = packed[13], cx = packed[14], cy = packed[15];
    for (int i = 0; i < 3; ++i) {
        view.center[i] = 0;
        for (int j = 0; j < 3; ++j) view.center[i] -= packed[3 * j + i] * packed[9 + j];
    }
    for (int i = 0; i < 9; ++i) view.rotation[i] = T(packed[i]);
    view.fx = T(fx), view.fy = T(fy), view.cx = T(cx), view.cy = T(cy);
    view.width = T(width), view.height = T(height), view.near_plane = T(near_plane);
    view.low[0] = T(-(0.15 * width + cx) / fx), view.high[0] = T((1.15 * width - cx) / fx);
    view.low[1] = T(-(0.15 * height + cy) / fy), view.high[1] = T((1.15 * height - cy) / fy);
    for (int i = 0; i < 2; ++i) {
        const double low = view.low[i], high = view.high[i];
        const double ratio = -low > high ? low : high;
        view.steepest[i] = T((i ? fy : fx) * sqrt(1 + ratio * ratio));
    }
    return view;
}

template <typename T>
SPX_HD bool is_finite(T x) { return x - x == T(0); }

template <typename T>
SPX_HD T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }

template <typename T>
SPX_HD T dot3(const T* a, const T* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Rotation matrix of q = (w, x, y, z) of any length but zero. unit: q / |q|.
template <typename T>
SPX_HD void quaternion_rotation(const T* q, T* unit, T& inverse_norm, T* r) {
    inverse_norm = T(1) / sqrt(q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]);
    for (int i = 0; i < 4; ++i) unit[i] = q[i] * inverse_norm;
    const T w = unit[0], x = unit[1], y = unit[2], z = unit[3];
    r[0] = T(1) - T(2) * (y * y + z * z), r[1] = T(2) * (x * y - w * z);
    r[2] = T(2) * (x * z + w * y), r[3] = T(2) * (x * y + w * z);
    r[4] = T(1) - T(2) * (x * x + z * z), r[5] = T(2) * (y * z - w * x);
    r[6] = T(2) * (x * z - w * y), r[7] = T(2) * (y * z + w * x);
    r[8] = T(1) - T(2) * (x * x + y * y);
}

// Adds dL/dq, given turn = dL/dw for R exp([w]x), a small turn about the Gaussian's own axes.
// The unit quaternion then moves by q (0, w / 2), and q times i, j and k are orthonormal.
template <typename T>
SPX_HD void quaternion_turn_backward(const T* unit, T inverse_norm, const T* turn, T* out) {
    const T w = unit[0], x = unit[1], y = unit[2], z = unit[3];
    const T scale = T(2) * inverse_norm;
    out[0] += scale * (-x * turn[0] - y * turn[1] - z * turn[2]);
    out[1] += scale * (w * turn[0] - z * turn[1] + y * turn[2]);
    out[2] += scale * (z * turn[0] + w * turn[1] - x * turn[2]);
    out[3] += scale * (-y * turn[0] + x * turn[1] + w * turn[2]);
}

// Mean relative to the camera, in world axes (delta) and view axes (position).
template <typename T>
SPX_HD void view_position(const View<T>& view, const T* mean, T* delta, T* position) {
    for (int i = 0; i < 3; ++i) delta[i] = T(double(mean[i]) - view.center[i]);
    for (int i = 0; i < 3; ++i) position[i] = dot3(view.rotation + 3 * i, delta);
}

// A value from e^x to 1.07 e^x for |x| < 87: the exponent bits of a float, with 1 + f for 2^f.
SPX_HD float exp_bound(float x) {
    float power = x * 1.44269504f;
    power = power > -126.0f ? power : -126.0f;
    power = power < 127.0f ? power : 127.0f;
    union { int bits; float value; } out;
    out.bits = int((power + 127.0f) * 8388608.0f);
    return out.value;
}

// Whether a mean is deep enough and its box may meet the image, judged by the largest scale
// alone: a row of J W has length focal / z * sqrt(1 + ratio^2) at most, and the root of a sum is
// at most the sum of the roots. The bounds (3.4 for REACH, 0.6 for the root of LOW_PASS) leave
// room for rounding, so nothing that project_splat keeps is lost. No branches: it runs on every
// Gaussian of every view.
template <typename T>
SPX_HD bool may_be_visible(const View<T>& view, const T* position, const T* log_scale) {
    const T inverse = T(1) / position[2];
    T largest = log_scale[0] > log_scale[1] ? log_scale[0] : log_scale[1];
    largest = largest > log_scale[2] ? largest : log_scale[2];
    const T scale = T(3.4) * T(exp_bound(float(largest))) * inverse;
    const T u = view.fx * position[0] * inverse + view.cx;
    const T v = view.fy * position[1] * inverse + view.cy;
    const T reach_x = T(3.4 * 0.6) + scale * view.steepest[0];
    const T reach_y = T(3.4 * 0.6) + scale * view.steepest[1];
    return (position[2] > view.near_plane) & (u + reach_x > T(0)) & (v + reach_y > T(0)) &
           (u - reach_x < view.width) & (v - reach_y < view.height);
}

// What the forward pass computes on the way and the backward pass needs again.
template <typename T>
struct Footprint {
    T inverse;      // 1 / depth
    T ratio[2];     // x/z, y/z as the Jacobian takes them
    bool inside[2]; // whether they were left as they are
    T unit[4], inverse_norm, rotation[9], scale[3];
    T jacobian[6];  // J W, 2 x 3
    T axes[6];      // J W R, 2 x 3
    T factor[6];    // F = J W R diag(s), 2 x 3
};

template <typename T>
SPX_HD Footprint<T> make_footprint(const View<T>& view, const T* position, const T* log_scale,
                                   const T* quaternion) {
    Footprint<T> f;
    f.inverse = T(1) / position[2];
    const T focal[2] = {view.fx, view.fy};
    const T* w = view.rotation;
    quaternion_rotation(quaternion, f.unit, f.inverse_norm, f.rotation);
    for (int k = 0; k < 3; ++k) f.scale[k] = exp(log_scale[k]);
    for (int i = 0; i < 2; ++i) {
        const T raw = position[i] * f.inverse;
        f.ratio[i] = raw < view.low[i] ? view.low[i] : raw > view.high[i] ? view.high[i] : raw;
        f.inside[i] = raw >= view.low[i] && raw <= view.high[i];
        T* row = f.jacobian + 3 * i;
        for (int j = 0; j < 3; ++j)
            row[j] = focal[i] * f.inverse * (w[3 * i + j] - f.ratio[i] * w[6 + j]);
        for (int k = 0; k < 3; ++k) {
            f.axes[3 * i + k] = row[0] * f.rotation[k] + row[1] * f.rotation[3 + k] +
                                row[2] * f.rotation[6 + k];
            f.factor[3 * i + k] = f.scale[k] * f.axes[3 * i + k];
        }
    }
    return f;
}

// Conic and half-extents of F F^T + 0.3 I. The determinant is summed from the squared minors
// of F (Cauchy-Binet): all terms are positive, so long thin splats lose no digits to
// cancellation. Returns false when it is not positive or not finite.
template <typename T>
SPX_HD bool conic_and_extents(const T* factor, T opacity, T* splat) {
    const T *a = factor, *b = factor + 3;
    const T aa = dot3(a, a), bb = dot3(b, b), ab = dot3(a, b);
    const T m0 = a[1] * b[2] - a[2] * b[1], m1 = a[2] * b[0] - a[0] * b[2];
    const T m2 = a[0] * b[1] - a[1] * b[0];
    const T determinant = m0 * m0 + m1 * m1 + m2 * m2 + T(LOW_PASS) * (aa + bb) +
                          T(LOW_PASS * LOW_PASS);
    const T xx = aa + T(LOW_PASS), yy = bb + T(LOW_PASS), inverse = T(1) / determinant;
    splat[CONIC_A] = yy * inverse;
    splat[CONIC_B] = -ab * inverse;
    splat[CONIC_C] = xx * inverse;
    const T level = log(T(255) * opacity);
    T reach = sqrt(T(2) * (level > T(0) ? level : T(0)));
    reach = (reach < T(REACH) ? reach : T(REACH)) + T(REACH_MARGIN);
    splat[EXTENT_X] = reach * sqrt(xx);
    splat[EXTENT_Y] = reach * sqrt(yy);
    return determinant > T(0) && is_finite(determinant);
}

// Everything of a splat but its colour. position: view_position, deeper than the near plane.
// Returns whether it is visible.
template <typename T>
SPX_HD bool project_splat(const View<T>& view, const T* position, const T* log_scale,
                          const T* quaternion, T logit, T* splat) {
    splat[OPACITY] = sigmoid(logit);
    if (!(T(255) * splat[OPACITY] >= T(1))) return false;
    const Footprint<T> f = make_footprint(view, position, log_scale, quaternion);
    if (!conic_and_extents(f.factor, splat[OPACITY], splat)) return false;
    splat[U] = view.fx * position[0] * f.inverse + view.cx;
    splat[V] = view.fy * position[1] * f.inverse + view.cy;
    splat[DEPTH] = position[2];
    const bool meets = splat[U] + splat[EXTENT_X] > T(0) && splat[V] + splat[EXTENT_Y] > T(0) &&
                       splat[U] - splat[EXTENT_X] < view.width &&
                       splat[V] - splat[EXTENT_Y] < view.height;
    // one infinity or NaN among the terms is left in their sum
    const T sum = splat[U] + splat[V] + splat[CONIC_A] + splat[CONIC_B] + splat[CONIC_C] +
                  splat[DEPTH] + splat[EXTENT_X] + splat[EXTENT_Y] + logit + log_scale[0] +
                  log_scale[1] + log_scale[2];
    return meets && is_finite(sum);
}

// Q = 2 dL/dcov (xx, xy, yy) from g = dL/d(A, B, C): dL/dcov = -K G K with K the conic.
template <typename T>
SPX_HD void conic_backward(const T* splat, const T* g, T* q) {
    const T a = splat[CONIC_A], b = splat[CONIC_B], c = splat[CONIC_C];
    const T half = T(0.5) * g[1];
    // rows of G K
    const T g00 = g[0] * a + half * b, g01 = g[0] * b + half * c;
    const T g10 = half * a + g[2] * b, g11 = half * b + g[2] * c;
    q[0] = T(-2) * (a * g00 + b * g10);
    q[1] = T(-2) * (a * g01 + b * g11);
    q[2] = T(-2) * (b * g01 + c * g11);
}

// Gradient of a turn about the Gaussian's axes. With A = J W R and B = A^T Q A it is
// (s_j^2 - s_k^2) B_jk for the cyclic pairs (j, k): exactly zero where two scales are equal but for
// rounding, so that Adam does not turn round Gaussians by what rounding leaves of a gradient. (In
// its first steps it moves all scales by the rate, those of a round Gaussian alike.)
template <typename T>
SPX_HD void turn_backward(const T* axes, const T* scale, const T* q, T* turn) {
    // roundings of a few updates of the logarithms; in double what Adam's epsilon makes of the
    // first of them, about epsilon / |gradient| of the rate, is more
    const T alike = sizeof(T) == 4 ? T(4e-6) : T(1e-10);
    for (int i = 0; i < 3; ++i) {
        const int j = (i + 1) % 3, k = (i + 2) % 3;
        const T b = axes[j] * (q[0] * axes[k] + q[1] * axes[3 + k]) +
                    axes[3 + j] * (q[1] * axes[k] + q[2] * axes[3 + k]);
        const T difference = scale[j] - scale[k], sum = scale[j] + scale[k];
        const bool round = difference <= alike * sum && -difference <= alike * sum;
        turn[i] = round ? T(0) : difference * sum * b;
    }
}

// dL/d(view position), given dL/d(J W) and dL/d(u, v). Where x/z was clamped it is a constant
// of the Jacobian; the projected mean itself is never clamped.
template <typename T>
SPX_HD void position_backward(const View<T>& view, const Footprint<T>& f, const T* position,
                              const T* d_jacobian, const T* d_mean, T* out) {
    const T focal[2] = {view.fx, view.fy};
    out[2] = T(0);
    for (int i = 0; i < 2; ++i) {
        const T scale = focal[i] * f.inverse;
        const T d_ratio = f.inside[i] ? -scale * dot3(d_jacobian + 3 * i, view.rotation + 6)
                                      : T(0);
        out[i] = (d_mean[i] * focal[i] + d_ratio) * f.inverse;
        out[2] -= out[i] * position[i] * f.inverse +
                  dot3(d_jacobian + 3 * i, f.jacobian + 3 * i) * f.inverse;
    }
}

// Gradient of project_splat. g = dL/d(u, v, A, B, C, opacity). Adds to the four outputs.
template <typename T>
SPX_HD void project_splat_backward(const View<T>& view, const T* position, const T* log_scale,
                                   const T* quaternion, const T* splat, const T* g, T* d_delta,
                                   T* d_log_scale, T* d_quaternion, T* d_logit) {
    const Footprint<T> f = make_footprint(view, position, log_scale, quaternion);
    T q[3], d_axes[6], d_jacobian[6], turn[3], d_position[3];
    conic_backward(splat, g + CONIC_A, q);
    for (int k = 0; k < 3; ++k) {
        const T d0 = q[0] * f.factor[k] + q[1] * f.factor[3 + k];
        const T d1 = q[1] * f.factor[k] + q[2] * f.factor[3 + k];
        d_log_scale[k] += d0 * f.factor[k] + d1 * f.factor[3 + k];
        d_axes[k] = d0 * f.scale[k];
        d_axes[3 + k] = d1 * f.scale[k];
    }
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
            d_jacobian[3 * i + j] = dot3(d_axes + 3 * i, f.rotation + 3 * j);
    turn_backward(f.axes, f.scale, q, turn);
    quaternion_turn_backward(f.unit, f.inverse_norm, turn, d_quaternion);
    position_backward(view, f, position, d_jacobian, g, d_position);
    for (int j = 0; j < 3; ++j)
        for (int i = 0; i < 3; ++i) d_delta[j] += view.rotation[3 * i + j] * d_position[i];
    *d_logit += g[OPACITY] * splat[OPACITY] * (T(1) - splat[OPACITY]);
}

SPX_NAMESPACE_END
