// Compaction in ascending order on the GPU: a scan over the tiles of one launch by decoupled
// look-back (Merrill and Garland 2016). Positions are sums, never the order of atomics, so a
// result is the same bits in every run. Device only.
#pragma once

typedef unsigned long long word64;

constexpr unsigned ALL_LANES = 0xffffffffu;

// A tile's word: two bits that say what it holds, then a sum. Words start as zero: nothing yet.
constexpr int KIND = 62;
constexpr word64 OWN_SUM = 1ull << KIND, SUM_SO_FAR = 2ull << KIND, SUM = OWN_SUM - 1;

// Hands out tiles in ascending order to the blocks that run: those before a tile are then under
// way, and waiting for them ends. All threads of a block call it; shared: one word of the block.
__device__ inline long long next_tile(word64* ticket, long long* shared) {
    __syncthreads();
    if (threadIdx.x == 0) *shared = (long long)atomicAdd(ticket, 1ull);
    __syncthreads();
    return *shared;
}

// Words hold all that a tile tells, so no other memory is ordered by them.
__device__ inline word64 read_word(const word64* at) {
    word64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(at) : "memory");
    return word;
}

__device__ inline void write_word(word64* at, word64 word) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
}

// Sum of all tiles before this one, in every lane. Called by one whole warp of the tile's block.
// state: (tiles,) words; sum: of this tile, the same in every lane.
__device__ inline word64 sum_before(word64* state, long long tile, word64 sum) {
    const int lane = threadIdx.x & 31;
    if (lane == 0) write_word(state + tile, (tile ? OWN_SUM : SUM_SO_FAR) | sum);
    word64 before = 0;
    // lane l looks l tiles further back
    for (long long nearest = tile - 1; nearest >= 0; nearest -= 32) {
        word64 word = SUM_SO_FAR;  // before the first tile there is nothing
        if (nearest >= lane)
            do word = read_word(state + nearest - lane);
            while (!(word >> KIND));
        const unsigned complete = __ballot_sync(ALL_LANES, (word & SUM_SO_FAR) != 0);
        const int last = complete ? __ffs(complete) - 1 : 31;
        word64 part = lane <= last ? word & SUM : 0;
        for (int step = 16; step; step /= 2) part += __shfl_xor_sync(ALL_LANES, part, step);
        before += part;
        if (complete) break;
    }
    if (lane == 0 && tile) write_word(state + tile, SUM_SO_FAR | (before + sum));
    return before;
}

// Inclusive sum over the lanes of a warp.
__device__ inline unsigned warp_sums(unsigned value) {
    const int lane = threadIdx.x & 31;
    for (int step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(ALL_LANES, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// A block of 8 warps tests 2048 rows, 8 a thread: row first + 256 j + thread.
constexpr int TEST_THREADS = 256, TEST_ROUNDS = 8, TEST_WARPS = TEST_THREADS / 32;
constexpr int TEST_ROWS = TEST_THREADS * TEST_ROUNDS;

struct TestShared {
    unsigned counts[TEST_ROUNDS * TEST_WARPS];
    long long tile, base;
};

// Writes to out, in ascending order, the rows of all tiles for which test(row) holds, and their
// number to *total. One block a tile. n: rows; state: (ceil(n / 2048),) zeroed words.
template <typename Test>
__device__ inline void keep_rows(long long n, word64* ticket, word64* state, word64* total,
                                 int* out, TestShared& shared, Test test) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const long long tile = next_tile(ticket, &shared.tile);
    const long long first = tile * TEST_ROWS + threadIdx.x;
    unsigned masks[TEST_ROUNDS];
#pragma unroll
    for (int j = 0; j < TEST_ROUNDS; ++j) {
        const long long row = first + j * TEST_THREADS;
        // rows behind the end are tested as the last one: loads of all rounds can go ahead
        const bool holds = test(row < n ? row : n - 1);
        masks[j] = __ballot_sync(ALL_LANES, row < n && holds);
        if (lane == 0) shared.counts[j * TEST_WARPS + warp] = __popc(masks[j]);
    }
    __syncthreads();
    if (warp == 0) {  // 64 counts, two a lane
        static_assert(TEST_ROUNDS * TEST_WARPS == 64, "two counts a lane");
        const unsigned one = shared.counts[2 * lane], two = shared.counts[2 * lane + 1];
        const unsigned sums = warp_sums(one + two);
        shared.counts[2 * lane] = sums - one - two;
        shared.counts[2 * lane + 1] = sums - two;
        const unsigned kept = __shfl_sync(ALL_LANES, sums, 31);
        const word64 base = sum_before(state, tile, kept);
        if (lane == 0) {
            shared.base = (long long)base;
            if ((tile + 1) * TEST_ROWS >= n) *total = base + kept;
        }
    }
    __syncthreads();
    const unsigned before = (1u << lane) - 1;
#pragma unroll
    for (int j = 0; j < TEST_ROUNDS; ++j)
        if (masks[j] >> lane & 1)
            out[shared.base + shared.counts[j * TEST_WARPS + warp] + __popc(masks[j] & before)] =
                int(first + j * TEST_THREADS);
}
