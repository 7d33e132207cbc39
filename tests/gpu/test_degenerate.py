"""The CUDA backend against the host's on scenes at the edge of what there is, whole views."""

import numpy as np
import pytest
import splats as make
from scenes import look_at, random_gaussians
from test_reach import owners, random_tree

from splaxel_mpi.backends.base import EXTENT_X, Splats
from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

from . import parity
from .parity import NEAR, View, check, on_device

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

FAINT = float(np.log(1 / 254))  # logit of 1/255


def outside_camera(width, height):
    return look_at([3.5, -3.2, 1.0], [0, 0, 0], width, height, focal=0.9 * max(width, height, 20))


def mixed_scene():
    """(Gaussians, (800,) bool, which are good): 400 good ones among as many copies that are
    broken, extreme or out of sight."""
    good = random_gaussians(400, 3, np.float32)
    bad = good.take(np.arange(400))
    random = np.random.default_rng(8)
    changes = [
        ("means", 0, np.nan), ("means", 1, np.inf), ("means", 2, -np.inf),
        ("scales", 0, np.nan), ("scales", 1, 200.0), ("scales", 2, -np.inf),
        ("scales", slice(None), -60.0), ("scales", slice(None), 3.0), ("scales", 0, 5.0),
        ("quats", slice(None), 0.0), ("quats", 2, np.nan), ("quats", slice(None), 1e-20),
        ("opacities", 0, FAINT - 0.01), ("opacities", 0, FAINT + 0.01), ("opacities", 0, -90.0),
        ("opacities", 0, 40.0), ("opacities", 0, np.nan), ("sh0", 1, np.inf),
        ("shN", 30, np.nan), ("sh0", slice(None), -50.0), ("means", slice(None), 1e30),
        ("means", 0, 300.0),
    ]
    for row in range(400):
        name, column, value = changes[row % len(changes)]
        getattr(bad, name)[row, column] = value
    order = random.permutation(800)
    out = Gaussians.concatenate([good, bad]).take(order)
    out.ids[:] = np.arange(800)
    return out, order < 400


# a pixel, one clipped tile and more, wider than a block of any kernel, a photograph
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (4097, 35), (35, 4097), (449, 300)])
@pytest.mark.parametrize("stop", [0.0, 1e-4])
def test_random_scenes_of_odd_sizes(size, stop):
    bars = {}
    if stop:  # a rounding decides which splat takes T below stop: what is behind weighs as much
        bars = dict(image=parity.IMAGE + 2 * stop, atomic=2e-3, deterministic=2e-3)
    check(View.of(random_gaussians(600, sum(size), np.float32), outside_camera(*size)), stop,
          **bars)


def test_broken_and_extreme_gaussians_among_good_ones():
    (gaussians, good), camera = mixed_scene(), outside_camera(150, 90)
    host = HostBackend(np.float32, 2)
    splats = host.project(gaussians, camera, 3, NEAR)
    assert 300 < len(splats) < 750
    found = CudaBackend().project(on_device(gaussians), camera, 3, NEAR)
    np.testing.assert_array_equal(found.rows.get(), splats.rows)
    # gradients of a footprint of thousands of pixels cancel: float32 leaves them three digits
    # or less, on the host as well. They must be finite, and leave those of the others alone.
    check(View.of(gaussians, camera, rows=good))


def test_training_step_leaves_broken_gaussians_alone():
    """A fused step on the mixed scene: what is not visible keeps its bits, the rest stays finite
    and equals the step of the host."""
    import cupy

    (gaussians, _), camera = mixed_scene(), outside_camera(150, 90)
    rates = dict.fromkeys(GROUPS, 1e-3)
    backend, device = CudaBackend(), on_device(gaussians)
    splats = backend.project(device, camera, 3, NEAR)
    rows = cupy.asarray(np.random.default_rng(1).normal(size=(len(splats), 9)).astype(np.float32))
    first, second = ({name: cupy.zeros_like(array) for name, array in device.groups()}
                     for _ in range(2))
    out = on_device(parity.zero_gradients(gaussians))
    backend.project_backward_adam(device, camera, 3, splats, rows, out, first, second, rates,
                                  (0.9, 0.999), 1e-8, 1, 1.0)
    seen = np.zeros(len(gaussians), bool)
    seen[splats.rows.get()] = True
    np.testing.assert_array_equal(out.seen.get() == 1, seen)
    for name, array in device.groups():
        before, after = getattr(gaussians, name), array.get()
        np.testing.assert_array_equal(after[~seen], before[~seen])
        assert np.isfinite(after[seen]).all()
        # the first step of Adam moves by the rate, where there is a gradient; values of 60
        # are rounded to some 4e-6
        assert np.abs(after[seen] - before[seen]).max() == pytest.approx(1e-3, rel=1e-2), name


