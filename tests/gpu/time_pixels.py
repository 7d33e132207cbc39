"""Times composition, loss and packing by CUDA events: python tests/gpu/time_pixels.py

Medians of 30 calls after a warm-up. Calls wait in the stream behind a kernel that spins, so
that the launch from Python does not count; pack waits for the device inside, and counts it.
GB/s count the bytes that a stage must read and write once.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import cupy  # noqa: E402

from splaxel_mpi.backends import cuda_pixels  # noqa: E402
from splaxel_mpi.backends.cuda_pixels import CudaPixels  # noqa: E402
from splaxel_mpi.scene.camera import Camera  # noqa: E402

CALLS = 30


class Cuda(CudaPixels):
    xp, real = cupy, np.dtype(np.float32)


SPIN = cupy.RawKernel("""
extern "C" __global__ void spin(long long cycles) {
    for (long long end = clock64() + cycles; clock64() < end;) {}
}""", "spin")


def median_ms(function):
    times = []
    for _ in range(CALLS + 3):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        SPIN((1,), (1,), (np.int64(2_000_000),))  # about a millisecond
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end))
    return float(np.median(times[3:]))


def report(name, moved, function):
    ms = median_ms(function)
    print(f"{name:44s} {ms:8.4f} ms {moved / ms / 1e6:8.0f} GB/s", flush=True)


def time_loss(cuda, width, height, share=1.0):
    camera = Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))
    tiles_x, tiles_y = camera.tiles
    rng = cupy.random.default_rng(5)
    image = rng.random((3, 16 * tiles_y, 16 * tiles_x), dtype=np.float32)
    photo = (255 * rng.random((height, width, 3), dtype=np.float32)).astype(np.uint8)
    # a block of tiles, as a cell's region of a view is
    tiles = cupy.zeros((tiles_y, tiles_x), np.uint8)
    tiles[: int(np.ceil(share * tiles_y))] = 1
    tiles, rect = tiles.ravel(), (0, 0, width, height)
    moved = (share * 3 * 5 + 3 * 4) * width * height if share < 1 else 27 * width * height
    report(f"loss {width} x {height}, {share:.0%} supervised", moved,
           lambda: cuda.loss(image, photo, camera, tiles, rect, 0.2))


def time_compose(cuda, tiles, layers):
    rng = cupy.random.default_rng(5)
    pool = rng.random((tiles * layers, 4, 256), dtype=np.float32)
    slots = cupy.arange(tiles * layers, dtype=np.int32).reshape(tiles, layers)
    gradient = rng.random((tiles, 3, 256), dtype=np.float32)
    background = np.zeros(3, np.float32)
    tile = 1024 * tiles
    report(f"compose {tiles} tiles, {layers} layers", tile * 4 * (layers + 1),
           lambda: cuda.compose(pool, slots, background))
    report(f"compose_backward {tiles} tiles, {layers} layers", tile * (3 + 8 * layers),
           lambda: cuda.compose_backward(pool, slots, background, gradient, slots, len(pool)))


def time_pack(cuda, width, height):
    camera = Camera(width, height, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))
    tiles = cupy.arange(camera.tile_count, dtype=np.int32)
    pixels = cupy.ones((len(tiles), 4, 256), np.float32)
    stream = cuda.pack(pixels, tiles, tiles, camera)
    report(f"pack {width} x {height}", 2 * stream.nbytes,
           lambda: cuda.pack(pixels, tiles, tiles, camera))
    report(f"unpack {width} x {height}", 2 * stream.nbytes,
           lambda: cuda.unpack(stream, tiles, camera, pixels))


def main():
    cuda = Cuda()
    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    print(name, "driver", cupy.cuda.runtime.driverGetVersion())
    kernel, width, shared = cuda_pixels.loss_kernel(device.id)
    print(f"loss: {kernel.num_regs} registers, {shared} + {kernel.shared_size_bytes} bytes of "
          f"shared memory, {kernel.local_size_bytes} of local, regions {width} wide")
    for size in [(1920, 1080), (3840, 2160), (960, 540)]:
        time_loss(cuda, *size)
    time_loss(cuda, 1920, 1080, 0.25)
    widths = cuda_pixels.LOSS_WIDTHS
    cuda_pixels.LOSS_WIDTHS = widths[1:]
    cuda_pixels.loss_kernel.cache_clear()
    print("regions 32 wide:")
    time_loss(cuda, 1920, 1080)
    cuda_pixels.LOSS_WIDTHS = widths
    cuda_pixels.loss_kernel.cache_clear()
    for layers in (1, 2, 8):
        time_compose(cuda, 8160, layers)
    for size in [(1920, 1080), (1920, 1088)]:
        time_pack(cuda, *size)


if __name__ == "__main__":
    main()
