// Ghost routing: which other cells each splat's box, at its depth, reaches. In double, with the
// steps of the host, so that both answer the same.
//
// Two launches. `reach_candidates` lists the splats that are not well inside their own cell, a
// few percent; `reach_cells` walks the tree with those alone.
#include "compact.cuh"
#include "counted.cuh"
#include "math/projection.cuh"
#include "math/reach.cuh"

using namespace spx;

// Faces are compared with float depths: room for a few roundings of them, as on the host.
constexpr double RELATIVE = 1e-5;

struct Box {
    double u, v, half_x, half_y, depth;
};

// data: (n, 12) in groups of four
__device__ inline Box load_box(const float4* data, long long i) {
    static_assert(U == 0 && V == 1 && DEPTH == 9 && EXTENT_X == 10 && EXTENT_Y == 11, "columns");
    const float4 first = data[3 * i], last = data[3 * i + 2];
    return {first.x, first.y, last.z, last.w, last.y};
}

extern "C" __global__ void __launch_bounds__(TEST_THREADS)
reach_candidates(long long n,
                 const word64* visible,             // (1,) rows in use, or null: all
                 const float4* __restrict__ data,   // (n, 12)
                 const int* __restrict__ own,       // (n,)
                 ReachView view,
                 const double* __restrict__ boxes,  // (cells, 2, 3)
                 int cells,
                 word64* ticket,                    // (1,), zeroed
                 word64* state,                     // (ceil(n / 2048),), zeroed
                 word64* total,                     // (1,), splats written
                 int* candidates) {                 // (n,), ascending
    __shared__ TestShared shared;
    const long long used = rows_in_use(n, visible);
    keep_rows(n, ticket, state, total, candidates, shared, [&](long long i) {
        if (i >= used) return false;
        const int cell = own[i];
        if (cell < 0 || cell >= cells) return true;
        const Box box = load_box(data, i);
        const Interior interior = make_interior(view, boxes + 6 * cell, RELATIVE);
        return !box_inside(view, box.u, box.v, box.half_x, box.half_y, box.depth, interior,
                           RELATIVE);
    });
}

// Polygons of a block lie in shared memory: as local arrays they would take it from the memory
// of every thread that the device can hold.
constexpr int THREADS = 64, WARPS = THREADS / 32;
// cells of a splat kept while positions are summed; those of more are found a second time
constexpr int KEPT = 8;

struct ReachShared {
    Polygon polygons[THREADS][2];
    unsigned counts[WARPS];
    long long tile, base;
};

extern "C" __global__ void __launch_bounds__(THREADS)
reach_cells(const float4* __restrict__ data,    // (n, 12)
            const int* __restrict__ own,        // (n,)
            ReachView view,
            const int* __restrict__ axis,       // (nodes,)
            const double* __restrict__ split,   // (nodes,)
            const int* __restrict__ left,       // (nodes,)
            const int* __restrict__ right,      // (nodes,)
            int nodes,
            const int* __restrict__ candidates, // (*count,), ascending
            const word64* count,                // (1,)
            word64* ticket,                     // (1,), zeroed
            word64* state,                      // (ceil(n / 64),), zeroed
            word64* total,                      // (1,), zeroed; pairs found, room or not
            long long room,                     // pairs that fit the outputs
            int* index,                         // (room,)
            int* cell) {                        // (room,)
    __shared__ ReachShared shared;
    const TreeView tree = {axis, split, left, right, nodes};
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const long long n = (long long)*count;
    for (;;) {
        const long long tile = next_tile(ticket, &shared.tile);
        const long long first = tile * THREADS;
        if (first >= n) return;
        const int i = first + threadIdx.x < n ? candidates[first + threadIdx.x] : -1;
        const int home = i < 0 ? -1 : own[i];
        int kept[KEPT];
        unsigned found = 0;
        Quad quad;
        bool visible = false;
        if (i >= 0) {
            const Box box = load_box(data, i);
            visible = make_quad(view, box.u, box.v, box.half_x, box.half_y, box.depth, quad);
        }
        if (visible)
            walk_tree_again(tree, view, quad, RELATIVE, shared.polygons[threadIdx.x],
                            [&](int reached) {
                                if (reached == home) return;
                                if (found < KEPT) kept[found] = reached;
                                ++found;
                            });
        const unsigned sums = warp_sums(found);
        if (lane == 31) shared.counts[warp] = sums;
        __syncthreads();
        if (warp == 0) {
            const unsigned all = shared.counts[0] + shared.counts[1];
            static_assert(WARPS == 2, "two counts");
            const word64 before = sum_before(state, tile, all);
            if (lane == 0) {
                shared.base = (long long)before;
                if (first + THREADS >= n) *total = before + all;
            }
        }
        __syncthreads();
        long long place = shared.base + (warp ? shared.counts[0] : 0) + sums - found;
        const auto write = [&](int reached) {
            if (place < room) index[place] = i, cell[place] = reached;
            ++place;
        };
        if (found <= KEPT)
            for (unsigned k = 0; k < found; ++k) write(kept[k]);
        else
            walk_tree_again(tree, view, quad, RELATIVE, shared.polygons[threadIdx.x],
                            [&](int reached) {
                                if (reached != home) write(reached);
                            });
    }
}
