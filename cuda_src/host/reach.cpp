// Host driver of reach: threads over contiguous ranges of splats.
#include <omp.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "math/projection.cuh"
#include "math/reach.cuh"

namespace {

using namespace spx;

// Faces are compared with depths in the kernels' float type: room for a few roundings of it.
template <typename T>
constexpr double RELATIVE = sizeof(T) == 4 ? 1e-5 : 1e-12;

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

// Whether every node is reached at most once, at a depth that walk_tree has room for.
bool walkable(const TreeView& tree) {
    std::vector<std::pair<int, int>> stack = {{tree.nodes ? 0 : -1, 0}};
    int64_t visits = 0;
    while (!stack.empty()) {
        const auto [child, depth] = stack.back();
        stack.pop_back();
        if (child < 0 && -1 - child <= tree.nodes) continue;
        if (child < 0 || child >= tree.nodes || depth >= TREE_DEPTH) return false;
        if (++visits > tree.nodes || tree.axis[child] < 0 || tree.axis[child] > 2) return false;
        stack.push_back({tree.left[child], depth + 1});
        stack.push_back({tree.right[child], depth + 1});
    }
    return true;
}

template <typename T>
void reach_range(int64_t begin, int64_t end, const T* data, const int32_t* own,
                 const ReachView& view, const TreeView& tree, const double* boxes, Pairs& out) {
    const double relative = RELATIVE<T>;
    for (int64_t i = begin; i < end; ++i) {
        const T* splat = data + SPLAT * i;
        Quad quad;
        if (!make_quad(view, splat[U], splat[V], splat[EXTENT_X], splat[EXTENT_Y], splat[DEPTH],
                       quad))
            continue;
        const int32_t cell = own[i];
        if (cell >= 0 && cell <= tree.nodes &&
            quad_inside(view, quad, boxes + 6 * cell, boxes + 6 * cell + 3, relative))
            continue;
        walk_tree(tree, view, quad, relative, [&](int reached) {
            if (reached != cell) out.emplace_back(int32_t(i), int32_t(reached));
        });
    }
}

// Writes the pairs when there are no more than `room`. Returns their count, or -1 when the tree
// is not one that can be walked.
template <typename T>
int64_t reach(int64_t n, const T* data, const int32_t* own, const double* camera, int64_t width,
              int64_t height, const TreeView& tree, const double* boxes, int64_t threads,
              int64_t room, int32_t* index, int32_t* cell) {
    if (!walkable(tree)) return -1;
    const ReachView view = make_reach_view(camera, double(width), double(height));
    std::vector<Pairs> parts(threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1) if (threads > 1)
    for (int64_t k = 0; k < threads; ++k)
        reach_range(n * k / threads, n * (k + 1) / threads, data, own, view, tree, boxes,
                    parts[k]);
    int64_t total = 0;
    for (const Pairs& part : parts) total += int64_t(part.size());
    if (total > room) return total;
    for (const Pairs& part : parts)
        for (const auto& pair : part) *index++ = pair.first, *cell++ = pair.second;
    return total;
}

}  // namespace

#define SPX_KERNELS(T, SUFFIX)                                                                  \
    extern "C" int64_t spx_reach_##SUFFIX(                                                      \
        int64_t n, const T* data, const int32_t* own, const double* camera, int64_t width,      \
        int64_t height, const int32_t* axis, const double* split, const int32_t* left,          \
        const int32_t* right, int64_t nodes, const double* boxes, int64_t threads, int64_t room, \
        int32_t* index, int32_t* cell) {                                                        \
        return reach<T>(n, data, own, camera, width, height,                                    \
                        {axis, split, left, right, int(nodes)}, boxes, threads, room, index,    \
                        cell);                                                                  \
    }

SPX_KERNELS(float, f32)
SPX_KERNELS(double, f64)
