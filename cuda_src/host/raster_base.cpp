// Tile kernels for any x86-64: 4 float or 2 double lanes.
#include "host/raster_kernel.h"

const spx_host::KernelTable* spx_host::raster_base() { return spx::base::kernel_table(); }
