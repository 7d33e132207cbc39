"""Projection, ghost routing and Adam on the GPU against the host backend, on seeded inputs.

Tolerances: GPU and host run the same float32 formulas without contraction; they differ by the
last bits of exp and log alone, relative 1e-6 after some tens of operations. Against float64 the
float32 host tests' own bounds hold.
"""

import dataclasses

import numpy as np
import pytest
import reference_projection as reference
from test_project import convert, zero_gradients
from test_reach import owners, random_splats, random_tree, turned_camera

from splaxel_mpi.backends.base import EXTENT_X, Splats
from splaxel_mpi.backends.cuda_adam import CudaAdam
from splaxel_mpi.backends.cuda_project import LEAST_ROOM, CudaProject
from splaxel_mpi.backends.host_pixels import HostPixels
from splaxel_mpi.backends.host_project import HostProject
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

pytestmark = pytest.mark.gpu

NEAR = 0.2
ROUNDING = 2e-6


class Host(HostProject, HostPixels):
    def __init__(self, real=np.float32):
        self.real, self.threads = np.dtype(real), 2


class Cuda(CudaProject, CudaAdam):
    def __init__(self):
        import cupy

        self.real, self.xp = np.dtype(np.float32), cupy


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def to_device(xp, value):
    """A dataclass of arrays with its arrays on the GPU."""
    arrays = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(**{name: None if array is None else xp.asarray(array)
                          for name, array in arrays.items()})


def to_host(value):
    arrays = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(**{name: None if array is None else array.get()
                          for name, array in arrays.items()})


def scene(rng, count, spread=2.5):
    return (convert(reference.random_gaussians(rng, count, spread=spread), np.float32),
            reference.random_camera(rng))


def assert_close(got, want, bound, name=""):
    """Largest difference, relative to the largest value of the column."""
    scale = np.maximum(abs(want).max(axis=0, initial=0), 1e-30)
    assert (abs(got - want).max(axis=0, initial=0) <= bound * scale).all(), name


def assert_splats_close(got, want, bound):
    """As assert_close; the conic's entries together, since B is a difference of products."""
    for columns in ([0, 1, 5, 6, 7, 8, 9, 10, 11], [2, 3, 4]):
        mine, theirs = got[:, columns], want[:, columns]
        if columns == [2, 3, 4]:
            mine, theirs = mine.reshape(-1, 1), theirs.reshape(-1, 1)
        assert_close(mine, theirs, bound)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 31, 128, 2049, 20_011])
def test_projects_as_the_host_does(cuda, rng, degree, count):
    gaussians, camera = scene(rng, count)
    want = Host().project(gaussians, camera, degree, NEAR)
    got = to_host(cuda.project(to_device(cuda.xp, gaussians), camera, degree, NEAR))
    np.testing.assert_array_equal(got.rows, want.rows)
    np.testing.assert_array_equal(got.ids, want.ids)
    assert got.rows.dtype == np.int32 and got.ids.dtype == np.int64
    assert got.data.shape == want.data.shape and got.data.dtype == np.float32
    assert_splats_close(got.data, want.data, ROUNDING)


def test_projection_follows_float64(cuda, rng):
    gaussians, camera = scene(rng, 500, spread=1.0)
    got = to_host(cuda.project(to_device(cuda.xp, gaussians), camera, 3, NEAR))
    want = Host(np.float64).project(convert(gaussians, np.float64), camera, 3, NEAR)
    np.testing.assert_array_equal(got.rows, want.rows)
    assert_splats_close(got.data, want.data, 1e-5)


def test_positions_far_from_the_origin_keep_their_digits(cuda, rng):
    """A city has coordinates of kilometres: differences to the camera are taken in double."""
    gaussians, camera = scene(rng, 300, spread=1.0)
    shift = np.array([31250.0, -8192.5, 512.25])
    gaussians.means[:] = (gaussians.means + shift).astype(np.float32)
    moved = dataclasses.replace(camera, translation=camera.translation - camera.rotation @ shift)
    want = Host().project(gaussians, moved, 3, NEAR)
    got = to_host(cuda.project(to_device(cuda.xp, gaussians), moved, 3, NEAR))
    np.testing.assert_array_equal(got.rows, want.rows)
    assert_splats_close(got.data, want.data, ROUNDING)


def test_more_visible_than_room_and_repeats_are_the_same_bits(cuda, rng):
    gaussians, camera = scene(rng, 2 * LEAST_ROOM + 77, spread=0.5)
    device = to_device(cuda.xp, gaussians)
    first = to_host(cuda.project(device, camera, 1, NEAR))
    assert len(first) > LEAST_ROOM * 5 // 4
    for _ in range(3):
        again = to_host(cuda.project(device, camera, 1, NEAR))
        np.testing.assert_array_equal(again.rows, first.rows)
        np.testing.assert_array_equal(again.data, first.data)
    want = Host().project(gaussians, camera, 1, NEAR)
    np.testing.assert_array_equal(first.rows, want.rows)


