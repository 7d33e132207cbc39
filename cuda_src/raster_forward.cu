// Forward pass: blend the splats of every pixel front to back, end after T falls below stop.
#include "raster.cuh"

using namespace raster;

// Measured on the benchmark city (H200): more blocks on a multiprocessor would spill registers.
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
#ifndef FORWARD_STRIDE
#define FORWARD_STRIDE 8
#endif
template <int PX>
constexpr int STRIDE = PX == 1 ? FORWARD_STRIDE : 4;
constexpr float OUTSIDE = -1.0f;  // T of pixels outside the image: below any stop

struct Results {
    float* pixels;        // (held, 4, 256)
    int* last;            // (held, 256), list position of the last splat drawn, or -1
    unsigned* masks;      // (instances / 32 + held, 8), bit k: splat k of the batch was walked
    int* steps;           // (held, 8), list positions looked at for each region
    float4* states;       // (instances / SEGMENT + held, 256), C and T of each segment alone
    float stop;
};

// A warp's shared memory.
struct Room {
    float4 ring[RING * SLOT];          // the queue
    float4 rows[AHEAD * BATCH * SLOT];
};

template <int PX, bool CUT>
struct Pixels {
    float t[PX], r[PX], g[PX], b[PX];  // of the segment
    float in[PX], out[PX];
    int last[PX];
    float limit[PX];  // stop as t of the segment has it
    // of the segments before, heavy tiles only
    float before = 1.0f, total_r = 0.0f, total_g = 0.0f, total_b = 0.0f;

    __device__ __forceinline__ Pixels(const Lists& lists, const Patch<PX>& patch, float stop) {
        for (int j = 0; j < PX; ++j) {
            t[j] = patch.inside[j] ? 1.0f : OUTSIDE;
            r[j] = g[j] = b[j] = 0.0f;
            last[j] = -1, limit[j] = stop;
        }
        if (CUT) {
            const float* from = lists.intervals + 2ll * patch.held * PIXELS + patch.first;
            load_pixels<PX>(from, in);
            load_pixels<PX>(from + PIXELS, out);
        }
    }

    __device__ __forceinline__ void draw(const Event& s, const Patch<PX>& patch) {
        float exponent[PX];
        exponents<PX>(s, patch.x, patch.y, exponent);
#pragma unroll
        for (int j = 0; j < PX; ++j) {
            bool drawn = exponent[j] >= float(LOG2_ALPHA_LEAST) && t[j] >= limit[j];
            if (CUT) drawn = drawn && s.depth >= in[j] && s.depth < out[j];
            const float raw = fminf(power(exponent[j]), float(ALPHA_MOST));
            const float alpha = drawn ? raw : 0.0f;
            blend(alpha, s.red, s.green, s.blue, r[j], g[j], b[j], t[j]);
            last[j] = drawn ? s.position : last[j];
        }
    }

    __device__ __forceinline__ bool live() const {
        bool any = false;
        for (int j = 0; j < PX; ++j) any = any || t[j] >= limit[j];
        return __any_sync(EVERY, any);
    }

    // Ends a segment of a heavy tile: to (256,) of states.
    __device__ __forceinline__ void end_segment(float4* to, const Patch<PX>& patch, float stop) {
        static_assert(PX == 1, "light tiles have no segments");
        to[patch.first] = make_float4(r[0], g[0], b[0], t[0]);
        if (!patch.inside[0]) return;
        total_r = fmaf(before, r[0], total_r);
        total_g = fmaf(before, g[0], total_g);
        total_b = fmaf(before, b[0], total_b);
        before *= t[0];
        limit[0] = stop / before;
        t[0] = 1.0f, r[0] = g[0] = b[0] = 0.0f;
    }

