"""What is drawn with each setting of boundary, and that it does not depend on ranks."""

import numpy as np
import oracle
import pytest
import reference
from chain import BACKGROUND, EXACT, NEAR, Run, compare, self_exchange
from runs import last_checkpoint, train
from scenes import look_at, random_gaussians, random_photo
from splats import REALS, Raster, random_splats
from test_intervals import random_tree, rotation
from test_regions import tiles_by_programs
from test_train import assert_same, stop_half_way

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.assign import cells_of
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.order import visibility_order
from splaxel_mpi.scene.camera import Camera

pytestmark = pytest.mark.timeout(120)
CELLS = 5
SETTINGS = ("exact", "filter", "none")
CAMERAS = [
    look_at([4.2, -3.1, 1.3], [0, 0.2, 0], 60, 41, offset=(1.5, -0.75)),
    look_at([0.4, 0.1, -0.3], [1.6, 0.5, 0.2], 49, 33, focal=30.0),
    look_at([-4.0, 9.5, 3.0], [-2.5, 0, 0.5], 90, 75),
]


class Product:
    """The product's side on one rank of the host."""

    def __init__(self, setting, gaussians, exchange=None):
        self.gaussians, exchange = gaussians, exchange or self_exchange()
        self.tree = build(gaussians.means, None, CELLS, exchange)
        self.run = Run(
            gaussians, self.tree, exchange, 1, 0, HostBackend(np.float64), 0.0, setting
        )


def pixels_of(tiles, camera):
    """A set of tiles as a set of pixels, (height, width)."""
    grid = np.kron(tiles.reshape(camera.tiles[::-1]), np.ones((16, 16), bool))
    return grid[: camera.height, : camera.width]


def expected_image(product, camera, setting):
    """Image by the plain renderer, cell after cell, and the share of pixels that another cell
    covers; regions by linear programs, intervals by the plain reference."""
    groups = {name: np.array(values) for name, values in product.gaussians.groups()}
    cell, boxes = cells_of(product.tree, groups["means"]), product.run.boxes.boxes
    regions = [pixels_of(tiles_by_programs(box, camera, NEAR), camera) for box in boxes]
    image = np.zeros((camera.height, camera.width, 3))
    left, shares = np.ones_like(image), []
    for k in visibility_order(product.tree, camera.center):
        own = {name: values[cell == k] for name, values in groups.items()}
        _, drawn = oracle.render(own, camera, NEAR, np.zeros(3))
        if setting == "filter":
            others = np.any(regions[:k] + regions[k + 1 :], axis=0)
            enter, leave = reference.ray_intervals(camera, product.tree.boxes()[k])
            depth = (own["means"] @ camera.rotation[2] + camera.translation[2])[:, None, None]
            drawn &= ~others | ((enter <= depth) & (depth < leave))
            shares.append(others.mean())
        dark, bright = (
            oracle.render(own, camera, NEAR, np.full(3, level), drawn=drawn)[0] for level in (0, 1)
        )
        image += left * dark
        left *= bright - dark
    return image + left * BACKGROUND, shares


@pytest.mark.parametrize("setting", SETTINGS)
def test_images_are_those_of_the_plain_renderer(setting):
    pytest.importorskip("mpi4py")
    product, other = Product(setting, random_gaussians(120, 4, size=0.2)), []
    for camera in CAMERAS:
        image = product.run.image(camera)
        if setting == "exact":
            groups = {name: np.array(values) for name, values in product.gaussians.groups()}
            expected, _ = oracle.render(groups, camera, NEAR, np.array(BACKGROUND))
        else:
            expected, shares = expected_image(product, camera, setting)
            other += shares
        # sums of some tens of terms in another order
        assert np.abs(image - expected).max() <= 1e-10
    if setting == "filter":  # both kinds of tiles occur
        assert 0.3 < np.mean(other) < 0.95 and len(set(other)) > 3


def test_settings_differ():
    """On this scene a pixel changes visibly; without ghosts in filter and none."""
    pytest.importorskip("mpi4py")
    products = [Product(setting, random_gaussians(120, 4, size=0.2)) for setting in SETTINGS]
    images = [product.run.image(CAMERAS[0]) for product in products]
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(images[one] - images[two]).max() > 0.02
    counts = [product.run.renderer.take_counts() for product in products]
    assert [ghosts > 0 for _, ghosts in counts] == [True, False, False]
    assert len({visible for visible, _ in counts}) == 1


