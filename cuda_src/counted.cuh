// Counts that stay on the device, so that the host need not wait for them. Device only.
#pragma once

// Rows in use of arrays of `room` rows; count: (1,), null where all are.
__device__ __forceinline__ long long rows_in_use(long long room, const unsigned long long* count) {
    return count && (long long)*count < room ? (long long)*count : room;
}

// Whether kernels that change what outlives a view are to do nothing: a view before did not fit
// its arrays. stop: (1,), null where that cannot be.
__device__ __forceinline__ bool is_stopped(const unsigned long long* stop) {
    return stop && *stop;
}
