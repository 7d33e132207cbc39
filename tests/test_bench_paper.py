"""`splaxel-mpi bench ablation` and `bench scaling` at tiny sizes."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from chain import Run, cameras_for
from exchanges import exchange_of
from scenes import random_gaussians, random_photo

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.tools.bench import cost_model
from splaxel_mpi.tools.bench.city_run import GAUSSIAN, OURS, PIXEL_LEVEL, REDUNDANCY, make_config
from splaxel_mpi.tools.bench.whole_images import WholeImages

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
ROOT = Path(__file__).resolve().parent.parent
SIZE = 160, 96
SMALL = ["backend.name=host", "backend.threads=1"]


def test_settings_of_variants():
    """What the user gives counts for all of them, but for what makes them what they are."""
    given = ["exchange.strategy=owner", "exchange.precision=float16", "train.chunk=2"]
    ours, paper, baseline = (make_config(given, v, 4) for v in (OURS, REDUNDANCY, GAUSSIAN))
    assert (ours.exchange.strategy, ours.exchange.precision) == ("owner", "float16")
    assert (ours.train.order, ours.boundary, ours.train.batch) == ("balanced", "exact", 4)
    assert (paper.exchange.strategy, paper.boundary) == ("overlap", "filter")
    assert baseline.exchange.precision == "float32" and baseline.train.chunk == 2
    assert baseline.train.rates.position == baseline.train.rates.shN == 0
    assert not make_config([], PIXEL_LEVEL, 4).saturation.enabled


@pytest.mark.mpi(min_size=2)
def test_whole_images_change_bytes_alone(comm):
    """Strategy overlap where every cell sends every tile: images and gradients are the same."""
    backend = HostBackend(np.float64, 1)
    gaussians = random_gaussians(300, 4, np.float64)
    found = []
    for whole in (False, True):
        exchange = exchange_of(comm)
        tree = build(gaussians.take(slice(comm.rank, None, comm.size)).means, None, comm.size,
                     exchange)
        run = Run(gaussians, tree, exchange, comm.size, comm.rank, backend, 0.0)
        if whole:
            layout = run.renderer.layout
            background = run.renderer.compositor.background
            run.renderer.compositor = WholeImages(backend, exchange, layout, background)
        cameras = cameras_for(tree)
        photos = {k: random_photo(camera, k) for k, camera in enumerate(cameras)}
        before = exchange.bytes["streams"]
        gradients, losses = run.gradients(cameras, photos, 2)
        sent = exchange.comm.allreduce(exchange.bytes["streams"] - before)
        found.append((gradients, losses, sent))
    pixels = sum(camera.width * camera.height for camera in cameras)
    assert found[1][2] == 4 * 8 * pixels * comm.size * (comm.size - 1) > found[0][2]
    # the same sums in the same order, with zeros and ones between them
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-12)
    for name, array in found[0][0].items():
        np.testing.assert_allclose(found[1][0][name], array, rtol=1e-9, atol=1e-14, err_msg=name)


@pytest.mark.mpi(min_size=2)
def test_ablation(comm):
    from splaxel_mpi.tools.bench import ablation

    lines = []
    settings = dict(gaussians=60_000, side=150.0, kinds=("street",), count=6, size=SIZE)
    rows, backend = ablation.run(settings, SMALL, comm, lines.append)
    assert backend.name == "host" and [row["variant"] for row in rows] == [
        "pixel-level", "+ redundancy", "+ consolidation", "ours", "gaussian"
    ]
    whole, reduced, merged, ours, baseline = rows
    for row in rows:
        assert row["views"] == 6 and row["images_per_second"] > 0
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert min(row["shares"].values()) >= 0 < row["shares"]["rendering"]
        assert 0 < row["balance"] <= row["bound"] + 1e-9 <= 1 + 1e-9 and 0 < row["active"] <= 1
    d, pixels = comm.size, SIZE[0] * SIZE[1]
    assert whole["bytes"]["streams"] == 16 * pixels * d * (d - 1)
    assert reduced["bytes"]["streams"] < 0.5 * whole["bytes"]["streams"]
    assert merged["bytes"]["streams"] == reduced["bytes"]["streams"]
    assert merged["active"] >= reduced["active"] and ours["balance"] >= reduced["balance"]
    assert "ghosts" not in reduced["bytes"] or not reduced["bytes"]["ghosts back"]
    assert ours["bytes"]["ghosts back"] > 0
    assert ours["total_bytes"] < baseline["total_bytes"]
    assert baseline["total_bytes"] == pytest.approx(sum(baseline["bytes"].values()))
    if comm.rank == 0:
        assert len(lines) == 6 and lines[4].split()[1] == "ours"


def counts(ranks, views=12):
    """A cost_model.Load of random views."""
    random = np.random.default_rng(ranks)
    drawn = random.uniform(0, 1e5, (views, ranks)) * (random.random((views, ranks)) < 0.6)
    return cost_model.Load(drawn, 3 * drawn, 1e6 / ranks, 100 * drawn, (100 * drawn).sum(1))


def test_fit_finds_the_costs():
    """Times made of known costs, with one half more for the waits of the third epoch."""
    costs, found = np.array([2e-7, 5e-8, 1e-9, 3e-3]), []
    for ranks in (1, 2):
        load, order = counts(ranks), np.arange(12)[::-1]
        batches = [ranks] * (12 // ranks)
        steps = np.split(order, np.cumsum(batches)[:-1])
        compute = 1.5 * np.array([load.features(views) @ costs for views in steps])
        found.append(SimpleNamespace(seconds=2.0, watched=3.0, compute=compute,
                                     shown=order.tolist(), batches=batches))
    model = cost_model.CostModel.fit(found, [counts(1), counts(2)], 1e9, 0.0)
    # drawn Gaussians and pixels go together here: what counts is their sum
    assert model.costs[0] + 3 * model.costs[1] == pytest.approx(costs[0] + 3 * costs[1])
    np.testing.assert_allclose(model.costs[2:], costs[2:], rtol=1e-6)


def test_prediction():
    model = cost_model.CostModel(np.array([1e-7, 0, 0, 0]), 1e9, 1e-5)
    load = counts(4)
    settings = {order: make_config([], OURS, 4).model_copy(deep=True)
                for order in ("one-view", "balanced")}
    for order, config in settings.items():
        config.train.order = order
    found = {order: model.predict(load, config) for order, config in settings.items()}
    one = found["one-view"]
    # one view at a time: the largest of the ranks, every view, and seven messages each
    computing = 1e-7 * load.gaussians.max(1).sum()
    moving = load.bytes.max(1).sum() / 1e9 + 12 * 7 * 1e-5
    assert one["milliseconds"] * 12e-3 == pytest.approx(computing + moving)
    assert one["communication"] == pytest.approx(moving / (computing + moving))
    assert found["balanced"]["images_per_second"] > one["images_per_second"]
    assert found["balanced"]["balance"] > one["balance"]
    assert one["total_bytes"] == pytest.approx(100 * load.gaussians.sum() / 12)


SCALING = dict(gaussians=(30_000,), per_rank=10_000, side=150.0, kinds=("aerial",), count=4,
               size=(96, 64), bandwidth=1.0, latency=100.0, limit=None, transports=(),
               variants=("ours", "paper", "gaussian"))


@pytest.mark.mpi(min_size=2)
def test_scaling(comm):
    from splaxel_mpi.tools.bench import scaling

    lines, measured = [], scaling.counts_up_to(comm.size)
    settings = dict(SCALING, ranks=measured, model=[4 * comm.size])
    rows = scaling.run(settings, SMALL, comm, lines.append)
    if comm.rank:
        return
    strong = [row for row in rows if row["scaling"] == "strong"]
    weak = [row for row in rows if row["scaling"] == "weak"]
    for variant in ("ours", "paper", "gaussian"):
        found = [row for row in strong if row["variant"] == variant]
        assert [row["ranks"] for row in found] == [*measured, 4 * comm.size]
        assert [row["source"] for row in found] == ["measured"] * len(measured) + ["modelled"]
        assert found[0]["speedup"] == 1 and found[0]["total_bytes"] == 0
        assert all(row["modelled"]["images_per_second"] > 0 for row in found[:-1])
        assert found[-1]["images_per_second"] > 0 and found[-1]["total_bytes"] > 0
        assert [row["gaussians"] for row in weak if row["variant"] == variant] == [
            10_000 * ranks for ranks in measured
        ]
        # the model counts what was sent, but for what chunks share, a few numbers a view
        sent, counted = found[-2]["total_bytes"], found[-2]["modelled"]["total_bytes"]
        assert counted == pytest.approx(sent, rel=0.15)
    assert len(lines) == len(rows) + 2
    assert rows == json.loads(json.dumps(rows))


@pytest.mark.mpi(min_size=2)
def test_what_does_not_fit_is_said_and_left_out(comm):
    from splaxel_mpi.tools.bench import scaling

    settings = dict(SCALING, ranks=[1, comm.size], model=[8], per_rank=None)
    memory = 965 * 30_000 // comm.size + 965 * 1000  # enough for a rank's share, not for all
    lines = []
    rows = scaling.run(settings, [*SMALL, f"backend.memory={memory}"], comm, lines.append)
    if comm.rank == 0:
        (reason,) = [row["reason"] for row in rows if row["source"] == "not run"]
        assert "memory" in reason and lines[-1].endswith(f" on 1 ranks: {reason}")
        sources = {source: {row["ranks"] for row in rows if row["source"] == source}
                   for source in ("not run", "measured", "modelled")}
        assert sources == {"not run": {1}, "measured": {comm.size}, "modelled": {8}}


@pytest.mark.parametrize("given, message", [
    ("backend.memory=1", "its memory holds 1"),
    ("train.chnk=1", "did you mean train.chunk"),
    ("exchange.strategy=gaussian", "exchange.strategy: gaussian has none"),
])
def test_nothing_that_runs_is_a_mistake(given, message):
    from splaxel_mpi.tools.bench import scaling

    comm, lines = pytest.importorskip("mpi4py.MPI").COMM_SELF, []
    settings = dict(SCALING, ranks=[1], model=[2], per_rank=None)
    with pytest.raises(UserError, match=message):
        scaling.run(settings, [*SMALL, given], comm, lines.append)
    assert not lines


def test_commands_under_mpirun(mpirun, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    city = ["--side", "150", "--views", "street", "--count", "2", "--size", "64x48",
            "backend.name=host"]
    for command, options in (("ablation", []), ("scaling", ["--model", "4"])):
        file = tmp_path / f"{command}.json"
        done = mpirun(2, "-m", "splaxel_mpi", "bench", command, "--gaussians", "5k", *city,
                      *options, "--json", str(file), env=env)
        assert done.returncode == 0, done.stdout
        report = json.loads(file.read_text())
        assert report["processes"] == 2 and report["command"]["side"] == 150
        assert report["version"] and len(report["rows"]) == (5 if command == "ablation" else 9)
    done = mpirun(2, "-m", "splaxel_mpi", "bench", "scaling", "--ranks", "4", env=env)
    assert done.returncode != 0 and "--ranks 4 of 2 at hand" in done.stdout
