// What a step of MCMC does to a Gaussian beside its gradient (Kheradmand et al. 2024).
#pragma once

#include "math/draw.cuh"
#include "math/projection.cuh"

SPX_NAMESPACE_BEGIN

constexpr Word NOISE_DRAW = 3;  // NOISE of splaxel_mpi/scene/identity.py
// Gate of the noise, of the paper: only Gaussians about to die wander.
constexpr double GATE_SLOPE = 100, GATE_OPACITY = 0.005;
constexpr double GATE_SHUT = 30;  // e^-30 = 1e-13: under the last digit of a double near 1

// Gradient of opacity o + scale (s_1 + s_2 + s_3) with o and s after their activations.
template <typename T>
SPX_HD void regularise_row(T opacity, T scale, T logit, const T* log_scale, T* d_logit,
                           T* d_log_scale) {
    const T o = sigmoid(logit);
    *d_logit += opacity * o * (T(1) - o);
    for (int k = 0; k < 3; ++k) d_log_scale[k] += scale * exp(log_scale[k]);
}

// mean += scale gate(o) R diag(s^2) R^T n.
template <typename T>
SPX_HD void disturb_row(Word id, Word seed, Word images, T scale, T logit, const T* log_scale,
                        const T* quat, T* mean) {
    const T exponent = T(GATE_SLOPE) * (sigmoid(logit) - T(GATE_OPACITY));
    if (exponent > T(GATE_SHUT)) return;
    const T size = scale / (T(1) + exp(exponent));
    T draw[3], unit[4], inverse_norm, r[9], axis[3];
    normal_draws(hash_draw(id, images, NOISE_DRAW, seed), draw);
    quaternion_rotation(quat, unit, inverse_norm, r);
    for (int k = 0; k < 3; ++k) {
        const T along = r[k] * draw[0] + r[3 + k] * draw[1] + r[6 + k] * draw[2];
        axis[k] = exp(T(2) * log_scale[k]) * along;
    }
    for (int k = 0; k < 3; ++k) mean[k] += size * dot3(r + 3 * k, axis);
}

SPX_NAMESPACE_END
