// Sums over the threads of a warp and over all blocks of a grid, in one pass over the data.
#pragma once

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;
constexpr int BLOCK = 256;  // threads of a block
constexpr int WARPS = BLOCK / WARP;
constexpr unsigned POLL = 100;  // ns between looks at another block's word: it takes 500 to come

typedef unsigned long long Word;

// ---- sums over a warp ----

template <class N>
__device__ N warp_total(N value) {
    for (int step = WARP / 2; step; step /= 2) value += __shfl_xor_sync(ALL, value, step);
    return value;
}

// Sum over this lane and those below it.
template <class N>
__device__ N warp_sums(N value) {
    const int lane = threadIdx.x % WARP;
    for (int step = 1; step < WARP; step *= 2) {
        const N below = __shfl_up_sync(ALL, value, step);
        if (lane >= step) value += below;
    }
    return value;
}

// ---- sums over all blocks ----

// Chained scan: each block publishes its own sum, then the sum up to its end; two bits of the
// word tell which. One word holds all that passes between blocks, so no fence is needed.
constexpr Word OWN = Word(1) << 62, COMPLETE = Word(2) << 62, VALUE = OWN - 1;

__device__ void publish(Word* state, Word word) { *static_cast<volatile Word*>(state) = word; }

// Waits until a block has published something.
__device__ Word wait_for(const Word* state) {
    Word word;
    while ((word = *static_cast<const volatile Word*>(state)) < OWN) __nanosleep(POLL);
    return word;
}

// Sum of all blocks before `block`; called by all threads of a block, each looks at one block
// before it. states: (blocks,), zeroed. Blocks are numbered in the order they started, so that
// those before are running.
__device__ Word blocks_before(Word* states, long long block, Word sum) {
    __shared__ Word sums[WARPS];
    __shared__ bool ends[WARPS];  // a block of this warp knows the sum of all before it
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) publish(states + block, (block ? OWN : COMPLETE) | sum);
    Word before = 0;
    bool found = block == 0;
    for (long long last = block - 1; !found; last -= BLOCK) {
        const long long at = last - threadIdx.x;
        const Word word = at >= 0 ? wait_for(states + at) : COMPLETE;
        __syncwarp();
        const unsigned complete = __ballot_sync(ALL, word >= COMPLETE);
        const int stop = complete ? __ffs(complete) - 1 : WARP - 1;
        const Word part = warp_total(lane <= stop ? word & VALUE : Word(0));
        if (lane == 0) sums[warp] = part, ends[warp] = complete != 0;
        __syncthreads();
        for (int k = 0; k < WARPS && !found; ++k) before += sums[k], found = ends[k];
        __syncthreads();
    }
    if (threadIdx.x == 0 && block) publish(states + block, COMPLETE | (before + sum));
    return before;
}

// The next block in the order of starting; called by all threads.
__device__ long long next_block(Word* ticket) {
    __shared__ long long block;
    if (threadIdx.x == 0) block = atomicAdd(ticket, Word(1));
    __syncthreads();
    return block;
}

// Sum of the counts of all warps before this one; called by all threads of a block, count is
// that of the warp. total: where the last block leaves the sum of all, null for the others.
__device__ Word warps_before(Word count, Word* states, long long block, Word* total) {
    __shared__ Word counts[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    if (lane == 0) counts[warp] = count;
    __syncthreads();
    Word own = 0, sum = 0;
    for (int k = 0; k < WARPS; ++k) {
        if (k < warp) own += counts[k];
        sum += counts[k];
    }
    const Word before = blocks_before(states, block, sum);
    if (threadIdx.x == 0 && total) *total = before + sum;
    return before + own;
}

}  // namespace
