// Backward pass: the splats that the forward pass walked, in reverse, with T and the scalar
// adjoint (math/blend.cuh). Sums over a warp's pixels go to the splat's row of the gradient.
// Compiled also with: SIDES=2
#include "raster.cuh"

using namespace raster;

// Measured on the benchmark city (H200), like the stride.
#ifndef SIDES
#define SIDES 0  // 2: with the sums of |dL/du| and |dL/dv|, see AbsoluteSums of math/blend.cuh
#endif
#ifndef BACKWARD_BLOCKS
#define BACKWARD_BLOCKS (SIDES ? 4 : 5)
#endif
#ifndef BACKWARD_STRIDE
#define BACKWARD_STRIDE 4  // events whose chains of operations overlap
#endif

namespace {

constexpr int WAITING = 128;  // positions of a warp's queue: three batches and what one adds
constexpr int PARTS = 6 + SIDES;  // sums over a lane's pixels
constexpr int SUMS = SPLAT_SUMS + SIDES;
constexpr int SIDE_BY_SIDE = 32 / SUMS;  // splats whose sums one instruction adds

struct Inputs {
    const float* pixels;     // (held, 4, 256) of the forward pass
    const int* last;         // (held, 256)
    const unsigned* masks;   // (instances / 32 + held, 8)
    const float4* states;    // (instances / SEGMENT + held, 256)
    const float* gradient;   // (held, 4, 256), dL/d(R, G, B, T)
    float* sums;             // (n, SUMS), added to
    float* rows;             // (instances, 8, SUMS): stored there instead, or null
};

// A warp's shared memory.
struct Room {
    float4 queue[BATCH * SLOT];
    float4 rows[BATCH * SLOT];  // of the next batch
    float sums[BATCH * SUMS];
    int waiting[WAITING];
};

template <int PX, bool CUT>
struct Pixels {
    float t[PX], adjoint[PX], r[PX], g[PX], b[PX];  // r, g, b: dL/dC
    float in[PX], out[PX];
    int last[PX];

    __device__ __forceinline__ Pixels(const Lists& lists, const Inputs& inputs,
                                      const Patch<PX>& patch) {
        const long long tile = 1ll * patch.held * PIXELS;
        const float* from = inputs.gradient + tile * PLANES + patch.first;
        load_pixels<PX>(inputs.pixels + tile * PLANES + 3 * PIXELS + patch.first, t);
        load_pixels<PX>(from, r);
        load_pixels<PX>(from + PIXELS, g);
        load_pixels<PX>(from + 2 * PIXELS, b);
        load_pixels<PX>(from + 3 * PIXELS, adjoint);
        for (int j = 0; j < PX; ++j) {
            last[j] = inputs.last[tile + patch.first + j];
            // whatever a caller left outside the image must not reach a sum
            if (!patch.inside[j]) r[j] = g[j] = b[j] = adjoint[j] = 0.0f;
        }
        if (CUT) {
            load_pixels<PX>(lists.intervals + 2 * tile + patch.first, in);
            load_pixels<PX>(lists.intervals + 2 * tile + PIXELS + patch.first, out);
        }
    }

    __device__ __forceinline__ int latest() const {
        int most = last[0];
        for (int j = 1; j < PX; ++j) most = max(most, last[j]);
        return warp_most(most);
    }

    // Goes to the end of a segment of a heavy tile. states: (segments, 256) of the tile, each
    // segment's C and T alone; latest: segment that ends the patch. As between cells (design
    // section 5): dL/dC_m = P_m G, dL/dT_m = P_m (G . what lies behind + dL/dT T behind).
    __device__ __forceinline__ void enter(const float4* states, int segment, int latest) {
        static_assert(PX == 1, "light tiles have no segments");
        float behind_r = 0.0f, behind_g = 0.0f, behind_b = 0.0f, behind_t = 1.0f, before = 1.0f;
        for (int k = latest; k > segment; --k) {
            const float4 state = states[k * PIXELS];
            behind_r = fmaf(state.w, behind_r, state.x);
            behind_g = fmaf(state.w, behind_g, state.y);
            behind_b = fmaf(state.w, behind_b, state.z);
            behind_t *= state.w;
        }
        for (int k = 0; k < segment; ++k) before *= states[k * PIXELS].w;
        t[0] = states[segment * PIXELS].w;
        adjoint[0] = before * fmaf(r[0], behind_r, fmaf(g[0], behind_g,
                                   fmaf(b[0], behind_b, adjoint[0] * behind_t)));
        r[0] *= before, g[0] *= before, b[0] *= before;
    }

