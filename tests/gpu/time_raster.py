"""Times the CUDA rasterizer on the benchmark city (shared/bench/city.py on the path).

    python tests/gpu/time_raster.py [Gaussians] [side in metres] [views of a kind]

Splats and lists come from the host backend. Prints a line a view: splats, instances, and medians
in ms by CUDA events of the forward and the backward pass; last the medians over the views.
"""

import os
import sys

import numpy as np

from splaxel_mpi.backends.base import Splats, TileLists
from splaxel_mpi.backends.cuda_raster import CudaRaster
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import Gaussians

REPEATS = 20
NEAR, STOP = 0.1, 1e-4


def load_city(count, side):
    """The city's Gaussians without view dependence: the rasterizer does not see it."""
    from city import gaussians

    city = gaussians(count, side, bands=1)
    opacity = np.clip(city["opacities"], 1e-6, 1 - 1e-6)[:, None]
    return Gaussians(
        city["means"], np.log(city["scales"]), city["quats"],
        np.log(opacity / (1 - opacity)).astype(np.float32),
        np.ascontiguousarray(city["sh"][:, 0]), np.zeros((count, 45), np.float32),
        np.arange(count, dtype=np.int64),
    )


def load_cameras(kind, count, side):
    from city import cameras

    for view in cameras(kind, count, side):
        pose = view["world_to_camera"].astype(np.float64)
        yield Camera(view["width"], view["height"], view["fx"], view["fy"], view["cx"],
                     view["cy"], pose[:3, :3], pose[:3, 3])


def prepare(host, gaussians, camera):
    """Splats and lists of a view on the GPU."""
    import cupy

    splats = host.project(gaussians, camera, 0, NEAR)
    lists = host.tile_lists(splats, camera)
    gpu = Splats(splats.rows, cupy.asarray(splats.data), splats.ids)
    return gpu, TileLists(*(cupy.asarray(a) for a in (lists.tiles, lists.offsets, lists.items)))


def milliseconds(function):
    """Median time on the GPU."""
    import cupy

    function()
    times = []
    for _ in range(REPEATS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        # a queue that is not empty keeps the time of launching out of the measurement
        cupy.cuda.Device().synchronize()
        busy = cupy.ones(1 << 26, np.float32)
        busy += busy
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end))
    return float(np.median(times))


def time_view(raster, splats, lists, camera):
    """Median ms of the forward and of the backward pass."""
    import cupy

    partial = raster.rasterize(splats, lists, camera, STOP)
    gradient = cupy.ones_like(partial.pixels)
    forward = milliseconds(lambda: raster.rasterize(splats, lists, camera, STOP))
    backward = milliseconds(
        lambda: raster.rasterize_backward(splats, lists, partial, gradient, camera, STOP)
    )
    return forward, backward


def main(count=4_000_000, side=1000.0, views=8):
    gaussians = load_city(count, side)
    host = HostBackend(np.float32, len(os.sched_getaffinity(0)))
    for kind in ("street", "aerial"):
        times = []
        for camera in load_cameras(kind, views, side):
            splats, lists = prepare(host, gaussians, camera)
            times.append(time_view(CudaRaster(), splats, lists, camera))
            print(f"{count} {kind}: {len(splats)} splats, {len(lists.items)} instances: "
                  "forward {:.3f} backward {:.3f} ms".format(*times[-1]), flush=True)
        medians = np.median(times, axis=0)
        print(f"{count} {kind}, median: forward {medians[0]:.3f} backward {medians[1]:.3f} ms")


if __name__ == "__main__":
    main(*(int(float(value)) for value in sys.argv[1:]))
