// Draws keyed by a Gaussian's id: the hash and the normal draws of splaxel_mpi/scene/identity.py,
// bit for bit up to the functions of the last step.
#pragma once

#include "math/common.cuh"

#ifndef __CUDACC_RTC__
#include <math.h>
#endif

SPX_NAMESPACE_BEGIN

typedef unsigned long long Word;

// Finalizer of splitmix64 and the step of its Weyl sequence (Steele, Lea, Flood, OOPSLA 2014).
constexpr Word DRAW_STEP = 0x9E3779B97F4A7C15ull;
SPX_HD Word mix_word(Word value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

// 64 bits for the k-th draw of an id at an image count.
SPX_HD Word hash_draw(Word id, Word images, Word k, Word stream) {
    Word value = mix_word(id + DRAW_STEP) ^ images;
    value = mix_word(value + DRAW_STEP) ^ k;
    value = mix_word(value + DRAW_STEP) ^ stream;
    return mix_word(value + DRAW_STEP);
}

// The lane-th uniform draw of a hash, in (0, 1): the logarithm is finite.
SPX_HD double open_uniform(Word hash, int lane) {
    return (double(mix_word(hash + Word(lane + 1) * DRAW_STEP) >> 11) + 0.5) * 0x1p-53;
}

// Three independent standard normal draws (Box and Muller 1958).
template <typename T>
SPX_HD void normal_draws(Word hash, T* out) {
    const T turn = T(6.283185307179586);
    const T near_radius = sqrt(T(-2) * log(T(open_uniform(hash, 0))));
    const T far_radius = sqrt(T(-2) * log(T(open_uniform(hash, 2))));
    const T angle = turn * T(open_uniform(hash, 1));
    out[0] = near_radius * cos(angle), out[1] = near_radius * sin(angle);
    out[2] = far_radius * cos(turn * T(open_uniform(hash, 3)));
}

SPX_NAMESPACE_END
