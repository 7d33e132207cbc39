"""Strategy gaussian on a small scene, and its comparison with plain 3DGS."""

from chain import BACKGROUND, NEAR, Run, assert_equal, cameras_for
from exchanges import SelfExchange
from regrouped import regroup
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.deal import Dealt
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.settings import ExchangeSection
from splaxel_mpi.train.render_strips import StripRenderer


class GaussianRun(Run):
    """The stages of strategy gaussian over an exchange."""

    def __init__(self, gaussians, exchange, backend, stop, **settings):
        self.exchange, self.backend = exchange, backend
        tree, ranks, rank = Dealt.single(), exchange.ranks, exchange.rank
        mine, _, offsets = regroup(gaussians.take(slice(rank, None, ranks)), {}, tree, exchange)
        self.gaussians = mine.map(backend.to_device)
        layout = Layout(tree, rank, ranks, offsets)
        settings = ExchangeSection(strategy="gaussian", **settings)
        self.renderer = StripRenderer(
            backend, exchange, layout, settings, BACKGROUND, NEAR, stop
        )


def scene(real, seed):
    """Gaussians, cameras and photographs; one camera sees nothing, one is below a strip a rank."""
    gaussians = random_gaussians(400, seed, real)
    cameras = cameras_for(Tree.single()) + [look_at([3, 3, 1], [0, 0, 0], 45, 13)]
    return gaussians, cameras, {i: random_photo(camera, i) for i, camera in enumerate(cameras)}


def compare_with_plain(exchange, real, stop, bars, absolute=False, backend=None, sides=False,
                       **settings):
    """Bars of design section 10: they are those of every partition of the pixels.

    backend: of the strips, None for the host's too; sides: statistics are of absolute screen
    gradients.
    """
    host = HostBackend(real, threads=1)
    gaussians, cameras, photos = scene(real, 7)
    run = GaussianRun(gaussians, exchange, backend or host, stop, **settings)
    single = Run(gaussians, Tree.single(), SelfExchange(), 1, 0, host, stop)
    run.renderer.absolute = single.renderer.absolute = sides
    for _ in range(2):  # measured strips move after the first visit
        assert_equal(run, single, cameras, photos, bars, absolute)
    return run
