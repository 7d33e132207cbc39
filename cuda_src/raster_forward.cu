// Forward pass: blend the splats of every pixel front to back, end after T falls below stop.
#include "raster.cuh"

using namespace raster;

#ifndef FORWARD_BLOCKS
#define FORWARD_BLOCKS 5
#endif

namespace {

#ifndef FORWARD_AHEAD
#define FORWARD_AHEAD 2
#endif
constexpr int AHEAD = FORWARD_AHEAD;  // batches whose rows are on their way
constexpr int RING = 64;   // events of a warp's queue: a batch, and what one leaves over
// Events walked between two looks whether any pixel goes on. More hide more of the latency of a
// long list; fewer waste less behind the end of a short one.
template <int PX>
constexpr int STRIDE = PX == 1 ? 8 : 4;
constexpr float OUTSIDE = -1.0f;  // T of pixels outside the image: below any stop

struct Results {
    float* pixels;        // (held, 4, 256)
    int* last;            // (held, 256), list position of the last splat drawn, or -1
    unsigned* masks;      // (instances / 32 + held, 8), bit k: splat k of the batch was walked
    int* events;          // (held, 8), splats walked in each region
    float stop;
};

// A warp's shared memory.
struct Room {
    float4 ring[RING * SLOT];          // the queue
    float4 rows[AHEAD * BATCH * SLOT];
};

template <int PX, bool CUT>
struct Pixels {
    float t[PX], r[PX], g[PX], b[PX];
    float in[PX], out[PX];
    int last[PX];

    __device__ __forceinline__ Pixels(const Lists& lists, const Patch<PX>& patch) {
        for (int j = 0; j < PX; ++j) {
            t[j] = patch.inside[j] ? 1.0f : OUTSIDE;
            r[j] = g[j] = b[j] = 0.0f;
            last[j] = -1;
        }
        if (CUT) {
            const float* from = lists.intervals + 2ll * patch.held * PIXELS + patch.first;
            load_pixels<PX>(from, in);
            load_pixels<PX>(from + PIXELS, out);
        }
    }

    __device__ __forceinline__ void draw(const Event& s, const Patch<PX>& patch, float stop) {
        float exponent[PX];
        exponents<PX>(s, patch.x, patch.y, exponent);
#pragma unroll
        for (int j = 0; j < PX; ++j) {
            bool drawn = exponent[j] >= float(LOG2_ALPHA_LEAST) && t[j] >= stop;
            if (CUT) drawn = drawn && s.depth >= in[j] && s.depth < out[j];
            const float raw = fminf(power(exponent[j]), float(ALPHA_MOST));
            const float alpha = drawn ? raw : 0.0f;
            blend(alpha, s.red, s.green, s.blue, r[j], g[j], b[j], t[j]);
            last[j] = drawn ? s.position : last[j];
        }
    }

    __device__ __forceinline__ bool live(float stop) const {
        bool any = false;
        for (int j = 0; j < PX; ++j) any = any || t[j] >= stop;
        return __any_sync(EVERY, any);
    }

    __device__ __forceinline__ void store(const Results& results, const Patch<PX>& patch) {
        float* to = results.pixels + 1ll * patch.held * PLANES * PIXELS + patch.first;
        int* to_last = results.last + 1ll * patch.held * PIXELS + patch.first;
        for (int j = 0; j < PX; ++j) t[j] = patch.inside[j] ? t[j] : 1.0f;
        store_pixels<PX>(to, r);
        store_pixels<PX>(to + PIXELS, g);
        store_pixels<PX>(to + 2 * PIXELS, b);
        store_pixels<PX>(to + 3 * PIXELS, t);
        for (int j = 0; j < PX; ++j) to_last[j] = last[j];
    }
};

template <bool CUT>
struct Forward {
    Lists lists;
    Results results;
    Room* room;

    // Walks STRIDE<PX> events from `head` on.
    template <int PX>
    __device__ __forceinline__ void walk(unsigned head, const Patch<PX>& patch,
                                         Pixels<PX, CUT>& pixels) const {
        const float4* slot = room->ring + head % RING * SLOT;
#pragma unroll
        for (int k = 0; k < STRIDE<PX>; ++k)
            pixels.draw(Event(slot + k * SLOT), patch, results.stop);
    }

    template <int PX>
    __device__ __forceinline__ void note_mask(long long unit, int region, unsigned mask) const {
        if (threadIdx.x % 32 < PX) results.masks[unit * REGIONS + region + threadIdx.x % 32] = mask;
    }

