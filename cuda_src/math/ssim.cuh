// SSIM of two images at one pixel from windowed moments, and the derivatives by those moments.
#pragma once

#include "math/common.cuh"

SPX_NAMESPACE_BEGIN

constexpr int SSIM_RADIUS = 5;
constexpr int SSIM_TAPS = 2 * SSIM_RADIUS + 1;

// Gaussian of sigma 1.5 at distances 0 to 5, normalised over the 11 taps.
constexpr double SSIM_TAP0 = 0.2660117248617943;
constexpr double SSIM_TAP1 = 0.21300553771125366;
constexpr double SSIM_TAP2 = 0.1093606895097;
constexpr double SSIM_TAP3 = 0.03600077212843082;
constexpr double SSIM_TAP4 = 0.007598758135239184;
constexpr double SSIM_TAP5 = 0.0010283800844791099;

// Weight at a distance of -5 to 5; a constant where the distance is one.
template <typename T>
SPX_HD constexpr T ssim_tap(int distance) {
    const int d = distance < 0 ? -distance : distance;
    return T(d == 0   ? SSIM_TAP0
             : d == 1 ? SSIM_TAP1
             : d == 2 ? SSIM_TAP2
             : d == 3 ? SSIM_TAP3
             : d == 4 ? SSIM_TAP4
                      : SSIM_TAP5);
}

// Weighted sum of at(-5) ... at(5); symmetric, so a tap serves a pair.
template <typename T, typename At>
SPX_HD T ssim_blur(At at) {
    return T(SSIM_TAP0) * at(0) + T(SSIM_TAP1) * (at(-1) + at(1)) +
           T(SSIM_TAP2) * (at(-2) + at(2)) + T(SSIM_TAP3) * (at(-3) + at(3)) +
           T(SSIM_TAP4) * (at(-4) + at(4)) + T(SSIM_TAP5) * (at(-5) + at(5));
}

// Derivatives of SSIM by three windowed moments of the image x against the photo y.
template <typename T>
struct SsimPoint {
    T value;
    T by_mean;     // E[x]
    T by_square;   // E[x x]
    T by_product;  // E[x y]
};

// 1 / value. On the GPU in float to 2 ulp: denormals, which take a slow path, never come here.
template <typename T>
SPX_HD T ssim_inverse(T value) {
#ifdef __CUDA_ARCH__
    if (sizeof(T) == sizeof(float)) return T(__fdividef(1.0f, float(value)));
#endif
    return T(1) / value;
}

// squares = E[x x + y y]: only the sum of both variances enters.
template <typename T>
SPX_HD SsimPoint<T> ssim_point(T mean_x, T mean_y, T squares, T product) {
    const T c1 = T(0.01 * 0.01), c2 = T(0.03 * 0.03);
    const T xy = mean_x * mean_y, xx_yy = mean_x * mean_x + mean_y * mean_y;
    const T a1 = T(2) * xy + c1, a2 = T(2) * (product - xy) + c2;
    const T b1 = xx_yy + c1, b2 = squares - xx_yy + c2;
    const T inverse = ssim_inverse(b1 * b2);
    SsimPoint<T> out;
    out.value = a1 * a2 * inverse;
    out.by_square = -out.value * b1 * inverse;
    out.by_product = T(2) * a1 * inverse;
    out.by_mean = T(2) * inverse * (mean_y * (a2 - a1) + mean_x * out.value * (b1 - b2));
    return out;
}

// dSSIM/dx of a pixel from the blurred derivatives around it.
template <typename T>
SPX_HD T ssim_backward(T x, T y, T by_mean, T by_square, T by_product) {
    return by_mean + T(2) * x * by_square + y * by_product;
}

// d|x - y|/dx, 0 at x = y.
template <typename T>
SPX_HD T sign_of_difference(T x, T y) { return T(x > y) - T(x < y); }

SPX_NAMESPACE_END
