"""Saturation: what is masked, that it does not show, and that it comes back."""

import numpy as np
import oracle
import pytest
from chain import NEAR, Run, exchange_settings, self_exchange
from scenes import look_at, random_gaussians, random_photo

from splaxel_mpi.backends.base import EXTENT_X, EXTENT_Y, U, V
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.partition.assign import cells_of
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.order import visibility_order
from splaxel_mpi.visibility.demand import Demand
from splaxel_mpi.visibility.saturation import Saturation
from splaxel_mpi.visibility.tiles import boxes_touch

pytestmark = pytest.mark.timeout(120)
CELLS, THRESHOLD = 5, 1e-4
CAMERAS = [
    look_at([4.2, -3.1, 1.3], [0, 0.2, 0], 150, 101),
    look_at([-6.0, 0.5, 0.3], [0, 0, 0], 130, 90, offset=(3.5, -1.25)),
]
PHOTOS = {i: random_photo(camera, i) for i, camera in enumerate(CAMERAS)}


def opaque_gaussians(real=np.float64, count=1500):
    gaussians = random_gaussians(count, 3, real, size=0.25)
    gaussians.opacities[:] = 4
    return gaussians


class Scene:
    """An opaque scene in cells on one rank, or on those of an exchange."""

    def __init__(self, reevaluate="residual", threshold=THRESHOLD, boundary="exact", stop=0.0,
                 exchange=None, real=np.float64, cells=CELLS, backend=None, strategy="overlap"):
        self.exchange = exchange or self_exchange()
        ranks, rank = self.exchange.ranks, self.exchange.rank
        gaussians = opaque_gaussians(real)
        means = gaussians.means[rank::ranks]
        self.tree = build(means, np.ones(len(means), np.int64), cells, self.exchange)
        self.saturation = Saturation(threshold, reevaluate)
        self.run = Run(gaussians, self.tree, self.exchange, ranks, rank,
                       backend or HostBackend(real), stop, boundary, self.saturation,
                       exchange_settings(strategy))

    def visit(self, chunk=2):
        """Gradients and losses of a batch, and what saturation counted on all ranks."""
        found = self.run.gradients(CAMERAS, PHOTOS, chunk)
        return *found, self.exchange.allreduce("test", self.saturation.take_counts())

    def masked(self):
        """(view, cell) -> masked tiles, of this rank."""
        return {
            (view, cell): np.flatnonzero(mask.rows(CAMERAS[view].tile_count)[0]).tolist()
            for (view, cell), mask in self.saturation.masks.kept.items()
        }

    def fade(self, cell):
        """Make the Gaussians of one cell invisible."""
        layout = self.run.renderer.layout
        first, last = layout.offsets[cell - layout.local.start :][:2]
        self.run.gaussians.opacities[first:last] = -9


@pytest.mark.parametrize("real, stop", [(np.float64, 0.0), (np.float32, 1e-4)])
@pytest.mark.parametrize("threshold", [1e-4, 1e-2])
def test_a_frozen_model_looks_the_same(real, stop, threshold):
    """What is left out is seen through less than the threshold; colours here are below 4."""
    pytest.importorskip("mpi4py")
    scene = Scene(threshold=threshold, real=real, stop=stop)
    before = [scene.run.image(camera) for camera in CAMERAS]
    drawn = scene.visit()[2]
    assert drawn[1] == 0
    for _ in range(2):
        masked = scene.visit()[2]
        assert masked[0] + masked[1] == drawn[0] and masked[1] > 0.2 * drawn[0]
        assert masked[2] == 0  # flips
        for view, camera in enumerate(CAMERAS):
            error = np.abs(scene.run.image(camera, view) - before[view]).max()
            assert error <= 4 * threshold and (threshold > 1e-4 or error < 1e-3)


def plain_weights(scene, camera):
    """The plain renderer on all Gaussians, in float64 and in one global order: transmittance in
    front of each (Gaussian, pixel) pair times its alpha, and the cell that holds the pair."""
    groups = {name: np.array(values) for name, values in scene.run.gaussians.groups()}
    t = groups["means"] @ camera.rotation.T + camera.translation
    order = np.argsort(t[:, 2], kind="stable")
    order = order[t[order, 2] > NEAR]
    chosen = {name: array[order] for name, array in groups.items()}
    raw = oracle.raw_alphas(chosen, camera, t[order], np.zeros((len(order), 2)))
    alpha = np.where(raw >= oracle.ALPHA_LEAST, np.minimum(raw, oracle.ALPHA_MOST), 0.0)
    after = np.cumprod(1 - alpha, axis=0)
    weights = alpha * np.concatenate([np.ones((1, *alpha.shape[1:])), after[:-1]])
    pair, row, column = np.nonzero(alpha)
    x, y = (column + 0.5 - camera.cx) / camera.fx, (row + 0.5 - camera.cy) / camera.fy
    rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ camera.rotation
    cell = np.full(alpha.shape, -1)
    points = camera.center + t[order, 2][pair, None] * rays
    cell[pair, row, column] = cells_of(scene.tree, points)
    return weights, cell


