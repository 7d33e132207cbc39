// Composition of partial pixels front to back, and its gradient without dividing by T
// (design section 5).
#pragma once

#include "math/common.cuh"

SPX_NAMESPACE_BEGIN

// Adds what a layer shows through `passed`, the transmittance of everything before it.
template <typename T>
SPX_HD T compose_over(T passed, T colour, T sum) { return sum + passed * colour; }

// Colour seen from just before a layer: S_{m-1} = C_m + T_m S_m.
template <typename T>
SPX_HD T colour_behind(T colour, T transmittance, T behind) {
    return colour + transmittance * behind;
}

// dL/dC_m = P_m g for one channel.
template <typename T>
SPX_HD T compose_colour_backward(T passed, T gradient) { return passed * gradient; }

// dL/dT_m = P_m (g . S_m).
template <typename T>
SPX_HD T compose_transmittance_backward(T passed, const T* gradient, const T* behind) {
    return passed * (gradient[0] * behind[0] + gradient[1] * behind[1] + gradient[2] * behind[2]);
}

SPX_NAMESPACE_END
