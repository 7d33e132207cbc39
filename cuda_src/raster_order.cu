// The order in which tiles are walked: about the heaviest first, so that a long list does not
// start when the others end. A counting sort by eight classes an octave, in one block.

constexpr int CLASSES = 256;
constexpr int THREADS = 1024;
constexpr int ONE = 127 << 3;  // class bits of 1.0f
constexpr int KINDS = 4, WHOLE = 0, UPPER = 2, LOWER = 3;  // as in raster.cuh
constexpr int REGIONS = 8;

struct Tiles {
    const long long* offsets;
    const int* events;
    int heavy;

    // Weight of a tile: walked events, or the length of its list before it was ever walked.
    __device__ int weight(int held) const {
        if (events) {
            int sum = 0;
            for (int k = 0; k < REGIONS; ++k) sum += events[held * REGIONS + k];
            return sum / REGIONS;
        }
        const long long length = offsets[held + 1] - offsets[held];
        return length < 0x7fffffff ? int(length) : 0x7fffffff;
    }
    __device__ int copies(int weight) const { return weight > heavy ? 2 : 1; }
};

__device__ int class_of(int weight) {
    const int bits = (__float_as_int(float(max(weight, 1))) >> 20) - ONE;
    return CLASSES - 1 - min(max(bits, 0), CLASSES - 1);
}

// offsets: (held + 1,) int64; events: (held, 8) int32 of the forward pass, or null; heavy: weight
// above which a tile is walked by two blocks; order: (2 held,) int32, count: (1,) int32 entries.
extern "C" __global__ void __launch_bounds__(THREADS)
raster_order(const long long* offsets, const int* events, int held, int heavy, int* order,
             int* count) {
    __shared__ int starts[CLASSES];
    const Tiles tiles = {offsets, events, heavy};
    if (threadIdx.x < CLASSES) starts[threadIdx.x] = 0;
    __syncthreads();
    for (int k = threadIdx.x; k < held; k += THREADS) {
        const int weight = tiles.weight(k);
        atomicAdd(&starts[class_of(weight)], tiles.copies(weight));
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        constexpr int SHARE = CLASSES / 32;
        int sum = 0;
        for (int k = 0; k < SHARE; ++k) sum += starts[threadIdx.x * SHARE + k];
        int before = sum;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, before, step);
            if (threadIdx.x >= step) before += other;
        }
        if (threadIdx.x == 31) *count = before;
        before -= sum;
        for (int k = 0; k < SHARE; ++k) {
            const int own = starts[threadIdx.x * SHARE + k];
            starts[threadIdx.x * SHARE + k] = before;
            before += own;
        }
    }
    __syncthreads();
    for (int k = threadIdx.x; k < held; k += THREADS) {
        const int weight = tiles.weight(k), copies = tiles.copies(weight);
        const int at = atomicAdd(&starts[class_of(weight)], copies);
        order[at] = KINDS * k + (copies == 1 ? WHOLE : UPPER);
        if (copies == 2) order[at + 1] = KINDS * k + LOWER;
    }
}
