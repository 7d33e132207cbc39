"""The optimizer's CUDA kernel (contract in base.py)."""

import numpy as np

from ..scene.gaussians import GROUPS
from .cuda_module import kernel
from .cuda_project import PROJECT_THREADS, check_aligned, launch
from .base import SPLAT_GRADIENT
from .host_library import call
from .checks import check_array, check_degree

THREADS = 256
MOST_GROUPS = 6
# Values a block updates: four rounds of 16 bytes a thread, few enough that blocks even out.
BLOCK_VALUES = 4 * 4 * THREADS

# AdamGroup of adam_groups.cuh
GROUP = np.dtype([("pointers", "<u8", 4), ("step", "<f4", 8), ("width", "<i4"),
                  ("rows_a_block", "<i4"), ("first_block", "<i8")])


def _fill(entry, arrays, shape, real):
    """Write the arrays of a group, each of the shape, None for none, to an entry of GROUP."""
    for name, array in zip(("parameter", "gradient", "first", "second"), arrays):
        if array is not None:
            check_array(name, array, shape, real)
            check_aligned(name, array)
    entry["pointers"] = [0 if array is None else array.data.ptr for array in arrays]
    entry["width"] = shape[1]


def _by_value(table):
    return table.view(np.dtype((np.void, table.nbytes)))


def steps_of(rates, betas, epsilon, step, scale):
    """What a group's update needs, AdamStep<float>: (groups, 8) float32. rates: list; the other
    arguments as in Backend.adam_groups. Raises ValueError for step below 1."""
    if step < 1:
        raise ValueError(f"step must be 1 or more, got {step}")
    steps = np.empty((len(rates), 8), np.float32)
    call("spx_adam_steps_f32", len(rates), np.array(rates, np.float64), float(betas[0]),
         float(betas[1]), float(epsilon), float(step), float(scale), steps)
    return steps


class CudaAdam:
    """Mixin of the CUDA backend: adam_groups, and project_backward_adam, which fuses it with the
    gradient of projection."""

    def adam_groups(self, groups, seen, betas, epsilon, step, scale, clear=False, broken=None,
                    tally=None):
        """See Backend.adam_groups. All groups are one launch.

        tally: cuda_tally.Tally; nothing is done once it is stopped. Raises ValueError for wrong
        shapes or types, step below 1 and too many groups.
        """
        if not 1 <= len(groups) <= MOST_GROUPS:
            raise ValueError(f"adam takes 1 to {MOST_GROUPS} groups, got {len(groups)}")
        rows = len(groups[0][0])
        if seen is not None:
            check_array("seen", seen, (rows,), np.uint8)
        if broken is not None:
            check_array("broken", broken, (len(groups),), np.int32)
        table = np.zeros(MOST_GROUPS, GROUP)
        blocks = 0
        for entry, (*arrays, _) in zip(table, groups):
            width = arrays[0].shape[-1]
            _fill(entry, arrays, (rows, width), self.real)
            rows_a_block = max(4, BLOCK_VALUES // max(width, 1) // 4 * 4)
            entry["rows_a_block"], entry["first_block"] = rows_a_block, blocks
            blocks += -(-rows // rows_a_block) if width else 0
        rates = [group[-1] for group in groups]
        table["step"][: len(rates)] = steps_of(rates, betas, epsilon, step, scale)
        launch(kernel("adam.cu", "adam"), blocks, THREADS, rows, np.int32(len(groups)),
               _by_value(table), seen, np.int32(clear), broken, tally and tally.stop_word)

    def project_backward_adam(self, gaussians, camera, degree, splats, gradient, out, first,
                              second, rates, betas, epsilon, step, scale, broken=None,
                              tally=None):
        """project_backward of a step's only view and the selective Adam step in one pass.

        The result is that of project_backward into zeroed gradients and of adam_groups with its
        out.seen; gradients are never stored. out: Gradients, of which seen, norm and count alone
        are used, each where it is not None; first, second: moments by group name; rates:
        learning rate by group name; other arguments as in project_backward and adam_groups.
        Changes the gaussians; broken has a flag for each of GROUPS. Raises ValueError as those.
        """
        check_degree(degree)
        count, room = len(gaussians), len(splats)
        if self._check_splats(splats, gradient) != SPLAT_GRADIENT:
            raise ValueError("the fused step takes no absolute gradients")
        table = self._fused_table(gaussians, first, second)
        table["step"] = steps_of([rates[name] for name in GROUPS], betas, epsilon, step, scale)
        self._check_statistics(out, count)
        if broken is not None:
            check_array("broken", broken, (len(GROUPS),), np.int32)
        launch(kernel("project_adam.cu", f"project_adam_{degree}"),
               -(-room // PROJECT_THREADS), PROJECT_THREADS, count, _by_value(table),
               self.camera_view(camera, 0), room, splats.count, splats.rows, splats.data, gradient,
               out.seen, out.norm, out.count, broken, tally and tally.stop_word)

    def _fused_table(self, gaussians, first, second):
        """Groups without gradients."""
        table = np.zeros(MOST_GROUPS, GROUP)
        for entry, (name, width) in zip(table, GROUPS.items()):
            arrays = getattr(gaussians, name), None, first[name], second[name]
            _fill(entry, arrays, (len(gaussians), width), self.real)
        return table
