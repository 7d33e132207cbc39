"""Times the tile lists of the CUDA backend on the benchmark city (shared/bench/city.py on the
path) and sorts of fixed size. Prints medians in ms by CUDA events; "call" is wall time.

    python tests/gpu/time_lists.py [Gaussians] [side in metres]
"""

import sys
import time

import numpy as np

from splaxel_mpi.backends import cuda_lists
from splaxel_mpi.backends.base import Splats
from splaxel_mpi.backends.cuda_sort import sort_pairs
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import Gaussians

REPEATS = 20


def milliseconds(function, waits=False):
    """Median time of the GPU and of the caller. Unless the function waits for the GPU itself,
    its launches are queued behind other work, so that their own cost is hidden."""
    import cupy

    function()
    ballast = cupy.zeros(1 << 30, np.uint8)  # 0.3 ms to fill
    gpu, call = [], []
    for _ in range(REPEATS):
        cupy.cuda.Device().synchronize()
        for _ in range(0 if waits else 4):
            ballast.fill(1)
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        start = time.perf_counter()
        function()
        call.append(1e3 * (time.perf_counter() - start))
        end.record()
        end.synchronize()
        gpu.append(cupy.cuda.get_elapsed_time(begin, end))
    return np.median(gpu), np.median(call)


def tell(name, function, note="", waits=False):
    gpu, call = milliseconds(function, waits)
    print(f"  {name:34} {gpu:7.3f}  call {call:7.3f} {note}", flush=True)


def tell_kernels(function):
    """Median time of each kernel that function launches through cuda_lists."""
    import cupy

    launch, spans = cuda_lists._launch, {}

    def timed(source, name, *arguments):
        span = cupy.cuda.Event(), cupy.cuda.Event()
        span[0].record()
        launch(source, name, *arguments)
        span[1].record()
        spans.setdefault(name, []).append(span)

    cuda_lists._launch = timed
    milliseconds(function)
    cuda_lists._launch = launch
    for name, pairs in spans.items():
        times = [cupy.cuda.get_elapsed_time(*pair) for pair in pairs]
        print(f"    {name:32} {np.median(times):7.3f}")


def time_sorts():
    import cupy

    for count, bits, key_type in [(1 << 20, 32, np.uint32), (5 << 19, 32, np.uint32),
                                  (1 << 20, 64, np.int64), (8_000_000, 13, np.uint16),
                                  (8_000_000, 13, np.uint32)]:
        keys = cupy.random.randint(0, 1 << min(bits, 62), count, dtype=np.int64).astype(key_type)
        values = cupy.arange(count, dtype=np.int32)
        tell(f"sort {count} {np.dtype(key_type).name} {bits} bits",
             lambda: sort_pairs(keys, values, count, bits))


def city_gaussians(count, side):
    from city import gaussians

    city = gaussians(count, side, bands=1)
    logit = np.log(city["opacities"] / (1 - city["opacities"]))[:, None]
    return Gaussians(
        city["means"], np.log(city["scales"]), city["quats"], logit.astype(np.float32),
        np.ascontiguousarray(city["sh"][:, 0]), np.zeros((count, 45), np.float32),
        np.arange(count, dtype=np.int64),
    )


def city_camera(view):
    pose = view["world_to_camera"].astype(np.float64)
    return Camera(view["width"], view["height"], view["fx"], view["fy"], view["cx"], view["cy"],
                  pose[:3, :3], pose[:3, 3])


def time_view(splats, camera, side):
    lists = cuda_lists.CudaLists()
    box = np.array([[-np.inf, -np.inf, -np.inf], [0.3 * side, np.inf, np.inf]])
    found = lists.tile_lists(splats, camera)
    print(f" {len(splats)} splats, {len(found.items)} instances, {len(found.tiles)} tiles held")
    order, capacity = cuda_lists.depth_order(splats), lists._capacity
    emitted = cuda_lists.emit_instances(splats, order, camera, None, None, capacity)
    tell("depth order", lambda: cuda_lists.depth_order(splats))
    tell("emit, list held", lambda: cuda_lists.emit_instances(
        splats, order, camera, None, None, capacity))
    tell_kernels(lambda: cuda_lists.emit_instances(splats, order, camera, None, None, capacity))
    tell("sort by tile", lambda: sort_pairs(emitted.keys, emitted.items, len(found.items), 13))
    tell("tile_lists", lambda: lists.tile_lists(splats, camera), waits=True)
    inside = lists.tile_lists(splats, camera, box)
    tell("tile_lists of a cell", lambda: lists.tile_lists(splats, camera, box),
         f"{len(inside.items)} instances, intervals {inside.intervals is not None}", waits=True)
    tell("depth order, long ties", lambda: cuda_lists.depth_order(splats, by_id=True))


def main(count=4_000_000, side=1000.0):
    import cupy
    from city import cameras

    print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "CuPy", cupy.__version__)
    time_sorts()
    gaussians, host = city_gaussians(count, side), HostBackend(np.float32, 16)
    for kind in ("street", "aerial"):
        for view in cameras(kind, 2, side):
            camera = city_camera(view)
            splats = host.project(gaussians, camera, 0, 0.1)
            expected = host.tile_lists(splats, camera)
            device = Splats(*map(cupy.asarray, (splats.rows, splats.data, splats.ids)))
            found = cuda_lists.CudaLists().tile_lists(device, camera)
            same = np.array_equal(found.items.get(), expected.items)
            print(f"{kind}: equal to the host's lists: {same}")
            time_view(device, camera, side)


if __name__ == "__main__":
    main(*(int(value) for value in sys.argv[1:]))