def nothing(kind):
    """Scenes of which nothing is drawn."""
    gaussians = random_gaussians(300, 5, np.float32)
    if kind == "behind":
        gaussians.means[:] += np.float32([14, -12.8, 4])
    elif kind == "beside":
        gaussians.means[:] += np.float32([120, 130, 0])
    elif kind == "faint":
        gaussians.opacities[:] = FAINT - 0.01
    elif kind == "none":
        gaussians = gaussians.take(slice(0, 0))
    return gaussians


@pytest.mark.parametrize("kind", ["behind", "beside", "faint", "none"])
def test_nothing_visible(kind):
    gaussians, camera = nothing(kind), outside_camera(60, 45)
    backend = CudaBackend()
    assert len(HostBackend(np.float32, 1).project(gaussians, camera, 3, NEAR)) == 0
    splats = backend.project(on_device(gaussians), camera, 3, NEAR)
    lists = backend.tile_lists(splats, camera)
    assert len(splats) == len(lists.tiles) == len(lists.items) == 0
    view = View.of(gaussians, camera)
    image, gradients = parity.device_results(view, 0.0, False)
    assert not image[..., :3].any() and (image[..., 3] == 1).all()
    assert not any(values.any() for values in gradients.values())


def splat_results(backend, splats, lists, camera, near):
    """(tiles, pixels, splat gradient) of a backend on the host, zeros where a rounding decides
    whether a splat is drawn: near, (height, width) bool."""
    partial = backend.rasterize(splats, lists, camera, 0.0)
    tiles, pixels = map(backend.to_host, (lists.tiles, partial.pixels))
    keep = parity.reference.to_tiles(~near[..., None], tiles, camera)
    seeds = np.random.default_rng(3).standard_normal(pixels.shape) * keep
    gradient = backend.to_device(seeds.astype(backend.real))
    rows = backend.rasterize_backward(splats, lists, partial, gradient, camera, 0.0)
    return tiles, pixels * keep, backend.to_host(rows)


def check_splats(splats, camera):
    """Forward to 1e-5; backward, in the order of the lists, to 1e-5; with atomics to 1e-3."""
    near = make.cut_off_pixels(splats, camera)
    # in float64 a tile more or less would be held, by a splat that just touches its corner
    lists = HostBackend(np.float32, 2).tile_lists(splats, camera)
    tiles, pixels, rows = splat_results(HostBackend(np.float64, 2), parity.double(splats), lists,
                                        camera, near)
    for fixed, bar in ((False, parity.ATOMIC), (True, parity.DETERMINISTIC)):
        backend = CudaBackend()
        backend.deterministic = fixed
        device = on_device(splats)
        found = splat_results(backend, device, backend.tile_lists(device, camera), camera, near)
        np.testing.assert_array_equal(found[0], tiles)
        assert np.abs(found[1] - pixels).max() <= parity.IMAGE * np.abs(pixels).max()
        error = np.linalg.norm(found[2] - rows, axis=0) / np.linalg.norm(rows, axis=0)
        assert error.max() <= bar, (fixed, error)
    return tiles


def test_a_hundred_thousand_splats_on_one_tile():
    """Some 2000 of them at every pixel, so that T is multiplied and un-multiplied as often."""
    random = np.random.default_rng(4)
    rows = random.uniform([0, 0, 0.55, 0.55, 0, 0.005, 1], [16, 16, 0.8, 0.8, 3.1, 0.012, 50],
                          (100_000, 7))
    assert len(check_splats(make.make_splats(rows, np.float32), make.make_camera(16, 16))) == 1


def test_more_tiles_than_16_bits_number():
    """Keys of 32 bits through lists, forward and backward."""
    camera = make.make_camera(4112, 4112)
    tiles = check_splats(make.random_splats(camera, 3000, np.float32, sigma=(0.6, 20)), camera)
    assert tiles.max() >= 1 << 16


@pytest.mark.parametrize("cells", [1, 7])
def test_reach_of_degenerate_splats(cells):
    """Boxes without area, beyond the image, as large as can be, and numbers that are none."""
    import cupy

    random, camera = np.random.default_rng(2), Camera(
        80, 60, 70.0, 72.0, 41.0, 28.0, np.eye(3), np.zeros(3))
    tree = random_tree(random, cells, camera.center) if cells > 1 else Tree.single()
    splats = make.random_splats(camera, 400, np.float32)
    own = owners(tree, camera, splats)
    splats.data[:50, EXTENT_X:] = 0
    splats.data[50:100, 0] = 1e6
    splats.data[100:150, EXTENT_X:] = 3e38
    splats.data[150:200, EXTENT_X] = np.nan
    splats.data[200:250, 9] = 1e-30
    splats.data[250:300, 9] = 3e38
    want = HostBackend(np.float32, 1).reach(splats, own, camera, tree)
    found = CudaBackend().reach(on_device(splats), cupy.asarray(own), camera, tree)
    for mine, theirs in zip(found, want):
        np.testing.assert_array_equal(mine.get(), theirs)

