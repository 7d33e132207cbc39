// Tile kernels for AVX-512F: 16 float or 8 double lanes.
#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define SPX_VECTOR_BYTES 64
#define SPX_ISA avx512
// GCC 12's own intrinsics start from a register that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx2,fma,bmi,lzcnt,popcnt")
#include "host/raster_kernel.h"

const spx_host::KernelTable* spx_host::raster_avx512() { return spx::avx512::kernel_table(); }