    // Puts the batch's splats that meet the patch behind `tail`; returns which.
    template <int PX>
    __device__ __forceinline__ unsigned gather(const Patch<PX>& patch, const float4* row,
                                               int position, int count, unsigned tail) const {
        float data[COLUMNS];
        unpack_row(row, data);
        const PatchSplat<float> splat = make_patch_splat(data, patch.center_x, patch.center_y);
        const bool hit = position < count &&
                         patch_meets(splat, data, patch.half_width, patch.half_height, 1.2e-7f);
        const unsigned mask = __ballot_sync(EVERY, hit);
        const unsigned before = __popc(mask & ((1u << threadIdx.x % 32) - 1));
        if (hit) put_event(room->ring + (tail + before) % RING * SLOT, splat, data, position);
        return mask;
    }

    template <int PX>
    __device__ __forceinline__ int walk_list(const Patch<PX>& patch,
                                             Pixels<PX, CUT>& pixels) const {
        const int lane = threadIdx.x % 32;
        const long long begin = lists.offsets[patch.held];
        const int count = int(lists.offsets[patch.held + 1] - begin);
        const int* items = lists.items + begin;
        const long long unit = first_mask(begin, patch.held);
        // rows come two steps of memory after their positions: both are asked for ahead
        const auto item_of = [&](int base) { return items[min(base + lane, count - 1)]; };
        const auto row_of = [&](int base) {
            return room->rows + (base / BATCH % AHEAD * BATCH + lane) * SLOT;
        };
        int next[AHEAD];
        for (int k = 0; k < AHEAD; ++k) next[k] = item_of(k * BATCH);
        for (int k = 0; k < AHEAD; ++k) {
            if (k * BATCH < count) copy_row(row_of(k * BATCH), lists.splats, next[k]);
            end_copies();
        }
        int item = item_of(AHEAD * BATCH);
        unsigned head = 0, tail = 0;  // of the queue, counted from the list's start
        for (int base = 0; base < count; base += BATCH) {
            wait_copies<AHEAD - 1>();
            const unsigned mask = gather<PX>(patch, row_of(base), base + lane, count, tail);
            tail += __popc(mask);
            if (base + AHEAD * BATCH < count) {
                copy_row(row_of(base), lists.splats, item);
                item = item_of(base + (AHEAD + 1) * BATCH);
            }
            end_copies();
            note_mask<PX>(unit + base / BATCH, patch.region, mask);
            __syncwarp();
            for (; tail - head >= STRIDE<PX>; head += STRIDE<PX>) {
                walk<PX>(head, patch, pixels);
                if (!pixels.live(results.stop)) return head + STRIDE<PX>;
            }
            __syncwarp();
        }
        if (head == tail) return tail;
        if (lane < STRIDE<PX> - (tail - head)) put_nothing(room->ring + (tail + lane) % RING * SLOT);
        __syncwarp();
        walk<PX>(head, patch, pixels);
        return tail;
    }

    template <int PX>
    __device__ void run(int held, int region) const {
        const Patch<PX> patch(lists, held, region);
        Pixels<PX, CUT> pixels(lists, patch);
        int walked = 0;
        if (pixels.live(results.stop) && lists.offsets[held] < lists.offsets[held + 1])
            walked = walk_list<PX>(patch, pixels);
        pixels.store(results, patch);
        if (threadIdx.x % 32 < PX)
            results.events[held * REGIONS + region + threadIdx.x % 32] = walked;
    }
};

template <bool CUT>
__device__ __forceinline__ void forward(const Lists& lists, const Results& results,
                                        const int* order, const int* count) {
    __shared__ Room rooms[RASTER_WARPS];
    run_unit(order, count, Forward<CUT>{lists, results, rooms + threadIdx.x / 32});
}

}  // namespace

// order: (2 held,) int32, count: (1,) int32 of raster_order; see Lists and Results for the
// others. A warp a patch: 4 warps an entry of the order.
#define FORWARD_KERNEL(NAME, CUT)                                                               \
    extern "C" __global__ void __launch_bounds__(RASTER_WARPS * 32, FORWARD_BLOCKS)             \
    NAME(const int* tiles, const long long* offsets, const int* items, const float4* splats,    \
         const float* intervals, int held, int width, int height, const int* order,             \
         const int* count, float stop, float* pixels, int* last, unsigned* masks,               \
         int* events) {                                                                         \
        forward<CUT>({tiles, offsets, items, splats, intervals, held, width, height},           \
                     {pixels, last, masks, events, stop}, order, count);                        \
    }

FORWARD_KERNEL(raster_forward, false)
FORWARD_KERNEL(raster_forward_cut, true)
