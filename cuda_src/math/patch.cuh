// A splat as a small patch of pixels sees it: alpha as one exponential of a form about the
// patch's centre, so that everything but a few multiply-adds is done once a splat and patch.
//
// With (x, y) from the patch's centre to a pixel centre:
//   log2 alpha = peak - (scale x + lean y + across)^2 - along (y + dy)^2,
// which is log2(opacity) - q log2(e) of alpha.cuh: scale^2 = a, lean = scale tilt, along = c.
// Near the splat every term is of the order of the result, however far its mean.
#pragma once

#include "math/alpha.cuh"

SPX_NAMESPACE_BEGIN

constexpr double LOG2_ALPHA_LEAST = -7.994353436858858;  // log2(1/255)

// 1 / x, square root and binary logarithm. On the GPU in one instruction each and without its
// branches for subnormal numbers: right to 1 or 2 units in the last place of 1, or of the result.
#ifdef __CUDA_ARCH__
SPX_HD float quick_inverse(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
SPX_HD float quick_root(float x) {
    float result;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
SPX_HD float quick_log2(float x) {
    float result;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
#else
template <class T>
SPX_HD T quick_inverse(T x) { return T(1) / x; }
template <class T>
SPX_HD T quick_root(T x) { return root(x); }
template <class T>
SPX_HD T quick_log2(T x) { return log2(x); }
#endif

template <class T>
struct PatchSplat {
    T scale, lean, across, along, dy, peak;
    T tilt, slope, dx;  // for patch_meets alone
};

// splat: a row of Splats.data; (x, y): centre of the patch in pixels.
template <class T>
SPX_HD PatchSplat<T> make_patch_splat(const T* splat, T x, T y) {
    const T A = splat[2], B = splat[3], C = splat[4];
    const T inverse = quick_inverse(A);
    PatchSplat<T> patch;
    patch.dx = x - splat[0], patch.dy = y - splat[1];
    patch.tilt = B * inverse, patch.slope = B * quick_inverse(C);
    patch.scale = quick_root(T(0.5 * LOG2_E) * A);
    patch.lean = patch.scale * patch.tilt;
    patch.across = patch.scale * multiply_add(patch.tilt, patch.dy, patch.dx);
    // C - B^2 / A without double: what rounding the tilt leaves is carried along, so that a thin
    // splat keeps its digits. Zero where rounding has made the conic indefinite, so that alpha
    // never exceeds the opacity.
    const T rest = multiply_add(-patch.tilt, A, B) * inverse;
    const T along = multiply_add(-B, rest, multiply_add(-B, patch.tilt, C));
    patch.along = maximum(T(0.5 * LOG2_E) * along, T(0));
    patch.peak = quick_log2(splat[5]);
    return patch;
}

// Whether a pixel centre of the patch, |x| <= width and |y| <= height, can have alpha >= 1/255.
// The least q of a convex form over a box that does not hold its minimum lies on one of the two
// edges that face it. The limit has room for the roundings of positions, see ellipse_margin.
template <class T>
SPX_HD bool patch_meets(const PatchSplat<T>& patch, const T* splat, T width, T height,
                        T epsilon) {
    const T left = patch.dx - width, right = patch.dx + width;
    const T top = patch.dy - height, bottom = patch.dy + height;
    const T near_x = minimum(maximum(left, T(0)), right);
    const T near_y = minimum(maximum(top, T(0)), bottom);
    const T edge_y = minimum(maximum(-patch.slope * near_x, top), bottom);
    const T edge_x = minimum(maximum(-patch.tilt * near_y, left), right);
    const T first = patch.scale * multiply_add(patch.tilt, edge_y, near_x);
    const T second = patch.scale * multiply_add(patch.tilt, near_y, edge_x);
    const T q1 = multiply_add(first, first, patch.along * edge_y * edge_y);
    const T q2 = multiply_add(second, second, patch.along * near_y * near_y);
    const T level = maximum(patch.peak - T(LOG2_ALPHA_LEAST), T(0));
    const T steepest = T(2 * LOG2_E) * quick_root(level * (splat[2] + splat[4]));
    return minimum(q1, q2) <= level + T(1e-3) + steepest * ellipse_margin(splat, epsilon);
}

SPX_NAMESPACE_END