    // Takes a splat away; part: sums over the lane's pixels of change (1, x, x^2) and of
    // weight (r, g, b), and with SIDES of |change| |p scale| and |change| |p lean + along dy|,
    // p the root of the first square in math/patch.cuh.
    __device__ __forceinline__ void take(const Event& s, const Patch<PX>& patch, float* part) {
        float exponent[PX];
        exponents<PX>(s, patch.x, patch.y, exponent);
#pragma unroll
        for (int j = 0; j < PX; ++j) {
            bool drawn = exponent[j] >= float(LOG2_ALPHA_LEAST) && s.position <= last[j];
            if (CUT) drawn = drawn && s.depth >= in[j] && s.depth < out[j];
            const float raw = drawn ? power(exponent[j]) : 0.0f;
            const float alpha = fminf(raw, float(ALPHA_MOST));
            t[j] = t[j] * quick_inverse(1.0f - alpha);
            float weight, change;
            unblend_at(alpha, s.red, s.green, s.blue, r[j], g[j], b[j], t[j], adjoint[j], weight,
                       change);
            // a clamped alpha does not follow its opacity or position
            change = raw <= float(ALPHA_MOST) ? change : 0.0f;
            const float x = patch.x + float(j);
            part[0] = j ? part[0] + change : change;
            part[1] = j ? fmaf(change, x, part[1]) : change * x;
            part[2] = j ? fmaf(change, x * x, part[2]) : change * (x * x);
            part[3] = j ? fmaf(weight, r[j], part[3]) : weight * r[j];
            part[4] = j ? fmaf(weight, g[j], part[4]) : weight * g[j];
            part[5] = j ? fmaf(weight, b[j], part[5]) : weight * b[j];
            if constexpr (SIDES != 0) {
                const float down = patch.y + s.dy;
                const float p = fmaf(s.scale, x, fmaf(s.lean, patch.y, s.across));
                const float across = fabsf(change * (p * s.scale));
                const float along = fabsf(change * fmaf(p, s.lean, s.along * down));
                part[PARTS - 2] = j ? part[PARTS - 2] + across : across;
                part[PARTS - 1] = j ? part[PARTS - 1] + along : along;
            }
        }
    }
};

// Gives one value away to the lane across `bit` and takes the partner's other one.
__device__ __forceinline__ float trade(bool upper, int bit, float low, float high) {
    const float kept = upper ? high : low, given = upper ? low : high;
    return kept + __shfl_xor_sync(EVERY, given, bit);
}

// Sums of a splat over the warp, by halving: with every step a lane keeps half of its values.
// Lanes of a row are added first; moments in y follow from the sums of rows.
struct Halving {
    bool bit[4];
    int sum;  // which of SPLAT_SUMS this lane ends with, or NONE
    static constexpr int NONE = 15;

    __device__ Halving() {
        const int lane = threadIdx.x % 32;
        for (int k = 0; k < 4; ++k) bit[k] = lane >> k & 1;
        // a hex digit a lane, from lane 0 on the right: 1 r x g for 1, y, y^2; then x^2 b - -
        constexpr unsigned long long table = 0xff83'fff5'f4f2'7160ull;
        sum = lane < 16 ? int(table >> 4 * lane & 15) : NONE;
    }

    __device__ __forceinline__ float operator()(const float* part, float y) const {
        const float one = trade(bit[0], 1, part[0], part[3]);
        const float two = trade(bit[0], 1, part[1], part[4]);
        float three = trade(bit[0], 1, part[2], part[5]);
        const float flat = trade(bit[1], 2, one, two);
        three += __shfl_xor_sync(EVERY, three, 2);
        const float slope = flat * y;
        const float first = trade(bit[2], 4, flat, slope);
        const float second = trade(bit[2], 4, slope * y, three);
        const float result = trade(bit[3], 8, first, second);
        return result + __shfl_xor_sync(EVERY, result, 16);
    }

    // Of the two sides: even lanes end with the first, odd ones with the second.
    __device__ __forceinline__ float sides(const float* part) const {
        float result = trade(bit[0], 1, part[PARTS - 2], part[PARTS - 1]);
        for (int step = 2; step < 32; step *= 2) result += __shfl_xor_sync(EVERY, result, step);
        return result;
    }
};

// Positions that the forward pass walked for a patch, from the last back: bits of masks become a
// queue in shared memory.
template <int PX>
struct Waiting {
    const unsigned* masks;  // of the patch's first region, REGIONS words a batch
    int* queue;             // (WAITING,)
    int latest;             // position to begin with
    int batch, first;       // to look at next, and last
    unsigned words;         // masks of 32 batches, a lane a batch
    unsigned head, tail;

    __device__ Waiting(const unsigned* masks_, int* queue_, int latest_, int first_)
        : masks(masks_), queue(queue_), latest(latest_), batch(latest_ / BATCH), first(first_),
          words(0), head(0), tail(0) {}

