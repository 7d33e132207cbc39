"""The optimizer's CUDA kernel (contract in base.py)."""

import numpy as np

from .cuda_module import kernel
from .cuda_project import check_aligned, launch
from .host_library import call
from .host_project import check_array

THREADS = 256
MOST_GROUPS = 6
# Values a block updates: four rounds of 16 bytes a thread, few enough that blocks even out.
BLOCK_VALUES = 4 * 4 * THREADS

# AdamGroup of adam.cu
GROUP = np.dtype([("pointers", "<u8", 4), ("step", "<f4", 8), ("width", "<i4"),
                  ("rows_a_block", "<i4"), ("first_block", "<i8")])


class CudaAdam:
    """Mixin of the CUDA backend: adam, and adam_groups for all parameter groups in one launch."""

    def adam(self, parameter, gradient, first, second, seen, rate, betas, epsilon, step, scale):
        """See Backend.adam. step counts optimizer steps, this one included.

        Raises ValueError for wrong shapes or types and step below 1.
        """
        self.adam_groups([(parameter, gradient, first, second, rate)], seen, betas, epsilon, step,
                         scale)

    def adam_groups(self, groups, seen, betas, epsilon, step, scale, clear=False):
        """One Adam step on up to six groups (parameter, gradient, first, second, rate) that share
        their rows; other arguments as in Backend.adam.

        clear: set the gradients of updated rows to zero, which spares a pass over all rows
        before the next step. Raises ValueError as adam, and for too many groups.
        """
        if step < 1:
            raise ValueError(f"step must be 1 or more, got {step}")
        if not 1 <= len(groups) <= MOST_GROUPS:
            raise ValueError(f"adam takes 1 to {MOST_GROUPS} groups, got {len(groups)}")
        rows = len(groups[0][0])
        if seen is not None:
            check_array("seen", seen, (rows,), np.uint8)
        table = np.zeros(MOST_GROUPS, GROUP)
        blocks = 0
        for entry, (parameter, *others, _) in zip(table, groups):
            check_array("parameter", parameter, (rows, None), self.real)
            for name, array in zip(("gradient", "first", "second"), others):
                check_array(name, array, parameter.shape, self.real)
            arrays = (parameter, *others)
            for array in arrays:
                check_aligned("array", array)
            width = parameter.shape[1]
            rows_a_block = max(4, BLOCK_VALUES // max(width, 1) // 4 * 4)
            entry["pointers"] = [array.data.ptr for array in arrays]
            entry["width"], entry["rows_a_block"] = width, rows_a_block
            entry["first_block"] = blocks
            blocks += -(-rows // rows_a_block) if width else 0
        self._fill_steps(table, [group[-1] for group in groups], betas, epsilon, step, scale)
        launch(kernel("adam.cu", "adam"), blocks, THREADS, rows, np.int32(len(groups)),
               table.view(np.dtype((np.void, table.nbytes))), seen, np.int32(clear))

    @staticmethod
    def _fill_steps(table, rates, betas, epsilon, step, scale):
        steps = np.empty((len(rates), 8), np.float32)
        call("spx_adam_steps_f32", len(rates), np.array(rates, np.float64), float(betas[0]),
             float(betas[1]), float(epsilon), float(step), float(scale), steps)
        table["step"][: len(rates)] = steps