def test_no_pair_outside_the_live_tiles_matters():
    """Renders everything, without tiles, cells or bounds. A pair whose cell has masked the tile
    shows less than the threshold, all of a cell's together, too; and every tile that stays live
    and is drawn has a pixel that lets more through to it."""
    pytest.importorskip("mpi4py")
    scene = Scene()
    scene.visit()
    masks, left_out, kept = scene.masked(), 0, 0
    for view, camera in enumerate(CAMERAS[:1]):
        weights, cell = plain_weights(scene, camera)
        tiles_x, _ = camera.tiles
        rows, columns = np.indices((camera.height, camera.width)) // 16
        tile = rows * tiles_x + columns
        order = visibility_order(scene.tree, camera.center)
        passed = np.ones(tile.shape)  # in front of the cell
        for k in order:
            shown = np.where(cell == k, weights, 0.0)
            dark = np.isin(tile, masks.get((view, int(k)), []))
            assert shown.sum(axis=0)[dark].max(initial=0) < THRESHOLD
            left_out += np.count_nonzero(shown.max(axis=0)[dark])
            for live in np.unique(tile[(shown.max(axis=0) > 0) & ~dark]):
                assert passed[tile == live].max() >= THRESHOLD * (1 - 1e-9)
                kept += 1
            passed = passed - shown.sum(axis=0)  # 1 - the weights in front
    assert left_out > 1000 and kept > 100


@pytest.mark.parametrize("boundary", ["exact", "filter", "none"])
def test_less_is_drawn_and_sent_with_every_boundary(boundary):
    pytest.importorskip("mpi4py")
    scene = Scene(boundary=boundary)
    before = scene.run.image(CAMERAS[0])
    ghosts = []
    for _ in range(2):
        scene.run.renderer.take_counts()
        scene.visit()
        ghosts.append(scene.run.renderer.take_counts()[1])
    if boundary == "exact":
        assert 0 < ghosts[1] < ghosts[0]
    assert np.abs(scene.run.image(CAMERAS[0], 0) - before).max() <= 4 * THRESHOLD


def test_boxes_touch_their_tiles():
    """Against a loop over tiles: boxes of all sizes, in the image, across its sides, outside."""
    camera, random = CAMERAS[0], np.random.default_rng(4)
    tiles_x, tiles_y = camera.tiles
    splats = np.zeros((500, 12))
    splats[:, [U, V]] = random.uniform(-40, 200, (500, 2))
    splats[:, [EXTENT_X, EXTENT_Y]] = random.exponential(15, (500, 2))
    rows, tiles = random.integers(0, 3, 500), random.random((3, camera.tile_count)) < 0.1
    low = splats[:, [U, V]] - splats[:, [EXTENT_X, EXTENT_Y]]
    high = splats[:, [U, V]] + splats[:, [EXTENT_X, EXTENT_Y]]
    expected = np.zeros(500, bool)
    for tile in range(camera.tile_count):
        corner = 16 * np.array([tile % tiles_x, tile // tiles_x])
        expected |= ((low < corner + 16) & (high >= corner)).all(axis=1) & tiles[rows, tile]
    found = boxes_touch(splats, rows, tiles, camera)
    np.testing.assert_array_equal(found, expected)
    assert 50 < found.sum() < 450


def test_gradients_hardly_change():
    """Of a frozen model: those of what is masked were below the threshold times what a whole
    image gives; relative to all gradients that is 1e-3 at most (4e-5 measured)."""
    pytest.importorskip("mpi4py")
    scene = Scene()
    before, losses, _ = scene.visit()
    after, masked_losses, _ = scene.visit()
    np.testing.assert_allclose(masked_losses, losses, atol=THRESHOLD)
    for name in ("means", "opacities", "sh0"):
        error = np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])
        assert 0 < error < 1e-3, (name, error)


def test_chunks_do_not_matter():
    """A view that comes twice in a batch is drawn with the same masks both times."""
    pytest.importorskip("mpi4py")
    cameras, found = [*CAMERAS, CAMERAS[0]], []
    for chunk in (1, 2, 3):
        scene = Scene()
        scene.run.gradients(cameras, PHOTOS, chunk, indices=[0, 1, 0])
        found.append((scene.masked(), scene.saturation.take_counts().tolist()))
    assert found[0] == found[1] == found[2] and found[0][0]


def nearest(scene):
    """The cell in front of all others in the first view."""
    return int(visibility_order(scene.tree, CAMERAS[0].center)[0])


@pytest.mark.parametrize("reevaluate", ["never", "residual", "always"])
def test_light_that_comes_through_wakes_cells(reevaluate):
    """The nearest cell fades. With never the hole stays; otherwise it closes within as many
    visits as there are cells, and what saturates anew is masked again."""
    pytest.importorskip("mpi4py")
    scene = Scene(reevaluate)
    scene.visit()
    masked = sum(map(len, scene.masked().values()))
    scene.fade(nearest(scene))
    expected, errors, flips = scene.run.image(CAMERAS[0]), [], []
    for _ in range(CELLS + 1):
        errors.append(np.abs(scene.run.image(CAMERAS[0], 0) - expected).max())
        flips.append(int(scene.visit()[2][2]))
    assert errors[0] > 0.05 and flips[0] > 0.02 * masked
    if reevaluate == "never":
        assert errors[-1] == errors[0] and flips[-1] == flips[0]
        assert sum(map(len, scene.masked().values())) >= masked
    else:
        assert errors[-1] <= 4 * THRESHOLD and flips[-1] == 0
        assert 0 < sum(map(len, scene.masked().values())) < masked


