"""Times projection, its gradient, ghost routing and Adam on the benchmark city, by CUDA events.

    python tests/gpu/time_project.py FOLDER_OF_CITY_PY [--gaussians 4000000] [--side 1000]

Prints medians over views in ms. "kernels": the device's time, launches queued behind other work;
"call": one call with its host part and its synchronisation. GB/s counts the bytes that must move,
each once. Gaussians are in random order first, then along a Morton curve: neighbours in space
are then neighbours in memory, and a visible row shares its memory sectors with visible rows.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from splaxel_mpi.backends import cuda_project  # noqa: E402
from splaxel_mpi.backends.base import Gradients  # noqa: E402
from splaxel_mpi.backends.cuda_adam import CudaAdam  # noqa: E402
from splaxel_mpi.partition.tree import Tree  # noqa: E402
from splaxel_mpi.scene.camera import Camera  # noqa: E402
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians  # noqa: E402

NEAR = 0.1
REPEATS = 10


class Cuda(cuda_project.CudaProject, CudaAdam):
    def __init__(self, cupy):
        self.real, self.xp = np.dtype(np.float32), cupy


def load_city(cupy, city, count, side):
    g = city.gaussians(n=count, side=side)
    sh = g["sh"].reshape(count, -1)
    opacity = np.clip(g["opacities"], 1e-6, 1 - 1e-6)[:, None]
    arrays = {"means": g["means"], "scales": np.log(g["scales"]), "quats": g["quats"],
              "opacities": np.log(opacity / (1 - opacity)), "sh0": sh[:, :3], "shN": sh[:, 3:]}
    return Gaussians(**{name: cupy.asarray(np.ascontiguousarray(a, np.float32))
                        for name, a in arrays.items()}, ids=cupy.arange(count, dtype=np.int64))


def load_cameras(city, kind, side):
    for view in city.cameras(kind, count=8, side=side):
        pose = view["world_to_camera"].astype(np.float64)
        yield Camera(view["width"], view["height"], view["fx"], view["fy"], view["cx"],
                     view["cy"], pose[:3, :3], pose[:3, 3])


def grid_tree(side, levels):
    """A tree of 2^levels cells that halves the city along x and y in turn."""
    axis, split, left, right, cells = [], [], [], [], iter(range(1 << levels))

    def grow(level, low, high):
        if level == levels:
            return -1 - next(cells)
        node, a = len(axis), level % 2
        middle = (low[a] + high[a]) / 2
        axis.append(a), split.append(middle), left.append(0), right.append(0)
        below, above = list(high), list(low)
        below[a] = above[a] = middle
        left[node] = grow(level + 1, low, below)
        right[node] = grow(level + 1, above, high)
        return node

    grow(0, [-side / 2] * 2, [side / 2] * 2)
    return Tree(np.array(axis, np.int32), np.array(split, np.float64),
                np.array(left, np.int32), np.array(right, np.int32))


def cells_of(cupy, tree, means):
    """Cell of each mean."""
    child = cupy.zeros(len(means), np.int32)
    axis, split, left, right = (cupy.asarray(a) for a in
                                (tree.axis, tree.split, tree.left, tree.right))
    while (child >= 0).any():
        node = cupy.maximum(child, 0)
        below = cupy.take_along_axis(means, axis[node][:, None], 1)[:, 0] < split[node]
        child = cupy.where(child >= 0, cupy.where(below, left[node], right[node]), child)
    return (-1 - child).astype(np.int32)


def morton_order(cupy, means, side):
    """Order of points along a Morton curve over x and y, cells of side / 2^15."""
    cells = cupy.clip((means[:, :2] / side + 0.5) * (1 << 15), 0, (1 << 15) - 1)
    key = cells.astype(np.uint64)
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        key = (key | key << np.uint64(shift)) & np.uint64(mask)
    return cupy.argsort(key[:, 0] | key[:, 1] << np.uint64(1))


class Timer:
    def __init__(self, cupy):
        self.cupy, self.rows = cupy, {}
        self.busy = cupy.empty(1 << 28, np.float32)  # filling it takes a quarter of a ms

    def kernels(self, name, function, repeats=REPEATS):
        """Mean of launches in a row, queued while the device is kept busy."""
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        function()
        for _ in range(16):
            self.busy.fill(1)
        begin.record()
        for _ in range(repeats):
            function()
        end.record()
        end.synchronize()
        spent = self.cupy.cuda.get_elapsed_time(begin, end) / repeats
        self.rows.setdefault(name, []).append(spent)
        return spent

    def call(self, name, function):
        """Median of whole calls on the host's clock."""
        spent = []
        for _ in range(7):
            self.cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            function()
            self.cupy.cuda.Device().synchronize()
            spent.append(1e3 * (time.perf_counter() - start))
        self.rows.setdefault(name, []).append(np.median(spent))

    def print(self):
        for name, values in self.rows.items():
            print(f"  {name:44s} {np.median(values):8.4f} ms")