def degenerate_scene():
    """Rows that must vanish, then one good and four extreme ones that must stay."""
    base = Gaussians.empty(1, np.float32)
    base.means[:] = [0.1, 0.2, 3]
    base.scales[:] = -2
    base.quats[:] = [0.3, 0.4, -0.5, 0.6]
    changes = [
        ("means", 0, np.nan), ("means", 2, np.inf), ("scales", 1, np.nan), ("scales", 0, 1e4),
        ("scales", 2, -np.inf), ("quats", 1, np.nan), ("quats", slice(None), 0),
        ("opacities", 0, np.nan), ("opacities", 0, np.inf), ("opacities", 0, -6),
        ("sh0", 1, np.nan), ("shN", 44, np.inf), ("means", 2, 0), ("means", 2, -3),
        ("means", 0, 100),
    ]
    out = Gaussians.concatenate([base] * (len(changes) + 5))
    for row, (name, column, value) in enumerate(changes):
        getattr(out, name)[row, column] = value
    out.scales[-4:] = [[12, 12, 12], [3, -20, -20], [-40, -40, -40], [8, -8, 0]]
    camera = Camera(96, 64, 90.0, 88.0, 50.0, 30.0, np.eye(3), np.zeros(3))
    return out, camera, np.arange(len(changes), len(changes) + 5)


def test_degenerate_gaussians(cuda):
    gaussians, camera, visible = degenerate_scene()
    device = to_device(cuda.xp, gaussians)
    splats = cuda.project(device, camera, 3, NEAR)
    got = to_host(splats)
    want = Host().project(gaussians, camera, 3, NEAR)
    np.testing.assert_array_equal(got.rows, visible)
    assert_splats_close(got.data, want.data, ROUNDING)
    out = to_device(cuda.xp, zero_gradients(gaussians))
    cuda.project_backward(device, camera, 3, splats, cuda.xp.ones((5, 9), np.float32), out)
    for name in GROUPS:
        assert np.isfinite(getattr(out, name).get()).all(), name


def test_nothing_to_project(cuda, rng):
    camera = reference.random_camera(rng)
    empty = to_device(cuda.xp, Gaussians.empty(0, np.float32))
    splats = cuda.project(empty, camera, 3, NEAR)
    assert len(splats) == 0 and splats.data.shape == (0, 12)
    out = to_device(cuda.xp, zero_gradients(Gaussians.empty(0, np.float32)))
    cuda.project_backward(empty, camera, 3, splats, cuda.xp.zeros((0, 9), np.float32), out)
    behind, _ = scene(rng, 300)
    behind.means[:] = camera.center - 50 * camera.rotation[2]
    assert len(cuda.project(to_device(cuda.xp, behind), camera, 3, NEAR)) == 0


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, 130, 5003])
def test_gradients_and_statistics_as_on_the_host(cuda, rng, degree, count):
    """Two views added up, some splats without a gradient, some without one of colour."""
    gaussians, _ = scene(rng, count, spread=1.0)
    device = to_device(cuda.xp, gaussians)
    want = zero_gradients(gaussians)
    wide = convert(gaussians, np.float64)
    exact = zero_gradients(wide)
    got = to_device(cuda.xp, zero_gradients(gaussians))
    for _ in range(2):
        camera = reference.random_camera(rng)
        splats = Host().project(gaussians, camera, degree, NEAR)
        gradient = rng.normal(size=(len(splats), 9)).astype(np.float32)
        gradient[::3] = 0
        gradient[1::5, 6:] = 0
        Host().project_backward(gaussians, camera, degree, splats, gradient, want)
        double = Splats(splats.rows, splats.data.astype(np.float64), splats.ids)
        Host(np.float64).project_backward(wide, camera, degree, double,
                                          gradient.astype(np.float64), exact)
        cuda.project_backward(device, camera, degree, to_device(cuda.xp, splats),
                              cuda.xp.asarray(gradient), got)
    got = to_host(got)
    np.testing.assert_array_equal(got.seen, want.seen)
    np.testing.assert_array_equal(got.count, want.count)
    np.testing.assert_allclose(got.norm, want.norm, rtol=1e-6)
    for name in GROUPS:
        values, host, double = (getattr(x, name) for x in (got, want, exact))
        # a difference of exp in its last bit passes through squares and sums
        assert_close(values, host, 1e-5, name)
        error = np.linalg.norm(values - double)
        assert error <= 1e-4 * np.linalg.norm(double), name
        assert not values[want.seen == 0].any(), name
    assert not got.shN[:, 3 * ((degree + 1) ** 2 - 1):].any()


