// Spherical harmonics of degree 0 to 3 in the real basis that 3DGS files use.
// Coefficients: dc holds 3 values (band 0), rest 45 values, rest[3 * (k - 1) + channel].
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

constexpr int SH_TERMS = 16;

// normalisation of the basis, bands 0 to 3
constexpr double SH0 = 0.28209479177387814;
constexpr double SH1 = 0.4886025119029199;
constexpr double SH2A = 1.0925484305920792;
constexpr double SH2B = 0.31539156525252005;
constexpr double SH2C = 0.5462742152960396;
constexpr double SH3A = 0.5900435899266435;
constexpr double SH3B = 2.890611442640554;
constexpr double SH3C = 0.4570457994644658;
constexpr double SH3D = 0.3731763325901154;
constexpr double SH3E = 1.445305721320277;

SPX_HD int sh_terms(int degree) { return (degree + 1) * (degree + 1); }

// Values of the first (degree + 1)^2 basis functions in the unit direction (x, y, z).
template <typename T>
SPX_HD void sh_basis(int degree, T x, T y, T z, T* b) {
    b[0] = T(SH0);
    if (degree < 1) return;
    b[1] = T(-SH1) * y;
    b[2] = T(SH1) * z;
    b[3] = T(-SH1) * x;
    if (degree < 2) return;
    const T xx = x * x, yy = y * y, zz = z * z;
    b[4] = T(SH2A) * x * y;
    b[5] = T(-SH2A) * y * z;
    b[6] = T(SH2B) * (zz + zz - xx - yy);
    b[7] = T(-SH2A) * x * z;
    b[8] = T(SH2C) * (xx - yy);
    if (degree < 3) return;
    b[9] = T(-SH3A) * y * (T(3) * xx - yy);
    b[10] = T(SH3B) * x * y * z;
    b[11] = T(-SH3C) * y * (T(4) * zz - xx - yy);
    b[12] = T(SH3D) * z * (T(2) * zz - T(3) * (xx + yy));
    b[13] = T(-SH3C) * x * (T(4) * zz - xx - yy);
    b[14] = T(SH3E) * z * (xx - yy);
    b[15] = T(-SH3A) * x * (xx - T(3) * yy);
}

// dL/d(x, y, z) from h[k] = dL/db[k].
template <typename T>
SPX_HD void sh_basis_backward(int degree, T x, T y, T z, const T* h, T* out) {
    T dx = T(0), dy = T(0), dz = T(0);
    if (degree >= 1) {
        dx = T(-SH1) * h[3];
        dy = T(-SH1) * h[1];
        dz = T(SH1) * h[2];
    }
    if (degree >= 2) {
        const T b6 = T(2 * SH2B) * h[6], b8 = T(2 * SH2C) * h[8];
        dx += T(SH2A) * (y * h[4] - z * h[7]) + x * (b8 - b6);
        dy += T(SH2A) * (x * h[4] - z * h[5]) - y * (b8 + b6);
        dz += T(-SH2A) * (y * h[5] + x * h[7]) + T(2) * z * b6;
    }
    if (degree >= 3) {
        const T xx = x * x, yy = y * y, zz = z * z, xy = x * y, yz = y * z, xz = x * z;
        const T b9 = T(-SH3A) * h[9], b10 = T(SH3B) * h[10], b11 = T(-SH3C) * h[11];
        const T b12 = T(SH3D) * h[12], b13 = T(-SH3C) * h[13], b14 = T(SH3E) * h[14];
        const T b15 = T(-SH3A) * h[15];
        dx += T(6) * (xy * b9 - xz * b12) + yz * b10 + T(2) * (xz * b14 - xy * b11) +
              (T(4) * zz - T(3) * xx - yy) * b13 + T(3) * (xx - yy) * b15;
        dy += T(3) * (xx - yy) * b9 + xz * b10 + (T(4) * zz - xx - T(3) * yy) * b11 -
              T(6) * (yz * b12 + xy * b15) - T(2) * (xy * b13 + yz * b14);
        dz += xy * b10 + T(8) * (yz * b11 + xz * b13) + T(3) * (zz + zz - xx - yy) * b12 +
              (xx - yy) * b14;
    }
    out[0] = dx;
    out[1] = dy;
    out[2] = dz;
}

// Unit vector of v and 1 / |v|.
template <typename T>
SPX_HD void sh_direction(const T* v, T* unit, T& inverse) {
    inverse = T(1) / sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    for (int i = 0; i < 3; ++i) unit[i] = v[i] * inverse;
}

// colour = max(0, 0.5 + sum_k b_k c_k), seen along v = mean - camera centre (any length).
// Returns whether the sums are finite.
template <typename T>
SPX_HD bool sh_colour(int degree, const T* v, const T* dc, const T* rest, T* colour) {
    T unit[3], inverse, b[SH_TERMS];
    sh_direction(v, unit, inverse);
    sh_basis(degree, unit[0], unit[1], unit[2], b);
    T sum[3];
    for (int c = 0; c < 3; ++c) sum[c] = T(0.5) + b[0] * dc[c];
    const int terms = sh_terms(degree);
    for (int k = 1; k < terms; ++k)
        for (int c = 0; c < 3; ++c) sum[c] += b[k] * rest[3 * (k - 1) + c];
    for (int c = 0; c < 3; ++c) colour[c] = sum[c] > T(0) ? sum[c] : T(0);
    const T all = sum[0] + sum[1] + sum[2];
    return all - all == T(0);
}

// The gradient of coefficient k is b_k g. colour is what sh_colour gave: a channel that was cut
// at zero passes nothing on. unit, inverse: sh_direction.
template <typename T>
SPX_HD void sh_factors(int degree, const T* unit, const T* colour, const T* gradient, T* b, T* g) {
    sh_basis(degree, unit[0], unit[1], unit[2], b);
    for (int c = 0; c < 3; ++c) g[c] = colour[c] > T(0) ? gradient[c] : T(0);
}

// Adds to dL/dv what passes through the direction. g: sh_factors.
template <typename T>
SPX_HD void sh_direction_backward(int degree, const T* unit, T inverse, const T* rest, const T* g,
                                  T* d_v) {
    T h[SH_TERMS], d_unit[3];
    const int terms = sh_terms(degree);
    for (int k = 1; k < terms; ++k) {
        const T* coefficient = rest + 3 * (k - 1);
        h[k] = g[0] * coefficient[0] + g[1] * coefficient[1] + g[2] * coefficient[2];
    }
    sh_basis_backward(degree, unit[0], unit[1], unit[2], h, d_unit);
    const T along = unit[0] * d_unit[0] + unit[1] * d_unit[1] + unit[2] * d_unit[2];
    for (int i = 0; i < 3; ++i) d_v[i] += inverse * (d_unit[i] - along * unit[i]);
}

// Adds to the coefficients' gradients and to dL/dv.
template <typename T>
SPX_HD void sh_colour_backward(int degree, const T* v, const T* rest, const T* colour,
                               const T* gradient, T* d_dc, T* d_rest, T* d_v) {
    T unit[3], inverse, b[SH_TERMS], g[3];
    sh_direction(v, unit, inverse);
    sh_factors(degree, unit, colour, gradient, b, g);
    sh_direction_backward(degree, unit, inverse, rest, g, d_v);
    const int terms = sh_terms(degree);
    for (int c = 0; c < 3; ++c) d_dc[c] += b[0] * g[c];
    for (int k = 1; k < terms; ++k)
        for (int c = 0; c < 3; ++c) d_rest[3 * (k - 1) + c] += b[k] * g[c];
}

SPX_NAMESPACE_END
