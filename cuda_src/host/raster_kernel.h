// The table of tile kernels for the instruction set of the file that includes this.
#pragma once

#include "host/raster_backward.h"
#include "host/raster_forward.h"

SPX_NAMESPACE_BEGIN

inline const KernelTable* kernel_table() {
    static const KernelTable table = {
        {forward_tile<float>, backward_tile<float, SUMS>, backward_tile<float, ABSOLUTE>},
        {forward_tile<double>, backward_tile<double, SUMS>, backward_tile<double, ABSOLUTE>}};
    return &table;
}

SPX_NAMESPACE_END