def test_always_wakes_all_that_receive_light_and_residual_only_what_it_reaches():
    """Behind the hole a cell that was opaque when it was last drawn hides those behind it."""
    pytest.importorskip("mpi4py")
    left = {}
    for reevaluate in ("residual", "always"):
        scene = Scene(reevaluate)
        scene.visit()
        scene.fade(nearest(scene))
        scene.visit()
        scene.run.image(CAMERAS[0], 0)  # notices travel with the next chunk
        left[reevaluate] = sum(map(len, scene.masked().values()))
    assert left["always"] < left["residual"]


def test_a_cell_without_live_tiles_is_no_participant():
    """Seen through a narrow lens, cells hide others altogether."""
    pytest.importorskip("mpi4py")
    scene, camera = Scene(), look_at([-6.0, 0.5, 0.3], [0, 0, 0], 48, 32, focal=150.0)
    local = scene.run.renderer.layout.local
    assert scene.saturation.participants(0, local).all()  # never seen
    scene.run.gradients([camera], {0: random_photo(camera, 0)}, 1)
    taking = scene.saturation.participants(0, local)
    works, _ = scene.run.renderer.draw(
        scene.run.gaussians, [camera], 3, [lambda held, camera: nothing(held)], [0]
    )
    drawn = np.array([len(part.held) > 0 for part in works[0].parts])
    masked = np.array([(0, cell) in scene.saturation.masks.kept for cell in local])
    assert (~drawn & masked).any() and drawn.any()
    assert (taking == (drawn | ~masked)).all()


def nothing(held):
    """A demand for no pixel."""
    none = np.zeros_like(held)
    return Demand(none, none, np.zeros(held.shape[1], np.int64), none)


def test_another_tree_clears_masks_and_new_rows_do_not():
    pytest.importorskip("mpi4py")
    scene = Scene()
    scene.visit()
    layout = scene.run.renderer.layout
    scene.run.renderer.set_layout(Layout(layout.tree, 0, 1, layout.offsets.copy()))
    assert scene.masked()
    other = build(scene.run.gaussians.means + 0.1, None, CELLS, scene.exchange)
    scene.run.renderer.set_layout(Layout(other, 0, 1, layout.offsets))
    assert not scene.masked() and not scene.saturation.masks.idle


def test_other_thresholds_and_trees_do_not_take_stored_masks():
    pytest.importorskip("mpi4py")
    scene = Scene()
    scene.visit()
    layout = scene.run.renderer.layout
    state = scene.saturation.state(scene.exchange, layout)
    other = Layout(build(scene.run.gaussians.means + 0.1, None, CELLS, scene.exchange), 0, 1,
                   layout.offsets)
    again = Saturation(THRESHOLD, "never")
    assert not again.restore(state, other, CAMERAS) and not again.masks.kept
    assert not Saturation(2 * THRESHOLD, "never").restore(state, layout, CAMERAS)
    assert again.restore(state, layout, CAMERAS)
    assert again.masks.kept.keys() == scene.masked().keys()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "reevaluate, strategy",
    [("never", "overlap"), ("residual", "overlap"), ("always", "overlap"), ("residual", "owner")],
)
def test_ranks_mask_what_one_masks(comm, reevaluate, strategy):
    """The same cells on one rank and on all: masks, counts, images, gradients; a cell fades on
    the way, so that notices travel; then fewer bytes are sent."""
    from splaxel_mpi.mpi.host import HostExchange

    many = Scene(reevaluate, exchange=HostExchange(comm), strategy=strategy)
    one = Scene(reevaluate)
    front = nearest(one)
    for visit in range(4):
        before = dict(many.exchange.bytes)
        found, losses, counts = many.visit(chunk=1)
        sent = {name: size - before.get(name, 0) for name, size in many.exchange.bytes.items()}
        if visit == 0:
            unmasked = sent["streams"]
        expected, expected_losses, expected_counts = one.visit()
        assert counts.tolist() == expected_counts.tolist()
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-9, atol=1e-9)
        for name, values in expected.items():
            error = np.linalg.norm(found[name] - values) / max(np.linalg.norm(values), 1e-30)
            assert error <= 1e-10, (name, error)
        if visit == 1:
            total = comm.allreduce(sent["streams"]) / max(comm.allreduce(unmasked), 1)
            assert total < 0.75
            one.fade(front)
            if front in many.run.renderer.layout.local:
                many.fade(front)
    gathered = {}
    for part in comm.allgather(many.masked()):
        gathered.update(part)
    assert gathered == one.masked() and gathered
