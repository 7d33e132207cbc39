// Visibility order of the cells for many views (partition/order.py).
#include <cstdint>
#include <vector>

// A tree as Tree has it, of cells - 1 nodes, and centers (views, 3). orders: (views, cells) cells
// nearest first. Returns -1 where the tree does not visit each cell once.
extern "C" int64_t spx_visibility_orders(const int32_t* axis, const double* split,
                                         const int32_t* left, const int32_t* right, int64_t cells,
                                         const double* centers, int64_t views, int32_t* orders) {
    std::vector<int32_t> stack;
    std::vector<bool> seen;
    for (int64_t view = 0; view < views; ++view, centers += 3) {
        int64_t found = 0, visits = 0;
        stack.assign(1, cells > 1 ? 0 : -1);
        seen.assign(cells, false);
        while (!stack.empty()) {
            const int32_t child = stack.back();
            stack.pop_back();
            if (child < 0) {
                const int32_t cell = -1 - child;
                if (cell >= cells || seen[cell]) return -1;
                seen[cell] = true;
                orders[found++] = cell;
                continue;
            }
            if (child >= cells - 1 || ++visits >= cells || axis[child] < 0 || axis[child] > 2)
                return -1;
            const bool right_first = centers[axis[child]] >= split[child];
            stack.push_back(right_first ? left[child] : right[child]);
            stack.push_back(right_first ? right[child] : left[child]);
        }
        if (found != cells) return -1;
        orders += cells;
    }
    return 0;
}
