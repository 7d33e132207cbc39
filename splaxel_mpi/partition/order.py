"""Visibility order of the cells for a camera (design section 4)."""

import numpy as np


def visibility_order(tree, center):
    """Cells from front to back as seen from a point: (cells,) int32.

    center: (3,) camera position in the world. At each split the child on the side of the
    centre comes first; a centre on the face is on the right, as a point is. For every ray from
    the centre, the cells that it crosses appear in the order of its crossings.
    """
    order = np.empty(tree.cells, np.int32)
    found = 0
    stack = [0 if len(tree.axis) else -1]
    while stack:
        child = stack.pop()
        if child < 0:
            order[found] = -1 - child
            found += 1
        elif center[tree.axis[child]] >= tree.split[child]:
            stack += [tree.left[child], tree.right[child]]
        else:
            stack += [tree.right[child], tree.left[child]]
    return order
