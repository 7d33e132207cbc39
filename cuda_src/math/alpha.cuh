// Alpha of a splat at a pixel, and where on the screen it is at least 1/255.
//
// q = (A dx^2 + C dy^2) / 2 + B dx dy with d = pixel centre - mean,
// alpha = min(0.99, opacity exp(-q)); nothing is drawn where q < 0 (a conic that rounding has
// made indefinite) or alpha < 1/255.
#pragma once

#include "math/lanes.cuh"

SPX_NAMESPACE_BEGIN

constexpr double ALPHA_LEAST = 1.0 / 255.0;  // one step of an 8-bit image
constexpr double ALPHA_MOST = 0.99;          // T can be un-multiplied by 1 / (1 - alpha)
constexpr double LOG2_E = 1.4426950408889634;

// 2^x for x <= 0: x = n + f with |f| <= 1/2, a polynomial for 2^f, n added to the exponent.
// Below the normal range the result stays at its lower end (far under ALPHA_LEAST).
#ifdef __CUDACC__
SPX_HD float power_of_two(float x) { return exp2f(x); }
SPX_HD double power_of_two(double x) { return exp2(x); }
#else
template <class F>
SPX_HD F polynomial(F x, const double* coefficients, int degree) {
    F sum = constant<F>(coefficients[degree]);
    for (int k = degree - 1; k >= 0; --k)
        sum = multiply_add(sum, x, constant<F>(coefficients[k]));
    return sum;
}

// Relative minimax polynomial (Remez) of 2^x on [-1/2, 1/2]; 1.9e-9, so that rounding decides.
constexpr double EXP2_FLOAT[7] = {1.0000000005541663,   0.6931472057372676,
                                  0.24022646890634566,  0.055503287769655574,
                                  0.009618488957086441, 0.0013399931219125717,
                                  0.00015345812008384899};
// Taylor coefficients ln(2)^k / k!: the remainder on [-1/2, 1/2] is 4e-18.
constexpr double EXP2_DOUBLE[14] = {1.0,
                                    6.93147180559945309e-1,
                                    2.40226506959100712e-1,
                                    5.55041086648215800e-2,
                                    9.61812910762847716e-3,
                                    1.33335581464284434e-3,
                                    1.54035303933816099e-4,
                                    1.52527338040598403e-5,
                                    1.32154867901443095e-6,
                                    1.01780860092396998e-7,
                                    7.05491162080112333e-9,
                                    4.44553827187081150e-10,
                                    2.56784359934882052e-11,
                                    1.36914888539041289e-12};

template <class F>
SPX_HD F power_of_two(F x, double lowest, double shift, int mantissa, const double* coefficients,
                      int degree) {
    x = maximum(x, constant<F>(lowest));
    // adding 1.5 x 2^mantissa rounds x to an integer and leaves it in the low bits
    const F shifted = x + constant<F>(shift);
    const F fraction = x - (shifted - constant<F>(shift));
    const F value = polynomial(fraction, coefficients, degree);
    return real_of(bits_of(value) + (bits_of(shifted) << mantissa));
}
SPX_HD Float power_of_two(Float x) {
    return power_of_two(x, -126, 12582912.0, 23, EXP2_FLOAT, 6);
}
SPX_HD Double power_of_two(Double x) {
    return power_of_two(x, -1022, 6755399441055744.0, 52, EXP2_DOUBLE, 13);
}
SPX_HD float power_of_two(float x) { return exp2f(x); }
SPX_HD double power_of_two(double x) { return exp2(x); }
#endif

// A conic as the kernels evaluate it: q log2(e) = a (dx + tilt dy)^2 + c dy^2. The terms of the
// plain form grow with the square of the distance and cancel on a long thin splat (0.06 in q at
// 900 pixels in float); here the cancellation comes before the square.
template <class F>
struct Conic {
    F a, tilt, c;
};

template <class T>
SPX_HD Conic<T> make_conic(T A, T B, T C) {
    Conic<T> conic;
    conic.a = T(0.5 * LOG2_E) * A;
    conic.tilt = B / A;
    conic.c = T(0.5 * LOG2_E * (double(C) - double(B) * double(B) / double(A)));
    return conic;
}

// q log2(e).
template <class F>
SPX_HD F scaled_distance(F dx, F dy, const Conic<F>& conic) {
    const F across = multiply_add(conic.tilt, dy, dx);
    return multiply_add(conic.a * across, across, (conic.c * dy) * dy);
}

// opacity exp(-q) before the clamp.
template <class F>
SPX_HD F raw_alpha(F distance, F opacity) {
    return opacity * power_of_two(-distance);
}

// The part of the screen where a splat may be drawn, relative to its mean:
// |dx + tilt dy| <= chord sqrt(1 - (inverse dy)^2), |dy| <= reach. Everything is widened by
// `margin`, so that no rounding loses a pixel whose computed alpha is at least 1/255.
template <class F>
struct Ellipse {
    F tilt;     // of the line through the midpoints of its rows
    F chord;    // half-width of the row through the mean
    F inverse;  // 1 / half-height
    F reach;    // half-height of its box
    F summit;   // dy of its rightmost point, that of the leftmost is the opposite
    F margin;   // pixels
};

// Pixels by which the shape of a splat is widened: roundings of positions up to its far side.
// splat: a row of Splats.data; epsilon: rounding unit of T.
template <class T>
SPX_HD T ellipse_margin(const T* splat, T epsilon) {
    const T u = splat[0], v = splat[1];
    return T(2e-3) + T(8) * epsilon * ((u < 0 ? -u : u) + (v < 0 ? -v : v) + splat[10] + splat[11]);
}

template <class T>
SPX_HD Ellipse<T> make_ellipse(const T* splat, const Conic<T>& conic, T epsilon) {
    const T height = splat[11];
    // rounded from double: the logarithms in float of host and device differ
    const T level = (T(log(double(T(255) * splat[5]))) * T(1.0001) + T(1e-4)) * T(LOG2_E);
    Ellipse<T> e;
    e.tilt = conic.tilt;
    e.chord = root(level / conic.a);
    // c has lost its digits, or its sign, when the half-height exceeds the box by far
    e.inverse = maximum(root(maximum(conic.c, T(0)) / level), T(1e-3) / height);
    e.reach = height;
    const T steep = e.inverse * e.chord;
    const T summit = -e.tilt / (e.inverse * root(steep * steep + e.tilt * e.tilt));
    e.summit = minimum(maximum(summit, -height), height);
    e.margin = ellipse_margin(splat, epsilon);
    return e;
}

// Whether the ellipse meets rows dy in [low, high], and its bounds of dx there. A row range of
// a convex shape is convex, so a rectangle is met exactly when both ranges overlap.
template <class F>
SPX_HD auto ellipse_span(const Ellipse<F>& e, F low, F high, F& left, F& right)
    -> decltype(at_least(low, high)) {
    const F one = constant<F>(1), zero = constant<F>(0);
    const F at_right = minimum(maximum(e.summit, low), high);
    const F at_left = minimum(maximum(-e.summit, low), high);
    const F r = at_right * e.inverse, l = at_left * e.inverse;
    // nothing is fused, so that host and device list a splat in the same tiles
    right = e.margin - (e.tilt * at_right - e.chord * root(maximum(one - r * r, zero)));
    left = -e.margin - (e.tilt * at_left + e.chord * root(maximum(one - l * l, zero)));
    return at_least(e.reach + e.margin, low) & at_least(high, -e.reach - e.margin);
}

SPX_NAMESPACE_END
