"""Schedulers inside training runs: they resume bit for bit and leave figures; what is
predicted of a view before and after its first visit."""

import h5py
import numpy as np
import pytest
from exchanges import run_ranks
from regrouped import regroup
from runs import assert_same, last_checkpoint, shared_folder, stop_half_way, train
from test_content import random_camera, scene

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.data.base import View
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.partition.content import ContentBoxes
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.schedule.costs import CostFit
from splaxel_mpi.schedule.predictor import WorkPredictor, visible_share

pytestmark = [pytest.mark.timeout(300)]
FIGURES = ("schedule_active", "schedule_disjoint", "schedule_balance", "schedule_bound")
NEAR = 0.1


@pytest.mark.mpi
@pytest.mark.parametrize("order", ["conflict-free", "balanced"])
def test_resume_equals_unbroken(comm, city, tmp_path_factory, order):
    """On one rank and on several: stop + resume is the unbroken run bit for bit, and the figures
    are in the metrics."""
    folder = shared_folder(comm, tmp_path_factory)
    settings = [f"train.order={order}", "partition.cells=4", "schedule.window=8"]
    first = train(city, folder / "first", comm, *settings)
    (folder / "resumed").mkdir(exist_ok=True)
    if comm.rank == 0:
        stop_half_way(first, folder / "resumed")
    comm.barrier()
    resumed = train(city, folder / "resumed", comm, *settings, resume=True)
    assert_same(last_checkpoint(first), last_checkpoint(resumed))
    series = read_series(first / "metrics.h5")
    rows = np.isfinite(series["loss"])
    for name in FIGURES:
        assert ((0 <= series[name][rows]) & (series[name][rows] <= 1)).all(), name
    assert (series["schedule_balance"][rows] <= series["schedule_bound"][rows] + 1e-12).all()
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_another_rank_count_goes_on(comm, city, tmp_path_factory):
    """A balanced run of all ranks, continued by one rank, and measured costs on top."""
    from mpi4py import MPI

    folder = shared_folder(comm, tmp_path_factory)
    settings = ["train.order=balanced", "schedule.measured=true", "densify.method=none"]
    run = train(city, folder, comm, *settings, "train.images=20")
    if comm.rank == 0:
        train(city, folder, MPI.COMM_SELF, *settings, "train.images=40", resume=True)
        with h5py.File(last_checkpoint(run)) as file:
            assert file["run/images_seen"][()] == 40 and "schedule/order" in file
    comm.barrier()


def places(ranks, cells=4):
    """Per rank: layout, Gaussians and content boxes of a cloud."""
    gaussians = scene(4000, dtype=np.float32)
    gaussians.opacities[:] = 2.0

    def one(exchange):
        mine = gaussians if exchange.rank == 0 else gaussians.take([])
        tree, boxes = build(mine.means, None, cells, exchange), ContentBoxes(0.01)
        part, _, offsets = regroup(mine, {}, tree, exchange)
        boxes.update(part, offsets, tree, exchange)
        return Layout(tree, exchange.rank, ranks, offsets), part, boxes

    return run_ranks(ranks, one)


def cameras(count=40):
    random = np.random.default_rng(3)
    return [View(k, "", None, random_camera(random)) for k in range(count)]


def predicted(ranks, found, views, visit=None, **options):
    """Work (views, ranks) on every rank; visit(predictor, rank) comes before."""
    def one(exchange):
        predictor = WorkPredictor(
            views, exchange, lambda: found[exchange.rank][0], lambda: found[exchange.rank][1:],
            HostBackend(np.float32), NEAR, **options
        )
        if visit:
            visit(predictor, exchange.rank)
        return predictor.prepare(np.arange(len(views)))()

    results = run_ranks(ranks, one)
    assert all(np.array_equal(results[0], other) for other in results)
    return results[0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_geometry_predicts_what_is_drawn(ranks):
    """Same on every rank; the sums over ranks do not depend on them, and follow the Gaussians
    that projection finds (64 samples a cell: correlation above 0.9)."""
    views, found = cameras(), places(ranks)
    work = predicted(ranks, found, views, pixel_cost=0.0)
    assert work.shape == (40, ranks)
    alone = predicted(1, places(1), views, pixel_cost=0.0)
    np.testing.assert_allclose(work.sum(axis=1), alone[:, 0], rtol=1e-12)
    backend = HostBackend(np.float32)
    drawn = np.array([
        [len(backend.project(part, view.camera, 0, NEAR)) for _, part, _ in found] for view in views
    ])
    assert np.corrcoef(work.ravel(), drawn.ravel())[0, 1] > 0.9
    assert (work > 0)[drawn > 0.2 * drawn.max()].all()


def test_visits_replace_geometry_and_grow_with_the_cell():
    views, found = cameras(6), places(2)

    def visit(predictor, rank):
        for view in range(6):
            predictor.observe(view, np.array([100, 0]) + rank, np.array([512, 0]))
        layout = found[rank][0]
        grown = Layout(layout.tree, rank, 2, 2 * layout.offsets)
        predictor.layout = lambda: grown

    work = predicted(2, found, views, visit, pixel_cost=0.5)
    np.testing.assert_allclose(work, [[2 * 100 + 256, 2 * (101 + 1) + 256]] * 6, rtol=1e-6)


def test_a_view_without_a_visit_is_predicted_among_others():
    views, found = cameras(6), places(2)
    fresh = predicted(2, found, views)
    new = int(fresh.sum(axis=1).argmax())

    def visit(predictor, rank):
        for view in range(6):
            if view != new:
                predictor.observe(view, np.zeros(2), np.zeros(2))

    work = predicted(2, found, views, visit)
    np.testing.assert_array_equal(work[new], fresh[new])
    assert not np.delete(work, new, axis=0).any()


def test_visits_survive_a_checkpoint_of_the_same_cells():
    views, found = cameras(6), places(2)

    def visit(predictor, rank):
        for view in range(6):
            predictor.observe(view, np.array([7, 3]), np.array([256, 0]))
        stored = predictor.state()
        predictor.forget()
        predictor.restore({"visits": stored["visits"][:, :5]})  # of other views: ignored
        predictor.restore(stored)

    assert (predicted(2, found, views, visit, pixel_cost=0.0) == 10).all()


def test_measured_costs_replace_the_given_one():
    views, found = cameras(6), places(2)

    def visit(predictor, rank):
        random = np.random.default_rng(rank)
        for step in range(40):
            drawn = random.integers(1, 1000, (2, 2))
            predictor.observe(step % 6, *drawn)
            predictor.timed(drawn[0].sum() + 3.0 * drawn[1].sum())
        for view in range(6):
            predictor.observe(view, np.array([0, 0]), np.array([1, 0]))

    work = [predicted(2, found, views, visit, pixel_cost=1.0, costs=costs)
            for costs in (None, CostFit())]
    assert (work[0] == 1).all()
    np.testing.assert_allclose(work[1], 3, rtol=1e-6)


def test_visible_share_of_points_before_and_behind():
    camera = random_camera(np.random.default_rng(0))
    ahead = camera.rotation.T @ ([0, 0, 2.0] - camera.translation)
    behind = camera.rotation.T @ ([0, 0, -2.0] - camera.translation)
    x = (camera.width + 5 - camera.cx) / camera.fx
    beside = camera.rotation.T @ ([2 * x, 0, 2.0] - camera.translation)
    sample = np.array([[ahead, behind], [ahead, ahead], [beside, behind], [[np.nan] * 3] * 2])
    np.testing.assert_array_equal(visible_share([camera], sample, NEAR), [[0.5, 1, 0, 0]])