def test_statistics_are_optional_and_ghosts_are_passed_over(cuda, rng):
    gaussians, camera = scene(rng, 200, spread=1.0)
    device = to_device(cuda.xp, gaussians)
    splats = cuda.project(device, camera, 3, NEAR)
    splats.rows[:5] = -1
    splats.rows[5] = len(gaussians)
    out = to_device(cuda.xp, zero_gradients(gaussians))
    out.norm = out.count = None
    cuda.project_backward(device, camera, 3, splats,
                          cuda.xp.ones((len(splats), 9), np.float32), out)
    seen = np.zeros(200, np.uint8)
    seen[splats.rows[6:].get()] = 1
    np.testing.assert_array_equal(out.seen.get(), seen)


@pytest.mark.parametrize("kind", ["random", "straight"])
def test_reaches_the_cells_that_the_host_finds(cuda, kind):
    rng = np.random.default_rng(3)
    pairs = 0
    for cells, count in ((1, 40), (2, 63), (3, 64), (21, 300), (64, 2100), (300, 500)):
        camera = turned_camera(rng, kind)
        tree = random_tree(rng, cells, camera.center) if cells > 1 else Tree.single()
        splats = random_splats(rng, camera, count, np.float32)
        own = owners(tree, camera, splats)
        own[::7] = rng.integers(0, cells, len(own[::7]))
        want = Host().reach(splats, own, camera, tree)
        for _ in range(2):  # the second time the tree is there already
            got = cuda.reach(to_device(cuda.xp, splats), cuda.xp.asarray(own), camera, tree)
            for mine, theirs in zip(got, want):
                np.testing.assert_array_equal(mine.get(), theirs)
                assert mine.dtype == np.int32
        pairs += len(want[0])
    assert pairs > 1000


def test_reach_with_more_pairs_than_room(cuda):
    rng = np.random.default_rng(4)
    camera, tree = turned_camera(rng, "random"), random_tree(rng, 200)
    splats = random_splats(rng, camera, 2500, np.float32)
    splats.data[:, EXTENT_X:] = 40  # boxes as large as the image reach many cells
    own = np.zeros(2500, np.int32)
    want = Host().reach(splats, own, camera, tree)
    assert np.bincount(want[0]).max() > 8
    repeat = LEAST_ROOM // len(want[0]) + 1
    many = Splats(*(np.concatenate([array] * repeat)
                    for array in (splats.rows, splats.data, splats.ids)))
    index, cell = cuda.reach(to_device(cuda.xp, many), cuda.xp.zeros(len(many), np.int32), camera,
                             tree)
    assert len(index) > LEAST_ROOM
    np.testing.assert_array_equal(cell.get(), np.concatenate([want[1]] * repeat))
    np.testing.assert_array_equal(
        index.get(), np.concatenate([want[0] + 2500 * k for k in range(repeat)]))


@pytest.mark.parametrize("rows", [1, 5, 1366, 4099])
@pytest.mark.parametrize("selective", [False, True])
def test_adam_as_on_the_host(cuda, rng, rows, selective):
    """Group by group, and all six in one launch, with gradients cleared where they were used."""
    seen = (rng.random(rows) < 0.6).astype(np.uint8) if selective else None
    rates = dict(zip(GROUPS, (1.6e-4, 5e-3, 1e-3, 0.05, 2.5e-3, 1.25e-4)))
    values = {name: [rng.normal(size=(rows, width)).astype(np.float32) for _ in range(2)]
              + [rng.normal(0, 0.1, (rows, width)).astype(np.float32),
                 rng.random((rows, width)).astype(np.float32)]
              for name, width in GROUPS.items()}
    device = {name: [cuda.xp.asarray(a) for a in arrays] for name, arrays in values.items()}
    one_launch = {name: [cuda.xp.asarray(a) for a in arrays] for name, arrays in values.items()}
    common = ((0.81, 0.998), 1e-15, 7, 0.25)
    on_device = None if seen is None else cuda.xp.asarray(seen)
    cuda.adam_groups([(*arrays, rates[name]) for name, arrays in one_launch.items()], on_device,
                     *common, clear=True)
    for name, arrays in values.items():
        gradient = arrays[1].copy()
        Host().adam_groups([(*arrays, rates[name])], seen, *common)
        cuda.adam_groups([(*device[name], rates[name])], on_device, *common)
        np.testing.assert_array_equal(device[name][1].get(), gradient)
        gradient[slice(None) if seen is None else seen == 1] = 0
        np.testing.assert_array_equal(one_launch[name][1].get(), gradient)
        # root and quotient round alike on both, and no sum is longer than two terms
        for at in (0, 2, 3):
            np.testing.assert_allclose(device[name][at].get(), arrays[at], rtol=ROUNDING,
                                       atol=1e-9)
            np.testing.assert_array_equal(one_launch[name][at].get(), device[name][at].get())


