// What a step of MCMC does to every Gaussian beside Adam: one row a thread, bound by memory.
#include "counted.cuh"
#include "math/mcmc.cuh"

using namespace spx;

constexpr int THREADS = 256;

extern "C" __global__ void __launch_bounds__(THREADS)
regularise(long long n,
           const float* __restrict__ opacities,  // (n, 1)
           const float* __restrict__ scales,     // (n, 3)
           float opacity,
           float scale,
           float* d_opacities,                   // (n, 1), added to
           float* d_scales,                      // (n, 3), added to
           const Word* stop) {                   // (1,) or null, see counted.cuh
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || is_stopped(stop)) return;
    regularise_row(opacity, scale, opacities[i], scales + 3 * i, d_opacities + i,
                   d_scales + 3 * i);
}

extern "C" __global__ void __launch_bounds__(THREADS)
noise(long long n,
      const long long* __restrict__ ids,    // (n,)
      const float* __restrict__ scales,     // (n, 3)
      const float* __restrict__ quats,      // (n, 4)
      const float* __restrict__ opacities,  // (n, 1)
      Word seed,
      Word images,
      float scale,
      float* means,                         // (n, 3), moved
      const Word* stop) {                   // (1,) or null, see counted.cuh
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n || is_stopped(stop)) return;
    disturb_row(Word(ids[i]), seed, images, scale, opacities[i], scales + 3 * i, quats + 4 * i,
                means + 3 * i);
}
