"""Memory and time that changes of the rows and single views take, on the benchmark city.

    python tests/gpu/time_memory.py Gaussians side views

Prints bytes a Gaussian beside the rows: peaks of a migration, of growth and of views forward and
backward; and seconds.
"""

import sys
import time

import cupy
import numpy as np
from exchanges import SelfExchange
from test_memory import peak_of

from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.data.gaussian_city import cameras, gaussians
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.tools.bench.stages import NEAR, STOP
from splaxel_mpi.train.state import State


def measure(name, state, work):
    """One line: what work took beside the state as it is afterwards."""
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    other = pool.used_bytes() - state.nbytes
    cupy.cuda.Device().synchronize()
    begin = time.perf_counter()
    peak = peak_of(cupy, work) - other
    cupy.cuda.Device().synchronize()
    spent = time.perf_counter() - begin
    beside = peak - state.nbytes
    print(f"{name}: {beside / len(state.gaussians):.1f} bytes a Gaussian beside "
          f"{state.nbytes / len(state.gaussians):.1f}, peak {peak / state.nbytes:.3f} of the "
          f"store, {1e3 * spent:.1f} ms", flush=True)


def views(state, seen):
    """Each camera forward and backward; kept arrays are those of training one view at a time."""
    backend, out = CudaBackend(), state.gradients()
    for camera in seen:
        splats = backend.project(state.gaussians, camera, 3, NEAR)
        lists = backend.tile_lists(splats, camera)
        partial = backend.rasterize(splats, lists, camera, STOP)
        seeds = cupy.full(partial.pixels.shape, 1e-6, np.float32)
        rows = backend.rasterize_backward(splats, lists, partial, seeds, camera, STOP)
        backend.project_backward(state.gaussians, camera, 3, splats, rows, out)


def main(count, side, number):
    state = State.fresh(gaussians(count, side), None)
    state.move(cupy.asarray)
    print(f"{len(state.gaussians)} Gaussians, {state.nbytes / 1e9:.2f} GB without gradients")
    for name in ("first migration", "second migration"):
        measure(name, state, lambda: state.migrate(Tree.single(), SelfExchange()))
    state.gradients()
    for kind in ("street", "aerial"):
        for _ in range(2):  # the first compiles
            seen = cameras(kind, number, side)
            measure(f"{number} {kind} views", state, lambda: views(state, seen))
    rows = cupy.arange(len(state.gaussians)) % 10 == 0
    children = state.gaussians.take(rows)
    measure("growth by a tenth", state, lambda: state.replace(~rows, None))
    measure("again", state, lambda: state.replace(
        cupy.ones(len(state.gaussians), bool), children))
    measure("beyond capacity", state, lambda: state.replace(
        cupy.ones(len(state.gaussians), bool), children))


if __name__ == "__main__":
    main(int(float(sys.argv[1])), float(sys.argv[2]), int(sys.argv[3]))