    __device__ __forceinline__ unsigned word_of(int wanted) const {
        if (wanted < 0) return 0;
        const unsigned* mask = masks + 1ll * wanted * REGIONS;
        const unsigned word = PX == 2 ? mask[0] | mask[1] : mask[0];
        return wanted == latest / BATCH ? word & EVERY >> (BATCH - 1 - latest % BATCH) : word;
    }

    // Holds `count` positions, or all that are left.
    __device__ __forceinline__ void fill(int count) {
        const int lane = threadIdx.x % 32;
        for (; batch >= first && tail - head < count; --batch) {
            const int back = latest / BATCH - batch;
            if (back % 32 == 0) words = word_of(batch - lane);
            const unsigned word = __shfl_sync(EVERY, words, back % 32);
            const unsigned before = lane == 31 ? 0 : __popc(word >> (lane + 1));
            if (word >> lane & 1) queue[(tail + before) % WAITING] = batch * BATCH + lane;
            tail += __popc(word);
        }
        __syncwarp();
    }

    // This lane's position of those `skip` behind the head, or -1.
    __device__ __forceinline__ int position(int skip) const {
        const unsigned at = head + skip + threadIdx.x % 32;
        return at < tail ? queue[at % WAITING] : -1;
    }
};

template <bool CUT>
struct Backward {
    Lists lists;
    Inputs inputs;
    Room* room;

    // Turns the sums of this lane's splat into its gradient, in place.
    template <int PX>
    __device__ __forceinline__ void finish(const Patch<PX>& patch, const float* data) const {
        float* own = room->sums + threadIdx.x % 32 * SUMS;
        float sum[SPLAT_SUMS], out[SPLAT_SUMS];
        for (int k = 0; k < SPLAT_SUMS; ++k) sum[k] = own[k];
        shift_moments(sum, patch.center_x - data[0], patch.center_y - data[1]);
        splat_gradient(sum, data[2], data[3], data[4], data[5], out);
        for (int k = 0; k < SPLAT_SUMS; ++k) own[k] = out[k];
        for (int k = SPLAT_SUMS; k < SUMS; ++k) own[k] = absolute_gradient(own[k]);
    }

    // Adds the gradients of `count` splats to their rows, neighbouring lanes to neighbouring
    // numbers. row: of this lane's splat, its item or its place in the list.
    template <int PX>
    __device__ __forceinline__ void add(const Patch<PX>& patch, long long begin, int row,
                                        int count) const {
        const int lane = threadIdx.x % 32, beside = lane / SUMS, column = lane % SUMS;
        for (int first = 0; first < count; first += SIDE_BY_SIDE) {
            const int event = first + beside;
            const long long to = __shfl_sync(EVERY, row, event % 32);
            if (beside == SIDE_BY_SIDE || event >= count) continue;
            const float value = room->sums[first * SUMS + lane];
            if (inputs.rows)
                inputs.rows[((begin + to) * REGIONS + patch.region) * SUMS + column] = value;
            else if (value != 0.0f)
                atomicAdd(inputs.sums + to * SUMS + column, value);
        }
    }

    // Walks the queue; halving.sum says which sum of a splat this lane stores.
    template <int PX>
    __device__ __forceinline__ void walk(const Patch<PX>& patch, Pixels<PX, CUT>& pixels,
                                         const Halving& halving, int count) const {
        for (int first = 0; first < count; first += BACKWARD_STRIDE) {
            float part[BACKWARD_STRIDE][PARTS], total[BACKWARD_STRIDE];
#pragma unroll
            for (int k = 0; k < BACKWARD_STRIDE; ++k)
                pixels.take(Event(room->queue + (first + k) * SLOT), patch, part[k]);
#pragma unroll
            for (int k = 0; k < BACKWARD_STRIDE; ++k) total[k] = halving(part[k], patch.y);
            float* to = room->sums + first * SUMS + halving.sum;
#pragma unroll
            for (int k = 0; k < BACKWARD_STRIDE; ++k)
                if (halving.sum != Halving::NONE) to[k * SUMS] = total[k];
            if constexpr (SIDES != 0) {
                const int lane = threadIdx.x % 32;
#pragma unroll
                for (int k = 0; k < BACKWARD_STRIDE; ++k) {
                    const float side = halving.sides(part[k]);
                    // lanes that store none of the other sums
                    if (lane / 2 == 8)
                        room->sums[(first + k) * SUMS + SPLAT_SUMS + lane % 2] = side;
                }
            }
        }
    }