    // After the last segment.
    __device__ __forceinline__ void join_segments() {
        r[0] = total_r, g[0] = total_g, b[0] = total_b, t[0] = before;
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
            pixels.draw(Event(slot + k * SLOT), patch);
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

    // Fills the queue with events that draw nothing, so that all of it can be walked.
    template <int PX>
    __device__ __forceinline__ unsigned pad(unsigned tail) const {
        const unsigned lane = threadIdx.x % 32, missing = -tail % STRIDE<PX>;
        if (lane < missing) put_nothing(room->ring + (tail + lane) % RING * SLOT);
        return tail + missing;
    }

    // Returns how many list positions were looked at.
    template <int PX>
    __device__ __forceinline__ int walk_list(const Patch<PX>& patch,
                                             Pixels<PX, CUT>& pixels) const {
        const int lane = threadIdx.x % 32;
        const long long begin = lists.offsets[patch.held];
        const int count = int(lists.offsets[patch.held + 1] - begin);
        const int* items = lists.items + begin;
        const long long unit = first_mask(begin, patch.held);
        float4* states = results.states + first_state(begin, patch.held) * PIXELS;
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
        int item = item_of(AHEAD * BATCH), base = 0;
        unsigned head = 0, tail = 0;  // of the queue, counted from the list's start
        bool live = pixels.live();
        for (; live && base < count; base += BATCH) {
            wait_copies<AHEAD - 1>();
            const unsigned mask = gather<PX>(patch, row_of(base), base + lane, count, tail);
            tail += __popc(mask);
            if (base + AHEAD * BATCH < count) {
                copy_row(row_of(base), lists.splats, item);
                item = item_of(base + (AHEAD + 1) * BATCH);
            }
            end_copies();
            note_mask<PX>(unit + base / BATCH, patch.region, mask);
            const bool last = base + BATCH >= count;
            const bool ends = PX == 1 && (base + BATCH) % SEGMENT == 0 && !last;
            if (last || ends) tail = pad<PX>(tail);
            __syncwarp();
            for (; live && tail - head >= STRIDE<PX>; head += STRIDE<PX>) {
                walk<PX>(head, patch, pixels);
                live = pixels.live();
            }
            __syncwarp();
            if constexpr (PX == 1)
                if (live && ends)
                    pixels.end_segment(states + base / SEGMENT * PIXELS, patch, results.stop);
        }
        if constexpr (PX == 1) {
            const int segment = max(base - BATCH, 0) / SEGMENT;
            pixels.end_segment(states + segment * PIXELS, patch, results.stop);
            if (patch.inside[0]) pixels.join_segments();
        }
        return min(base, count);
    }

    template <int PX>
    __device__ void run(int held, int region, int) const {
        const Patch<PX> patch(lists, held, region);
        Pixels<PX, CUT> pixels(lists, patch, results.stop);
        int steps = 0;
        if (lists.offsets[held] < lists.offsets[held + 1]) steps = walk_list<PX>(patch, pixels);
        pixels.store(results, patch);
        if (threadIdx.x % 32 < PX)
            results.steps[held * REGIONS + region + threadIdx.x % 32] = steps;
    }
};

template <bool CUT>
__device__ __forceinline__ void forward(const Lists& lists, const Results& results,
                                        const int2* order, const int* count) {
    __shared__ Room rooms[RASTER_WARPS];
    const int unit = blockIdx.x * RASTER_WARPS + threadIdx.x / 32;
    if (unit >= *count * PATCHES) return;
    run_unit(order, unit, Forward<CUT>{lists, results, rooms + threadIdx.x / 32});
}

}  // namespace

// order, count: of raster_order; see Lists and Results for the others. A warp a patch: 4 warps an
// entry of the order, and as many as 2 held entries.
#define FORWARD_KERNEL(NAME, CUT)                                                               \
    extern "C" __global__ void __launch_bounds__(RASTER_WARPS * 32, FORWARD_BLOCKS - CUT)       \
    NAME(const int* tiles, const long long* offsets, const int* items, const float4* splats,    \
         const float* intervals, int held, int width, int height, const int2* order,            \
         const int* count, float stop, float* pixels, int* last, unsigned* masks, int* steps,   \
         float4* states) {                                                                      \
        forward<CUT>({tiles, offsets, items, splats, intervals, held, width, height},           \
                     {pixels, last, masks, steps, states, stop}, order, count);                 \
    }

FORWARD_KERNEL(raster_forward, false)
FORWARD_KERNEL(raster_forward_cut, true)
