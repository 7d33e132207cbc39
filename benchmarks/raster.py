"""Speed of the host rasterizer on one core: python benchmarks/raster.py [options].

Prints, per scene, the CPU times of tile lists, forward and backward pass and the evaluated pairs of
pixel and splat (alpha was computed) per second and core. Scenes are seeded: splats spread over
the image, log-normal footprints, mixed opacities. Needs numpy and the compiled extension only.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends.base import SPLAT, Splats  # noqa: E402
from splaxel_mpi.backends.host_raster import HostRaster, isa  # noqa: E402
from splaxel_mpi.scene.camera import Camera  # noqa: E402

# name: width, height, splats, median sigma in pixels
SCENES = {
    "small": (320, 180, 150_000, 0.8),  # footprints of a few pixels, as in training on a CPU
    "tiny": (200, 112, 100_000, 0.6),
    "medium": (640, 360, 50_000, 3.0),
    "large": (640, 360, 5_000, 15.0),
}


class Raster(HostRaster):
    """The rasterizer alone."""

    def __init__(self, real, threads):
        self.real, self.threads = np.dtype(real), threads


def synthetic(width, height, count, sigma, real, seed=0):
    """A camera and `count` splats; sigma: median standard deviation in pixels."""
    random = np.random.default_rng(seed)
    camera = Camera(width, height, width, width, width / 2, height / 2, np.eye(3), np.zeros(3))
    sigmas = sigma * np.exp(0.5 * random.standard_normal((count, 2)))
    angle = random.uniform(0, np.pi, count)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = sigmas.T**2
    xx = first * cos**2 + second * sin**2 + 0.3
    yy = first * sin**2 + second * cos**2 + 0.3
    xy = (first - second) * cos * sin
    determinant = xx * yy - xy**2
    opacity = np.clip(random.beta(0.7, 1.0, count), 0.005, 0.999)
    reach = np.sqrt(2 * np.log(255 * opacity)) + 1e-3
    data = np.empty((count, SPLAT), real)
    data[:, 0] = random.uniform(-8, width + 8, count)
    data[:, 1] = random.uniform(-8, height + 8, count)
    data[:, 2], data[:, 3], data[:, 4] = yy / determinant, -xy / determinant, xx / determinant
    data[:, 5] = opacity
    data[:, 6:9] = random.random((count, 3))
    data[:, 9] = random.uniform(1, 100, count)
    data[:, 10], data[:, 11] = reach * np.sqrt(xx), reach * np.sqrt(yy)
    ids = np.arange(count, dtype=np.int64)
    return camera, Splats(ids.astype(np.int32), data, ids)


def best(function, repeats):
    """Result and least CPU time of a few calls, seconds summed over threads: it holds on a busy
    machine, and pairs over it is the rate of a core."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        times.append(time.process_time() - start)
    return result, min(times)


def measure(name, options):
    """Prints one line for a scene."""
    width, height, count, sigma = SCENES[name]
    camera, splats = synthetic(width, height, count, sigma, options.real)
    raster = Raster(options.real, options.threads)
    lists, listing = best(lambda: raster.tile_lists(splats, camera), options.repeats)
    partial, forward = best(
        lambda: raster.rasterize(splats, lists, camera, options.stop), options.repeats
    )
    gradient = np.full_like(partial.pixels, 1e-6)
    _, backward = best(
        lambda: raster.rasterize_backward(splats, lists, partial, gradient, camera, options.stop),
        options.repeats,
    )
    pairs, instances = partial.last.pairs, len(lists.items)
    walked = int(partial.last.steps.sum())
    rate = pairs / 1e9
    print(
        f"{name:7} {width}x{height} {count} splats {instances} instances {walked} walked "
        f"{pairs / 1e6:.1f} M pairs ({pairs / max(walked, 1):.1f} each) | "
        f"lists {1e3 * listing:.1f} ms, forward {1e3 * forward:.1f} ms "
        f"{rate / forward:.2f} G/s, backward {1e3 * backward:.1f} ms {rate / backward:.2f} G/s"
    )


def main():
    """Parses the options and measures every scene."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scene", choices=SCENES, action="append", help="default: all")
    parser.add_argument("--real", choices=("float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stop", type=float, default=1e-4)
    options = parser.parse_args()
    print(f"isa {isa()}, {options.real}, {options.threads} threads, stop {options.stop}")
    for name in options.scene or SCENES:
        measure(name, options)


if __name__ == "__main__":
    main()