    template <int PX>
    __device__ void run(int held, int region, int segment) const {
        const Patch<PX> patch(lists, held, region);
        Pixels<PX, CUT> pixels(lists, inputs, patch);
        const int first = segment * SEGMENT;
        int latest = pixels.latest();
        if (latest < first) return;
        const Halving halving;
        const int lane = threadIdx.x % 32;
        const long long begin = lists.offsets[held];
        const int* items = lists.items + begin;
        if constexpr (PX == 1) {
            const float4* states = inputs.states + first_state(begin, held) * PIXELS;
            pixels.enter(states + patch.first, segment, latest / SEGMENT);
            latest = min(latest, first + SEGMENT - 1);
        }
        Waiting<PX> waiting(inputs.masks + first_mask(begin, held) * REGIONS + region,
                            room->waiting, latest, first / BATCH);
        float4* own = room->rows + lane * SLOT;
        // rows come two steps of memory after their positions: both are asked for ahead
        const auto item_of = [&](int position) { return position < 0 ? -1 : items[position]; };
        const auto fetch = [&](int item) {
            if (item >= 0) copy_row(own, lists.splats, item);
            end_copies();
        };
        waiting.fill(2 * BATCH);
        int item = item_of(waiting.position(0)), next = item_of(waiting.position(BATCH));
        fetch(item);
        while (waiting.head != waiting.tail) {
            const int count = min(int(waiting.tail - waiting.head), BATCH);
            const int position = waiting.position(0);
            float data[COLUMNS];
            wait_copies<0>();
            float4* slot = room->queue + lane * SLOT;
            if (lane < count) {
                unpack_row(own, data);
                put_event(slot, make_patch_splat(data, patch.center_x, patch.center_y), data,
                          position);
            } else {
                put_nothing(slot);
            }
            fetch(next);
            waiting.fill(3 * BATCH);  // ends with a barrier of the warp
            const int row = inputs.rows ? position : item;
            item = next, next = item_of(waiting.position(2 * BATCH));
            walk<PX>(patch, pixels, halving, count);
            __syncwarp();
            if (lane < count) finish<PX>(patch, data);
            __syncwarp();
            add<PX>(patch, begin, row, count);
            __syncwarp();
            waiting.head += count;
        }
    }
};

template <bool CUT>
__device__ __forceinline__ void backward(const Lists& lists, const Inputs& inputs,
                                         const int2* order, int* count) {
    __shared__ Room rooms[RASTER_WARPS];
    const Backward<CUT> walk = {lists, inputs, rooms + threadIdx.x / 32};
    const int units = count[0] * PATCHES, lane = threadIdx.x % 32;
    int unit = blockIdx.x * RASTER_WARPS + threadIdx.x / 32;
    while (unit < units) {
        int next = gridDim.x * RASTER_WARPS;
        if (lane == 0) next += atomicAdd(count + 1, 1);
        run_unit(order, unit, walk);
        __syncwarp();
        unit = __shfl_sync(EVERY, next, 0);
    }
}

}  // namespace

// order, count: of raster_order with steps; see Lists and Inputs for the others. A warp a patch,
// 4 patches an entry of the order: warps take them one after another, count[1] says how many.
#define BACKWARD_KERNEL(NAME, CUT)                                                              \
    extern "C" __global__ void __launch_bounds__(RASTER_WARPS * 32, BACKWARD_BLOCKS - CUT)      \
    NAME(const int* tiles, const long long* offsets, const int* items, const float4* splats,    \
         const float* intervals, int held, int width, int height, const int2* order,            \
         int* count, const float* pixels, const int* last, const unsigned* masks,               \
         const float4* states, const float* gradient, float* sums, float* rows) {               \
        backward<CUT>({tiles, offsets, items, splats, intervals, held, width, height},          \
                      {pixels, last, masks, states, gradient, sums, rows}, order, count);       \
    }

BACKWARD_KERNEL(raster_backward, false)
BACKWARD_KERNEL(raster_backward_cut, true)

// Adds the rows that raster_backward stored, each splat's in the order of the lists.
// instances: (instances,) int64, instances sorted by splat; starts: (n + 1,) int64 into it;
// rows: (instances, 8, SUMS); sums: (n, SUMS). A thread a number of sums.
extern "C" __global__ void raster_gather(const long long* instances, const long long* starts,
                                         const float* rows, long long n, float* sums) {
    const long long at = 1ll * blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= n * SUMS) return;
    const long long splat = at / SUMS;
    float total = 0.0f;
    for (long long k = starts[splat]; k < starts[splat + 1]; ++k)
        for (int region = 0; region < REGIONS; ++region)
            total += rows[(instances[k] * REGIONS + region) * SUMS + at % SUMS];
    sums[at] += total;  // other tiles may have been walked before
}
