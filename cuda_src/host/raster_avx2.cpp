// Tile kernels for AVX2 and FMA: 8 float or 4 double lanes.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define SPX_VECTOR_BYTES 32
#define SPX_ISA avx2
#pragma GCC target("avx2,fma,bmi,lzcnt,popcnt")
#include "host/raster_kernel.h"

const spx_host::KernelTable* spx_host::raster_avx2() { return spx::avx2::kernel_table(); }
