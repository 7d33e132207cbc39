"""The city of Gaussians: the same rows in any share, and the statistics of the benchmarks."""

import numpy as np
import pytest

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.data.gaussian_city import PITCH, ROWS, cameras, gaussians
from splaxel_mpi.scene.gaussians import GROUPS

SIDE = 300.0


def same(first, second):
    """Whether two Gaussians agree in every bit."""
    arrays = [(getattr(first, name), getattr(second, name)) for name in (*GROUPS, "ids")]
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in arrays)


def test_any_cut_gives_the_same_rows():
    count = 2 * ROWS + 1234
    whole = gaussians(count, SIDE, seed=3)
    assert whole.means.dtype == np.float32 and whole.shN.shape == (count, 45)
    assert whole.ids.tolist() == list(range(count))
    assert same(gaussians(count, SIDE, seed=3, threads=3), whole)
    for bounds in ((0, 1, count), (0, ROWS - 5, ROWS + 7, 2 * ROWS, 2 * ROWS, count)):
        parts = [gaussians(count, SIDE, 3, start=a, stop=b) for a, b in zip(bounds, bounds[1:])]
        assert same(type(whole).concatenate(parts), whole)
    assert not np.array_equal(gaussians(count, SIDE, 4).means, whole.means)


def test_fewer_bands_are_the_first_of_more():
    full = gaussians(1000, SIDE)
    for bands in (0, 1, 2):
        some, width = gaussians(1000, SIDE, bands=bands), 3 * ((bands + 1) ** 2 - 1)
        assert np.array_equal(some.shN[:, :width], full.shN[:, :width])
        assert not some.shN[:, width:].any()
        assert np.array_equal(some.sh0, full.sh0) and np.array_equal(some.means, full.means)


def test_discs_lie_on_ground_facades_and_roofs():
    city = gaussians(200_000, SIDE)
    assert np.abs(city.means[:, :2]).max() < SIDE / 2 + 0.3
    # a disc is thin along its normal: of the quats, the columns of z turned
    w, x, y, z = city.quats.T.astype(float)
    normal = np.stack([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)], 1)
    axis = np.abs(normal).argmax(1)
    assert np.abs(normal).max(1) == pytest.approx(np.ones(len(city)), abs=1e-6)
    assert (city.scales[:, 2] < city.scales[:, :2].min(1)).mean() > 0.99
    # streets are free: nothing stands within 6 m of the middle of a street
    high = city.means[:, 2] > 2
    assert high.any()
    along = np.abs((city.means[high, :2] + SIDE / 2 + PITCH / 2) % PITCH - PITCH / 2)
    assert along.min() > 6.5
    ground = np.abs(city.means[:, 2]) < 0.2
    assert (axis[ground] == 2).mean() > 0.95 and np.bincount(axis).min() > 10_000


def test_distributions():
    """Logits N(1.5, 2), log-normal discs of 0.7 of the spacing, SH N(0, 0.03): of 200 k draws,
    means are within 0.01 of a standard deviation or so."""
    city = gaussians(200_000, SIDE)
    assert city.opacities.mean() == pytest.approx(1.5, abs=0.03)
    assert city.opacities.std() == pytest.approx(2.0, abs=0.02)
    relative = city.scales[:, :2] - city.scales[:, 2:] + np.log(0.08 / 0.7)
    assert relative.mean() == pytest.approx(0, abs=5e-3)
    assert relative.std() == pytest.approx(0.45, abs=5e-3)
    assert city.shN.std() == pytest.approx(0.03, rel=0.01)
    assert abs(city.shN.mean()) < 1e-4
    coarse = gaussians(50_000, SIDE)
    assert coarse.scales[0, 2] - city.scales[0, 2] == pytest.approx(np.log(2), abs=1e-5)


# median over 8 views of what gsplat 1.5.3 counts in 1 M Gaussians on 500 m: visible, and pairs of
# splat and tile, of which exact lists hold a part
@pytest.mark.parametrize("kind, visible, instances", [("street", 0.26e6, 2.0e6),
                                                      ("aerial", 0.14e6, 1.1e6)])
def test_views_see_what_those_of_the_benchmarks_see(kind, visible, instances):
    """Another city of the same kind seen from the same places: medians agree to 10 %."""
    backend = HostBackend(np.float32, 2)
    city, found = gaussians(1_000_000, 500.0, bands=0, threads=2), []
    for camera in cameras(kind, 8, 500.0):
        splats = backend.project(city, camera, 0, 0.1)
        found.append((len(splats), len(backend.tile_lists(splats, camera).items)))
    medians = np.median(found, axis=0)
    assert medians[0] == pytest.approx(visible, rel=0.1)
    assert 0.6 * instances < medians[1] < instances


def test_cameras():
    for kind, height in (("street", 1.7), ("aerial", 150.0)):
        views = cameras(kind, 6, 1000.0)
        assert [(v.width, v.height) for v in views] == [(1920, 1080)] * 6
        for view in views:
            assert view.center[2] == pytest.approx(height) and np.abs(view.center[:2]).max() < 500
            assert view.rotation @ view.rotation.T == pytest.approx(np.eye(3), abs=1e-12)
            assert view.rotation[1, 2] < 0  # the sky is up
            half = np.rad2deg(np.arctan(0.5 * view.width / view.fx))
            assert half == pytest.approx(45 if kind == "street" else 30)
        fewer = cameras(kind, 2, 1000.0)
        assert np.array_equal(fewer[1].translation, views[1].translation)
    heights = [view.center[2] for view in cameras("mixed", 4, SIDE, width=64, height=48)]
    assert heights == pytest.approx([1.7, 150, 1.7, 150])


def test_wrong_arguments():
    with pytest.raises(ValueError, match="side must be at least 148 m, got 100"):
        gaussians(10, 100.0)
    with pytest.raises(ValueError, match="kind must be one of street"):
        cameras("drone", 1, 500.0)
    with pytest.raises(ValueError, match="rows 5 to 11 of 10"):
        gaussians(10, 500.0, start=5, stop=11)
    assert len(gaussians(10, 500.0, start=7, stop=7)) == 0
