"""Visibility order of the cells for a camera (design section 4)."""

import numpy as np

from ..backends.host_library import call


def visibility_order(tree, center):
    """Cells from front to back as seen from a point: (cells,) int32.

    center: (3,) camera position in the world. At each split the child on the side of the
    centre comes first; a centre on the face is on the right, as a point is. For every ray from
    the centre, the cells that it crosses appear in the order of its crossings.
    """
    return visibility_orders(tree, [center])[0]


def visibility_orders(tree, centers):
    """visibility_order for many points, (n, 3): (n, cells) int32. Raises ValueError for a tree that
    does not lead to every cell once."""
    centers = np.array(centers, np.float64).reshape(-1, 3)
    axis, left, right = (
        np.ascontiguousarray(part, np.int32) for part in (tree.axis, tree.left, tree.right)
    )
    split, orders = np.ascontiguousarray(tree.split, np.float64), np.empty(
        (len(centers), tree.cells), np.int32
    )
    if call("spx_visibility_orders", axis, split, left, right, tree.cells, centers, len(centers),
            orders) < 0:
        raise ValueError("a tree must lead to every cell once")
    return orders
