"""Renderer, exchange, loss and gradients against the plain reference of oracle.py.

The scene is chosen so that every clamp is at work somewhere (alpha at 0.99, colours at 0, slopes
of the Jacobian, Gaussians behind the camera) and none within reach of a difference step. The
cut-off alpha >= 1/255 is held where it is in the unmoved scene: what is compared is the gradient
between the jumps, which is what kernels can give.
"""

import numpy as np
import oracle
import pytest

from chain import BACKGROUND, NEAR, Run, self_exchange
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS

COUNT = 40
STEP = 1e-5
IMAGE = 1e-10  # design section 10
# differences of order STEP^2 = 1e-10 and roundings of 1e-16 / STEP = 1e-11 of a loss of 0.3
GRADIENT = 1e-6


def scene():
    """Gaussians, some opaque and some dark, and cameras outside, among them and past them."""
    gaussians = random_gaussians(COUNT, 12, size=0.2)
    gaussians.opacities[:6], gaussians.scales[:6] = 12, gaussians.scales[:6] + 1.8
    gaussians.sh0[6:9] = -3
    gaussians.scales[9:12] += 1.2  # wide enough to be seen from beyond the border
    gaussians.means[9:12] *= 1.8
    cameras = [
        look_at([4.2, -3.1, 1.3], [0, 0.2, 0], 24, 17, focal=21.0, offset=(1.5, -0.75)),
        look_at([0.4, 0.1, -0.3], [1.6, 0.5, 0.2], 24, 17, focal=13.0),
        look_at([5.0, 4.0, 0.5], [-1.5, 4.5, 0.2], 61, 9, focal=20.0),
    ]
    return gaussians, cameras, {i: random_photo(camera, i) for i, camera in enumerate(cameras)}


@pytest.fixture(scope="module")
def plain():
    gaussians, cameras, photos = scene()
    return oracle.Scene(gaussians, cameras, photos, NEAR, BACKGROUND, 0.2)


def chain(cells):
    """The product's side: one rank with so many cells."""
    pytest.importorskip("mpi4py")
    gaussians, cameras, photos = scene()
    exchange = self_exchange()
    tree = Tree.single() if cells == 1 else build(gaussians.means, None, cells, exchange)
    return Run(gaussians, tree, exchange, 1, 0, HostBackend(np.float64), 0.0), cameras, photos


@pytest.fixture(scope="module", params=[1, 5])
def computed(request):
    """(images, gradients by group, losses of the views) of a number of cells."""
    run, cameras, photos = chain(request.param)
    images = [run.image(camera) for camera in cameras]
    gradients, losses = run.gradients(cameras, photos, chunk=2)
    assert request.param == 1 or run.renderer.ghost_count > 5
    return images, gradients, losses


def slopes(plain, camera):
    """x/z, y/z of the Gaussians in front, over the limits of the Jacobian: (n, 2)."""
    t = plain.parameters["means"] @ camera.rotation.T + camera.translation
    t = t[t[:, 2] > NEAR]
    side = t[:, :2] / t[:, 2:] * [camera.fx, camera.fy] + [camera.cx, camera.cy]
    size = np.array([camera.width, camera.height])
    return np.abs(side - 0.5 * size) / (0.65 * size)


def test_scene_meets_every_clamp_and_stays_off_its_edges(plain):
    """Otherwise the gradient test would prove less, or compare across a kink."""
    clamped = opaque = 0
    for view, camera in enumerate(plain.cameras):
        depth = plain.parameters["means"] @ camera.rotation[2] + camera.translation[2]
        front = depth > NEAR
        assert np.diff(np.sort(depth)).min() > 2 * STEP and abs(depth - NEAR).min() > 2 * STEP
        ratio = slopes(plain, camera)
        drawn = plain.drawn[view][front].any((1, 2))
        clamped += (ratio[drawn] > 1).any(1).sum()
        assert abs(ratio - 1).min() > 10 * STEP
        t = plain.parameters["means"] @ camera.rotation.T + camera.translation
        chosen = {name: array[front] for name, array in plain.parameters.items()}
        raw = oracle.raw_alphas(chosen, camera, t[front], np.zeros((front.sum(), 2)))
        opaque += (raw > 0.99).sum()
        assert abs(raw - 0.99).min() > 1e-5
        difference = plain.image(view) - plain.photos[view] / 255
        assert abs(difference).min() > 1e-6
        if view == 1:
            assert (~front).sum() > 5
    empty = ~plain.drawn[2].any((0, 1))
    assert empty[48:].all()  # a tile in which no cell draws
    assert clamped >= 3 and opaque >= 10


def test_images(plain, computed):
    for view, image in enumerate(computed[0]):
        expected = plain.image(view)
        assert np.abs(image - expected).max() <= IMAGE * np.abs(expected).max()


def test_loss(plain, computed):
    for view, (l1, dissimilarity, error) in enumerate(computed[2]):
        image = plain.image(view)
        expected = oracle.loss_terms(image, plain.photos[view])
        assert (l1, dissimilarity) == pytest.approx(expected, rel=IMAGE)
        square = np.mean((np.clip(image, 0, 1) - plain.photos[view] / 255) ** 2)
        assert error == pytest.approx(square, rel=IMAGE)


def places_of(name):
    """Flat indices that are compared: up to 50, of shN two of each of its 45 values."""
    random = np.random.default_rng(0)
    if name == "shN":
        return np.concatenate([random.permutation(COUNT)[:2] * 45 + k for k in range(45)])
    return random.permutation(COUNT * GROUPS[name])[:50]


@pytest.fixture(scope="module")
def differences(plain):
    return {name: plain.gradient(name, places_of(name), STEP) for name in GROUPS}


@pytest.mark.parametrize("name", GROUPS)
def test_gradients(differences, computed, name):
    found, expected = computed[1][name].ravel()[places_of(name)], differences[name]
    assert np.linalg.norm(expected) > 0
    error = np.abs(found - expected)
    assert np.linalg.norm(error) <= GRADIENT * np.linalg.norm(expected)
    assert error.max() <= GRADIENT * np.abs(expected).max()


def test_densification_statistic(plain, computed):
    """Sum over views of |(W/2 du, H/2 dv)|, from each view's own loss."""
    expected = np.zeros(COUNT)
    for view, camera in enumerate(plain.cameras):
        half = np.array([camera.width, camera.height]) / 2
        expected += np.linalg.norm(half * plain.screen_gradient(view, STEP), axis=1)
    error = np.abs(computed[1]["norm"].ravel() - expected)
    assert error.max() <= GRADIENT * expected.max()
