// Adam (Kingma and Ba 2015) with bias correction; epsilon is added outside the root.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

template <typename T>
struct AdamStep {
    T scale;                       // of the gradient
    T keep_first, take_first;      // beta1, 1 - beta1
    T keep_second, take_second;    // beta2, 1 - beta2
    T rate;                        // learning rate / (1 - beta1^step)
    T root_correction;             // 1 / sqrt(1 - beta2^step)
    T epsilon;
};

// step: 1 for the first. The corrections are computed in double: 1 - beta^step cancels.
template <typename T>
SPX_HD AdamStep<T> make_adam_step(double rate, double beta1, double beta2, double epsilon,
                                  double step, double scale) {
    AdamStep<T> s;
    s.scale = T(scale);
    s.keep_first = T(beta1), s.take_first = T(1 - beta1);
    s.keep_second = T(beta2), s.take_second = T(1 - beta2);
    s.rate = T(rate / (1 - pow(beta1, step)));
    s.root_correction = T(1 / sqrt(1 - pow(beta2, step)));
    s.epsilon = T(epsilon);
    return s;
}

// Returns whether the parameter and its moments are finite: a first moment that is not makes the
// parameter so.
template <typename T>
SPX_HD bool adam_update(const AdamStep<T>& s, T gradient, T& parameter, T& first, T& second) {
    const T g = gradient * s.scale;
    first = s.keep_first * first + s.take_first * g;
    second = s.keep_second * second + s.take_second * (g * g);
    parameter -= s.rate * first / (sqrt(second) * s.root_correction + s.epsilon);
    return (parameter - parameter) + (second - second) == T(0);
}

SPX_NAMESPACE_END
