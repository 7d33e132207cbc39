// Front-to-back blending and its reverse walk (design section 5).
//
// Forward: C = sum_i c_i a_i t_i, T = prod_i (1 - a_i), t_i the transmittance before i.
// Reverse: with G = dL/dC and the scalar adjoint g, g = dL/dT behind the last splat,
//   dL/da_i = t_i (c_i . G - g),  dL/dc_i = a_i t_i G,  then g <- g + a_i (c_i . G - g).
// In front of a splat g = G . C' + dL/dT T' for what lies behind (C', T' of that part alone):
// this carries both terms of dL/da_i = t_i (c_i - b_i) . G - dL/dT T / (1 - a_i).
#pragma once

#include "math/lanes.cuh"

SPX_NAMESPACE_BEGIN

// Blending ends at this transmittance even when the stop setting is 0: what lies behind weighs
// less than 1e-20 (1e-40) of what was drawn, far under the last digit, while T stays a normal
// number that the reverse walk can un-multiply. (T = 0 would cut the gradient of every splat.)
template <class T>
struct StopFloor;
template <>
struct StopFloor<float> {
    static constexpr float value = 1e-20f;
};
template <>
struct StopFloor<double> {
    static constexpr double value = 1e-40;
};

// The setting `stop` as the kernels apply it: blend, then end a pixel when T < this.
template <class T>
SPX_HD T effective_stop(double stop) {
    return maximum(T(stop), StopFloor<T>::value);
}

// Put a splat behind what a pixel has. The factor 1 - alpha is rounded once and alike in both
// directions, so T returns to 1 but for the rounding of the products.
template <class F>
SPX_HD void blend(F alpha, F red, F green, F blue, F& r, F& g, F& b, F& t) {
    const F weight = alpha * t;
    r = multiply_add(weight, red, r);
    g = multiply_add(weight, green, g);
    b = multiply_add(weight, blue, b);
    t = t * (constant<F>(1) - alpha);
}

// What the last splat of a pixel contributes. t: transmittance before it; adjoint: g above.
// weight = a_i t_i; change = dL/da_i a_i = dL/d(-q).
template <class F>
SPX_HD void unblend_at(F alpha, F red, F green, F blue, F grad_r, F grad_g, F grad_b, F t,
                       F& adjoint, F& weight, F& change) {
    weight = alpha * t;
    const F difference = multiply_add(
        red, grad_r, multiply_add(green, grad_g, multiply_add(blue, grad_b, -adjoint)));
    change = weight * difference;
    adjoint = multiply_add(alpha, difference, adjoint);
}

// The same from t behind the splat, which becomes that before it: takes the splat away again.
template <class F>
SPX_HD void unblend(F alpha, F red, F green, F blue, F grad_r, F grad_g, F grad_b, F& t,
                    F& adjoint, F& weight, F& change) {
    t = t / (constant<F>(1) - alpha);
    unblend_at(alpha, red, green, blue, grad_r, grad_g, grad_b, t, adjoint, weight, change);
}

// Sums over pixels from which a splat's gradient follows: moments of `change` about the mean,
// and weight dL/dC.
constexpr int SPLAT_SUMS = 9;
template <class F>
struct SplatSums {
    F sum[SPLAT_SUMS];  // 1, dx, dy, dx^2, dx dy, dy^2; red, green, blue

    SPX_HD void clear() {
        for (int k = 0; k < SPLAT_SUMS; ++k) sum[k] = constant<F>(0);
    }
    SPX_HD void add(F change, F dx, F dy, F weight, F grad_r, F grad_g, F grad_b) {
        const F cx = change * dx, cy = change * dy;
        sum[0] = sum[0] + change;
        sum[1] = sum[1] + cx;
        sum[2] = sum[2] + cy;
        sum[3] = multiply_add(cx, dx, sum[3]);
        sum[4] = multiply_add(cx, dy, sum[4]);
        sum[5] = multiply_add(cy, dy, sum[5]);
        sum[6] = multiply_add(weight, grad_r, sum[6]);
        sum[7] = multiply_add(weight, grad_g, sum[7]);
        sum[8] = multiply_add(weight, grad_b, sum[8]);
    }
};

// With the sums of |dL/du| and |dL/dv| over pixels, which moments do not give. As q log2(e) =
// a p^2 + c dy^2 with p = dx + tilt dy (alpha.cuh), dL/du = 2 ln 2 change a p and dL/dv = 2 ln 2
// change (a p tilt + c dy); the factor is left to absolute_gradient.
constexpr int ABSOLUTE_SUMS = SPLAT_SUMS + 2;
template <class F>
struct AbsoluteSums : SplatSums<F> {
    F across, down;

    SPX_HD void clear() {
        SplatSums<F>::clear();
        across = down = constant<F>(0);
    }
    // (a, tilt, c): the conic
    SPX_HD void add_slopes(F change, F dx, F dy, F a, F tilt, F c) {
        const F slope = a * multiply_add(tilt, dy, dx);
        const F x = change * slope, y = change * multiply_add(slope, tilt, c * dy);
        across = across + maximum(x, -x);
        down = down + maximum(y, -y);
    }
};

// Moments about a point, turned into those about the mean; (dx, dy): from the mean to the point.
template <class T>
SPX_HD void shift_moments(T* sum, T dx, T dy) {
    const T x = multiply_add(dx, sum[0], sum[1]), y = multiply_add(dy, sum[0], sum[2]);
    sum[3] = multiply_add(dx, sum[1] + x, sum[3]);
    sum[4] = multiply_add(dy, x, multiply_add(dx, sum[2], sum[4]));
    sum[5] = multiply_add(dy, sum[2] + y, sum[5]);
    sum[1] = x, sum[2] = y;
}

// dL/d(u, v, A, B, C, opacity, r, g, b) from the sums.
template <class T>
SPX_HD void splat_gradient(const T* sum, T A, T B, T C, T opacity, T* out) {
    out[0] = A * sum[1] + B * sum[2];
    out[1] = B * sum[1] + C * sum[2];
    out[2] = T(-0.5) * sum[3];
    out[3] = -sum[4];
    out[4] = T(-0.5) * sum[5];
    out[5] = sum[0] / opacity;
    out[6] = sum[6];
    out[7] = sum[7];
    out[8] = sum[8];
}

// The sum of |dL/du| or |dL/dv| from that of AbsoluteSums.
template <class T>
SPX_HD T absolute_gradient(T sum) {
    return T(1.3862943611198906) * sum;  // 2 ln 2
}

SPX_NAMESPACE_END