@pytest.mark.parametrize("group", ["sh0", "opacities"])
@pytest.mark.parametrize("setting", ["filter", "none"])
def test_gradients_are_those_of_the_image(setting, group):
    """Along a random direction against central differences of the loss. 1e-6 relative: the
    differences are of order 1e-10, roundings of the loss are 1e-16 over the step."""
    pytest.importorskip("mpi4py")
    gaussians, step = random_gaussians(120, 4, size=0.2), 1e-5
    photos = {i: random_photo(camera, i) for i, camera in enumerate(CAMERAS)}
    direction = np.random.default_rng(1).normal(size=getattr(gaussians, group).shape)

    def loss(moved):
        values = {name: np.array(array) for name, array in gaussians.groups()}
        values[group] += moved * direction
        run = Product(setting, type(gaussians)(**values, ids=gaussians.ids)).run
        gradients, shares = run.gradients(CAMERAS, photos, chunk=2)
        return (shares[:, :2] @ [0.8, 0.2]).sum(), gradients

    (up, _), (down, _), (_, gradients) = loss(step), loss(-step), loss(0.0)
    found = (gradients[group] * direction).sum()
    assert found == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cells", [0, 1, 8])
def test_ranks_equal_the_same_cells_on_one(comm, setting, cells):
    """cells 0: one a rank."""
    from splaxel_mpi.mpi.host import HostExchange

    exchange = HostExchange(comm)
    compare(exchange, cells or comm.size, np.float64, 0.0, EXACT[np.float64], seed=2,
            boundary=setting)


@pytest.mark.timeout(300)
def test_a_resumed_run_equals_the_unbroken_one(city, tmp_path, alone):
    """What filter drops depends on content boxes, which are made anew at checkpoints."""
    options = ["boundary=filter", "partition.cells=3"]
    finished = train(city, tmp_path / "whole", alone, *options)
    (tmp_path / "half").mkdir()
    resumed = stop_half_way(finished, tmp_path / "half")
    train(city, tmp_path / "half", alone, *options, resume=True)
    assert_same(last_checkpoint(finished), last_checkpoint(resumed))


def cell_and_splats(real):
    """A camera among the cells of a tree, the bounds of one, and splats around it."""
    turn, center = rotation(2), np.random.default_rng(2).uniform(-8, 8, 3)
    camera = Camera(203, 131, 190, 185, 99.5, 70.25, turn, -turn @ center)
    splats = random_splats(camera, 2000, real, 2)
    splats.data[:, 9] *= real(0.3)
    return camera, random_tree(5, 2).boxes(), splats


@pytest.mark.parametrize("real", REALS)
def test_bounds_count_in_covered_tiles_alone(real):
    """Tile by tile the lists and pixels are those with the bounds or those without."""
    camera, boxes, splats = cell_and_splats(real)
    raster, random = Raster(real, 2), np.random.default_rng(0)
    covered = (random.random(camera.tile_count) < 0.5).astype(np.uint8)
    mask = (random.random(camera.tile_count) < 0.8).astype(np.uint8)

    def draw(box, **options):
        lists = raster.tile_lists(splats, camera, box, **options)
        partial = raster.rasterize(splats, lists, camera, 0.0)
        items = np.split(lists.items, lists.offsets[1:-1])
        return {t: (i.tolist(), p) for t, i, p in zip(lists.tiles.tolist(), items, partial.pixels)}

    crossed, free = 0, draw(None)
    for box in boxes:
        bounded, found = draw(box), draw(box, covered=covered)
        expected = {t: v for t, v in bounded.items() if covered[t]}
        expected |= {t: v for t, v in free.items() if not covered[t]}
        assert found.keys() == expected.keys()
        for tile, (items, pixels) in found.items():
            assert items == expected[tile][0]
            np.testing.assert_array_equal(pixels, expected[tile][1])
        masked = draw(box, mask=mask, covered=covered)
        assert masked.keys() == {t for t in found if mask[t]}
        crossed += bounded.keys() != free.keys()
    assert crossed
    with pytest.raises(TypeError, match="uint8"):
        raster.tile_lists(splats, camera, boxes[0], covered=covered.astype(bool))
