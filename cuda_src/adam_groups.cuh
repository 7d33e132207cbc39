// Parameter groups as kernels take them by value. Device only.
#pragma once

#include "math/adam.cuh"

using namespace spx;

constexpr int MOST_GROUPS = 6;

// Filled by CudaAdam: the same layout there. Arrays are (rows, width), 16-byte aligned.
struct AdamGroup {
    float *parameter, *gradient, *first, *second;
    AdamStep<float> step;
    int width;
    int rows_a_block;       // a multiple of 4, so that blocks start at 16 bytes
    long long first_block;  // of the launch; groups ascend
};

struct AdamGroups {
    AdamGroup group[MOST_GROUPS];
};
