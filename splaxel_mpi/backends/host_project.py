"""Host kernels of projection and of the reach of splats (contract in base.py)."""

import numpy as np

from ..scene.gaussians import GROUPS
from .base import SPLAT, Splats
from .checks import check_array, check_degree, check_gradient
from .host_library import call, suffix


class HostProject:
    """Mixin of HostBackend: project, project_backward, reach."""

    def _parameters(self, gaussians):
        for name, width in GROUPS.items():
            check_array(name, getattr(gaussians, name), (len(gaussians), width), self.real)
        return [getattr(gaussians, name) for name in GROUPS]

    def project(self, gaussians, camera, degree, near):
        """See Backend.project. Rows with a value that is not finite are not visible.

        Raises ValueError for arrays of another type or shape, degree or near out of range.
        """
        check_degree(degree)
        if not near >= 0:
            raise ValueError(f"near plane must be 0 or more, got {near}")
        count = len(gaussians)
        rows = np.empty(count, np.int32)
        data = np.empty((count, SPLAT), self.real)
        visible = call(
            f"spx_project_{suffix(self.real)}", count, *self._parameters(gaussians),
            camera.packed(), camera.width, camera.height, degree, float(near), self.threads,
            rows, data,
        )
        rows, data = rows[:visible], data[:visible]
        return Splats(rows, data, gaussians.ids[rows])

    def project_backward(self, gaussians, camera, degree, splats, gradient, out):
        """See Backend.project_backward. A row must not occur twice in splats.

        Raises ValueError for arrays of another type or shape and rows out of range.
        """
        check_degree(degree)
        count, visible = len(gaussians), len(splats)
        parameters = self._parameters(gaussians)
        check_array("splats.rows", splats.rows, (visible,), np.int32)
        check_array("splats.data", splats.data, (visible, SPLAT), self.real)
        columns = check_gradient(gradient, visible, self.real)
        for name, width in GROUPS.items():
            check_array(f"out.{name}", getattr(out, name), (count, width), self.real)
        check_array("out.seen", out.seen, (count,), np.uint8)
        if out.norm is not None:
            check_array("out.norm", out.norm, (count,), self.real)
        if out.count is not None:
            check_array("out.count", out.count, (count,), np.int32)
        status = call(
            f"spx_project_backward_{suffix(self.real)}", count, *parameters, camera.packed(),
            camera.width, camera.height, degree, self.threads, visible, splats.rows, splats.data,
            gradient, columns, *(getattr(out, name) for name in GROUPS), out.seen, out.norm,
            out.count,
        )
        if status:
            raise ValueError(f"splats.rows must lie in 0 to {count - 1}")

    def reach(self, splats, own, camera, tree):
        """See Backend.reach.

        Only pixel centres count: a box between them reaches nothing. Raises ValueError for
        arrays of another type or shape and for a tree deeper than 31 levels.
        """
        count = len(splats)
        check_array("splats.data", splats.data, (count, SPLAT), self.real)
        check_array("own", own, (count,), np.int32)
        boxes = np.ascontiguousarray(tree.boxes())
        nodes = len(tree.axis)
        room = count // 4 + 1024  # ghosts are a few percent of the splats; more is asked again
        while True:
            index, cell = np.empty(room, np.int32), np.empty(room, np.int32)
            found = call(
                f"spx_reach_{suffix(self.real)}", count, splats.data, own, camera.packed(),
                camera.width, camera.height,
                np.ascontiguousarray(tree.axis, np.int32),
                np.ascontiguousarray(tree.split, np.float64),
                np.ascontiguousarray(tree.left, np.int32),
                np.ascontiguousarray(tree.right, np.int32),
                nodes, boxes, self.threads, room, index, cell,
            )
            if found < 0:
                raise ValueError("tree is deeper than 31 levels or its children are out of range")
            if found <= room:
                return index[:found], cell[:found]
            room = found
