"""The rendering stages on a small scene, and what it means that two ways agree."""

from types import SimpleNamespace

import numpy as np
from regrouped import regroup

from scenes import axis_camera, look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.compose import make_compositor
from splaxel_mpi.compose.boundary import make_boundary
from splaxel_mpi.partition.content import ContentBoxes
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import forward_backward
from splaxel_mpi.visibility.demand import whole_image

NEAR = 0.05
BACKGROUND = [0.1, 0.3, 0.2]
# design section 10: (image, gradients) as max|x - y| / max|y| and relative L2 a group
EXACT = {np.float64: (1e-10, 1e-10), np.float32: (1e-5, 1e-4)}
DEFAULT_STOP = (1e-4, 2e-3)  # image absolute
# colour rounded to float16 is wrong by up to 2^-11 of itself, 5e-4, in every layer and on the way
# back; where it turns the sign of x - y in L1 a pixel counts whole in the gradient
HALF = (1e-3, 1e-2)


def exchange_settings(strategy="overlap", precision="float32"):
    """The section exchange of a configuration."""
    return SimpleNamespace(strategy=strategy, precision=precision)


class Run:
    """The rendering stages over a communicator, with a tree of so many cells."""

    def __init__(
        self, gaussians, tree, exchange, ranks, rank, backend, stop, boundary="exact",
        saturation=None, settings=exchange_settings(),
    ):
        self.exchange, self.backend = exchange, backend
        mine = gaussians.take(slice(rank, None, ranks))
        mine, _, offsets = regroup(mine, {}, tree, exchange)
        self.gaussians = mine.map(backend.to_device)
        layout = Layout(tree, rank, ranks, offsets)
        compositor = make_compositor(settings, backend, exchange, layout, BACKGROUND)
        self.boxes = ContentBoxes(0.02)
        self.boxes.update(self.gaussians, offsets, tree, exchange)
        boundary = make_boundary(boundary, self.boxes, NEAR)
        self.renderer = Renderer(
            self.backend, exchange, layout, compositor, NEAR, stop, boundary, saturation
        )

    def image(self, camera, index=None):
        """Whole image (height, width, 3) on rank 0, None elsewhere. index: of the view whose
        masks count."""
        indices = None if index is None else [index]
        _, (view,) = self.renderer.draw(self.gaussians, [camera], 3, [whole_image(0)], indices)
        if len(view.tiles) == 0:
            return None
        tiles_x, tiles_y = camera.tiles
        image = self.backend.to_host(view.image)
        grid = image.reshape(tiles_y, tiles_x, 3, 16, 16).transpose(2, 0, 3, 1, 4)
        padded = grid.reshape(3, tiles_y * 16, tiles_x * 16)
        return padded[:, : camera.height, : camera.width].transpose(1, 2, 0)

    def gradients(self, cameras, photos, chunk, indices=None, in_flight=2):
        """Gradients of a batch in the order of ids, and the summed losses, on every rank.
        indices: of the views, None for 0, 1, ...; chunk, in_flight: as in the section train."""
        state = State.fresh(self.gaussians, None)
        out = state.gradients()
        indices = range(len(cameras)) if indices is None else indices
        views = [SimpleNamespace(camera=c, index=i) for i, c in zip(indices, cameras)]
        settings = SimpleNamespace(chunk=chunk, in_flight=in_flight, ssim_weight=0.2)
        shares = forward_backward(
            self.renderer, self.gaussians, views, photos, 3, settings, out
        )
        losses = self.exchange.allreduce("test", self.backend.to_host(shares))
        host = self.backend.to_host
        ids, _ = self.exchange.allgatherv("test", host(self.gaussians.ids))
        order = np.argsort(ids)
        gathered = {}
        for name in [*GROUPS, "norm"]:
            flat, _ = self.exchange.allgatherv("test", host(getattr(out, name)).ravel())
            gathered[name] = flat.reshape(len(ids), -1)[order]
        return gathered, losses


def cameras_for(tree):
    """Odd sizes; outside, inside a cell, on a face, along a face, and away from the scene."""
    out = [
        look_at([3.5, -3.2, 1.0], [0, 0, 0], 97, 61, offset=(5.5, -3.25)),
        look_at([0.3, 0.2, -0.4], [1.5, 0.4, 0.3], 49, 33),
        look_at([-5, 0.5, 0], [-9, 0.5, 0.2], 33, 17),  # sees nothing
    ]
    face = np.array([0.2, -0.1, -3.0])
    if len(tree.axis):
        face[tree.axis[0]] = tree.split[0]  # exactly on the root's face, or in its plane
    return out + [axis_camera(face, 81, 47)]


def edge_on(gaussians, tree):
    """Turn some Gaussians into thin wide discs that stand across the root's face."""
    if len(tree.axis):
        rows = slice(0, 12)
        gaussians.means[rows, tree.axis[0]] = tree.split[0] + np.linspace(-0.02, 0.02, 12)
        gaussians.scales[rows] = np.log(0.5)
        gaussians.scales[rows, 2 if tree.axis[0] != 2 else 1] = np.log(1e-3)
        gaussians.quats[rows] = [1, 0, 0, 0]
    return gaussians


def assert_equal(run, other, cameras, photos, bars, absolute=False):
    """Images and gradients of two Runs agree; rank 0 looks at the images. bars: (image,
    gradients); absolute: the former is not relative to the brightest pixel."""
    for camera in cameras:
        image, expected = run.image(camera), other.image(camera)
        if image is not None and expected is not None:
            scale = 1.0 if absolute else np.abs(expected).max()
            assert np.abs(image - expected).max() <= bars[0] * scale
    found, losses = run.gradients(cameras, photos, chunk=3)
    expected, expected_losses = other.gradients(cameras, photos, chunk=1)
    np.testing.assert_allclose(losses, expected_losses, rtol=10 * bars[0], atol=1e-9)
    for name, values in expected.items():
        error = np.linalg.norm(found[name] - values) / max(np.linalg.norm(values), 1e-30)
        assert error <= bars[1], (name, error)


def compare(exchange, cells, real, stop, bars, absolute=False, seed=0, backend=None,
            boundary="exact", sides=False, settings=exchange_settings()):
    """Assert that a partition into cells over ranks equals one rank of the host: one cell with
    boundary exact, else the same cells.

    backend, settings: of the partition, backend None for the host's too; bars: (image,
    gradients); sides: statistics are of absolute screen gradients.
    """
    ranks, rank, host = exchange.ranks, exchange.rank, HostBackend(real, threads=1)
    gaussians = random_gaussians(400, seed, real)
    means = gaussians.means[rank::ranks]
    tree = build(means, np.ones(len(means), np.int64), cells, exchange)
    gaussians = edge_on(gaussians, tree)
    cameras = cameras_for(tree)
    photos = {i: random_photo(camera, i) for i, camera in enumerate(cameras)}
    run = Run(gaussians, tree, exchange, ranks, rank, backend or host, stop, boundary,
              settings=settings)
    cut = Tree.single() if boundary == "exact" else tree
    single = Run(gaussians, cut, self_exchange(), 1, 0, host, stop, boundary)
    run.renderer.absolute = single.renderer.absolute = sides
    assert_equal(run, single, cameras, photos, bars, absolute)
    if cells > 1:
        sent = exchange.allreduce("test", np.array([run.renderer.ghost_count], np.int64))
        assert (sent[0] > 0) == (boundary == "exact")


def self_exchange():
    """An exchange of one rank."""
    from mpi4py import MPI

    from splaxel_mpi.mpi.host import HostExchange

    return HostExchange(MPI.COMM_SELF)