@pytest.mark.parametrize("place", [0, 2, 3])
def test_adam_flags_what_is_not_finite(cuda, place):
    """Of the group and of rows that are updated."""
    seen = cuda.xp.ones(1000, np.uint8)
    seen[5] = 0
    groups = [[cuda.xp.ones((1000, width), np.float32) for _ in range(4)] + [0.1]
              for width in (3, 45)]
    flags = cuda.xp.zeros(2, np.int32)
    rules = (seen, (0.9, 0.99), 1e-8, 3, 1.0)
    groups[1][place][5, 7] = np.inf
    cuda.adam_groups(groups, *rules, broken=flags)
    assert flags.get().tolist() == [0, 0]
    groups[1][place][999, 44] = np.inf
    cuda.adam_groups(groups, *rules, broken=flags)
    assert flags.get().tolist() == [0, 1]


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_fused_step_equals_gradient_then_adam(cuda, rng, degree):
    """The fused kernel against the two it replaces: the same operations, nearly the same bits."""
    gaussians, camera = scene(rng, 3001, spread=1.0)
    moments = [{name: rng.normal(0, 0.1, array.shape).astype(np.float32) ** power
                for name, array in gaussians.groups()} for power in (1, 2)]
    rates = dict(zip(GROUPS, (1.6e-4, 5e-3, 1e-3, 0.05, 2.5e-3, 1.25e-4)))
    common = ((0.9, 0.999), 1e-15, 3, 0.5)
    splats = cuda.project(to_device(cuda.xp, gaussians), camera, degree, NEAR)
    gradient = rng.normal(size=(len(splats), 9)).astype(np.float32)
    gradient[::3] = 0
    gradient[1::5, 6:] = 0
    gradient = cuda.xp.asarray(gradient)
    results = []
    for fused in (False, True):
        device = to_device(cuda.xp, gaussians)
        first, second = ({name: cuda.xp.asarray(a) for name, a in m.items()} for m in moments)
        out = to_device(cuda.xp, zero_gradients(gaussians))
        if fused:
            cuda.project_backward_adam(device, camera, degree, splats, gradient, out, first,
                                       second, rates, *common)
        else:
            cuda.project_backward(device, camera, degree, splats, gradient, out)
            cuda.adam_groups([(array, getattr(out, name), first[name], second[name], rates[name])
                              for name, array in device.groups()], out.seen, *common)
        results.append((device, first, second, out))
    (want, *want_moments, want_out), (got, *got_moments, got_out) = results
    for name in ("seen", "norm", "count"):
        np.testing.assert_array_equal(getattr(got_out, name).get(), getattr(want_out, name).get())
    for name in GROUPS:
        values = [(getattr(got, name), getattr(want, name))]
        values += [(mine[name], theirs[name]) for mine, theirs in zip(got_moments, want_moments)]
        for mine, theirs in values:
            assert_close(mine.get(), theirs.get(), ROUNDING, name)
        unseen = want_out.seen.get() == 0
        np.testing.assert_array_equal(getattr(got, name).get()[unseen],
                                      getattr(gaussians, name)[unseen])
        assert (getattr(got, name).get() != getattr(gaussians, name)).any()


def test_wrong_arguments(cuda, rng):
    gaussians, camera = scene(rng, 8)
    device = to_device(cuda.xp, gaussians)
    with pytest.raises(ValueError, match="degree must be 0 to 3"):
        cuda.project(device, camera, 4, NEAR)
    with pytest.raises(ValueError, match="near plane"):
        cuda.project(device, camera, 3, -1.0)
    with pytest.raises(ValueError, match="means must be .*float32"):
        cuda.project(to_device(cuda.xp, convert(gaussians, np.float64)), camera, 3, NEAR)
    splats = cuda.project(device, camera, 3, NEAR)
    with pytest.raises(ValueError, match="gradient must be"):
        cuda.project_backward(device, camera, 3, splats,
                              cuda.xp.zeros((len(splats) + 1, 9), np.float32),
                              to_device(cuda.xp, zero_gradients(gaussians)))
    count = 40  # a chain: node k holds cell k and the rest
    chain = Tree(np.zeros(count, np.int32), np.arange(count, dtype=np.float64),
                 -1 - np.arange(count, dtype=np.int32),
                 np.append(np.arange(1, count), -1 - count).astype(np.int32))
    with pytest.raises(ValueError, match="deeper than 31 levels"):
        cuda.reach(splats, cuda.xp.zeros(len(splats), np.int32), camera, chain)
    with pytest.raises(ValueError, match="step must be 1"):
        cuda.adam_groups([(*[device.means] * 4, 0.1)], None, (0.9, 0.99), 1e-15, 0, 1.0)

