"""Kernels built ahead run as those that are compiled at the start do."""

import numpy as np
import pytest

from splaxel_mpi.backends import cuda_module, cuda_pixels
from splaxel_mpi.backends.cuda_pixels import CudaPixels
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.tools import kernels

pytestmark = pytest.mark.gpu


@pytest.fixture
def fresh():
    """Nothing loaded, before and after the test."""

    def forget():
        cuda_module.module.cache_clear()
        cuda_pixels.loss_kernel.cache_clear()
        cuda_module.use_prebuilt(None)

    forget()
    yield forget
    forget()


def results():
    import cupy

    class Cuda(CudaPixels):
        xp, real = cupy, np.dtype(np.float32)

    rng = np.random.default_rng(3)
    camera = Camera(100, 70, 1.0, 1.0, 0.0, 0.0, np.eye(3), np.zeros(3))
    image = cupy.asarray(rng.random((3, 80, 112), np.float32))
    photo = cupy.asarray(rng.integers(0, 256, (70, 100, 3), np.uint8))
    tiles = cupy.ones(camera.tile_count, np.uint8)
    gradient, sums = Cuda().loss(image, photo, camera, tiles, (0, 0, 100, 70), 0.2)
    pool = cupy.asarray(rng.random((6, 4, 256), np.float32))
    slots = cupy.asarray([[0, 5, 2], [-1, 3, 1]], np.int32)
    composed, _ = Cuda().compose(pool, slots, np.zeros(3))
    return gradient.get(), sums.get(), composed.get()


def test_binaries_give_what_the_compiler_at_hand_gives(fresh, tmp_path):
    import cupy

    want = results()
    fresh()
    arch = f"sm_{cupy.cuda.Device().compute_capability}"
    kernels.build([arch], tmp_path, lambda text: None)
    cuda_module.use_prebuilt(str(tmp_path))
    got = results()
    for one, other in zip(got, want):
        # another compiler may order additions otherwise: a few float32 roundings
        assert abs(one - other).max() <= 1e-5 * abs(other).max()


def test_binaries_that_are_not_there(fresh, tmp_path, monkeypatch):
    monkeypatch.setenv(cuda_module.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="no kernels of loss.cu for sm_"):
        results()