def time_views(cupy, city, kind, gaussians, side):
    cuda, timer = Cuda(cupy), Timer(cupy)
    cuda.moments = [{name: cupy.zeros_like(array) for name, array in gaussians.groups()}
                    for _ in range(2)]
    count = len(gaussians)
    tree = grid_tree(side, 3)
    cells = cells_of(cupy, tree, gaussians.means)
    grads = Gradients(**{name: cupy.zeros((count, width), np.float32)
                         for name, width in GROUPS.items()}, seen=cupy.zeros(count, np.uint8),
                      norm=cupy.zeros(count, np.float32), count=cupy.zeros(count, np.int32))
    visible, ghosts, rates, made = [], [], [], []
    for camera in load_cameras(city, kind, side):
        grads.seen.fill(0)
        splats = cuda.project(gaussians, camera, 3, NEAR)
        visible.append(len(splats))
        timer.call("project: call", lambda: cuda.project(gaussians, camera, 3, NEAR))
        parameters, view = cuda._parameters(gaussians), cuda_project.camera_view(camera, NEAR)
        spent = timer.kernels("project: kernels", lambda: cuda._project(
            parameters, gaussians.ids, view, 3, splats))
        words, tests, _ = cuda._words(count, 128)
        candidates = cupy.empty(count, np.int32)

        def cull():
            words.fill(0)
            cuda_project.launch(
                cuda_project.kernel("project.cu", "cull"), len(tests), 256, count, parameters[0],
                parameters[1], view, words, tests, words[2:], candidates)

        timer.kernels("cull alone: kernels", cull)
        start = time.perf_counter()
        for _ in range(REPEATS):
            cuda._project(parameters, gaussians.ids, view, 3, splats)
        timer.rows.setdefault("project: host part of the launches", []).append(
            1e3 * (time.perf_counter() - start) / REPEATS)
        made.append(int(words[2]))
        own = cells[splats.rows]
        ghosts.append(len(cuda.reach(splats, own, camera, tree)[0]))
        timer.call("reach, 8 cells: call", lambda: cuda.reach(splats, own, camera, tree))
        arrays = cuda._tree_arrays(tree)
        reach_view = cuda_project.by_value("spx_reach_view", cuda_project.REACH_VIEW_BYTES,
                                           camera.packed(), camera.width, camera.height)
        out = cupy.empty(1 << 20, np.int32), cupy.empty(1 << 20, np.int32)
        timer.kernels("reach, 8 cells: kernels",
                      lambda: cuda._reach(splats.data, own, reach_view, arrays, out))
        gradient = cupy.random.standard_normal((len(splats), 9), np.float32) * 1e-6
        back = timer.kernels("project_backward: kernels", lambda: cuda.project_backward(
            gaussians, camera, 3, splats, gradient, grads))
        moments = cuda.moments
        timer.kernels("project_backward_adam: kernels", lambda: cuda.project_backward_adam(
            gaussians, camera, 3, splats, gradient, grads, *moments,
            dict.fromkeys(GROUPS, 1e-9), (0.9, 0.999), 1e-15, 10, 1.0))
        rates.append((24 * count + 280 * visible[-1], spent, 800 * visible[-1], back))
    print(f"{kind}: {count} Gaussians, visible {np.median(visible):.0f}, "
          f"candidates {np.median(made):.0f}, ghosts {np.median(ghosts):.0f}")
    timer.print()
    forward = np.median([a / s for a, s, _, _ in rates]) / 1e6
    backward = np.median([b / t for _, _, b, t in rates]) / 1e6
    print(f"  forward {forward:.0f} GB/s, backward {backward:.0f} GB/s")
    return cuda, grads


def time_adam(cupy, cuda, gaussians, grads):
    timer = Timer(cupy)
    groups = [(array, getattr(grads, name), *(m[name] for m in cuda.moments), 1e-9)
              for name, array in gaussians.groups()]
    common = ((0.9, 0.999), 1e-15, 10, 1.0)
    seen = int(grads.seen.sum())

    def single(mask):
        for group in groups:
            cuda.adam_groups([group], mask, *common)

    for name, mask, rows in (("selective", grads.seen, seen), ("dense", None, len(gaussians))):
        spent = timer.kernels(f"adam, {name} {rows}: one launch",
                              lambda: cuda.adam_groups(groups, mask, *common))
        print(f"  adam {name}: {59 * 28 * rows / spent / 1e6:.0f} GB/s")
        timer.kernels(f"adam, {name} {rows}: six launches", lambda: single(mask))
    timer.kernels(f"adam, selective {seen}: one launch, clearing",
                  lambda: cuda.adam_groups(groups, grads.seen, *common, clear=True))
    timer.kernels("zeroing all gradients", lambda: [g.fill(0) for _, g, *_ in groups])
    timer.print()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("city", help="folder that holds city.py")
    parser.add_argument("--gaussians", type=int, default=4_000_000)
    parser.add_argument("--side", type=float, default=1000.0)
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.city)
    import city
    import cupy

    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    gaussians = load_city(cupy, city, arguments.gaussians, arguments.side)
    for order in ("random", "Morton"):
        print(f"{order} order")
        for kind in ("aerial", "street"):
            cuda, grads = time_views(cupy, city, kind, gaussians, arguments.side)
        time_adam(cupy, cuda, gaussians, grads)
        gaussians = gaussians.take(morton_order(cupy, gaussians.means, arguments.side))


if __name__ == "__main__":
    main()
