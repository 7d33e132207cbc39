"""The main job with strategy gaussian: its path, its checkpoints, its figures."""

import shutil

import numpy as np
import pytest

from runs import last_checkpoint, state_of, train, train_on_root
from splaxel_mpi import config
from splaxel_mpi.checkpoint.resume import load
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.partition.deal import dealt_ranks

pytestmark = [pytest.mark.timeout(300)]
GAUSSIAN = "exchange.strategy=gaussian"
# as in test_train.py, where the bars come from
EXACT = ["backend.precision=float64", "render.stop=0", "train.epsilon=1e-8", "train.images=32"]


@pytest.fixture
def folder(comm, tmp_path_factory):
    """One temporary folder for all ranks."""
    return comm.bcast(tmp_path_factory.mktemp("shared") if comm.rank == 0 else None)


def stop_half_way(run, folder, comm):
    """A copy of a run in ``folder`` as it stood at its last checkpoint but one."""
    if comm.rank == 0:
        shutil.copytree(run, folder / "small")
        last_checkpoint(folder / "small").unlink()
    comm.barrier()
    return folder


def assert_close(found, expected):
    found, expected = state_of(last_checkpoint(found)), state_of(last_checkpoint(expected))
    np.testing.assert_array_equal(found["gaussians/ids"], expected["gaussians/ids"])
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN"):
        a, b = found[f"gaussians/{name}"], expected[f"gaussians/{name}"]
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max(), name


@pytest.mark.mpi(min_size=2)
def test_ranks_follow_the_path_of_one(comm, city, folder):
    """Densification and migration included, and from pixels to Gaussians and back half way."""
    one = train_on_root(city, folder / "one", comm, *EXACT)
    many = train(city, folder / "many", comm, *EXACT, GAUSSIAN)
    assert_close(many, one)
    pixels = stop_half_way(many, folder / "pixels", comm)
    often = [*EXACT, "checkpoint.every=4"]
    run = train(city, pixels, comm, *often, "partition.cells=1", resume=True)
    assert_close(run, one)
    back = stop_half_way(run, folder / "back", comm)
    assert_close(train(city, back, comm, *often, GAUSSIAN, resume=True), one)
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_resume_equals_unbroken(comm, city, folder):
    first = train(city, folder / "first", comm, GAUSSIAN)
    second = train(city, stop_half_way(first, folder / "second", comm), comm, GAUSSIAN,
                   resume=True)
    one, two = state_of(last_checkpoint(first)), state_of(last_checkpoint(second))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)
    stored = load(last_checkpoint(first), comm)
    assert (dealt_ranks(stored.gaussians.ids, comm.size) == comm.rank).all()
    assert len(stored.gaussians) and not stored.cell.any()
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_figures_count_what_travels(comm, city, folder):
    """Lossy exchange sends less; pixels of cells do not travel at all, and no tree is built."""
    sums = []
    for drop in (0, 0.3):
        run = train(city, folder / f"drop{drop}", comm, GAUSSIAN, f"exchange.drop={drop}",
                    "exchange.strips=measured", "scene.initial_opacity=0.3", "train.images=16",
                    "partition.check=8", "partition.imbalance=0")
        series = read_series(run / "metrics.h5")
        assert "bytes/streams/mean" not in series and "bytes/bitmaps/mean" not in series
        assert load(last_checkpoint(run)).tree.cells == 1
        kinds = ("gaussians", "gaussians back", "halo", "strips")
        sums.append([float(np.nansum(series[f"bytes/{kind}/mean"])) for kind in kinds])
    full, lossy = sums
    # in a trained batch 92 bytes of a Gaussian travel, 36 of them back
    assert 0.5 * 36 < 92 * full[1] / (full[0] + full[1]) <= 36.5
    assert lossy[0] < full[0] and lossy[1] < full[1] and min(full + lossy) > 0
    comm.barrier()


def test_one_rank_is_plain(city, tmp_path, alone):
    short = ["train.images=8", "evaluate.pictures=0"]
    one = train(city, tmp_path / "one", alone, *short)
    other = train(city, tmp_path / "other", alone, *short, GAUSSIAN)
    one, other = state_of(last_checkpoint(one)), state_of(last_checkpoint(other))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_drop_needs_gaussians():
    with pytest.raises(UserError, match="exchange: drop needs strategy: gaussian.*Gaussians$"):
        config.parse("data: {path: x}\nexchange: {drop: 0.1}\n", "test")
    section = config.parse("data: {path: x}\n", "test", [GAUSSIAN, "exchange.drop=0.1"]).exchange
    assert (section.strategy, section.drop, section.strips) == ("gaussian", 0.1, "predicted")


@pytest.mark.parametrize("order", ["conflict-free", "balanced"])
def test_orders_need_cells(order):
    given = [GAUSSIAN, f"train.order={order}"]
    with pytest.raises(UserError, match=f"^test: train.order: {order} .* fixed or one-view$"):
        config.parse("data: {path: x}\n", "test", given)
    assert config.parse("data: {path: x}\n", "test", [*given, "train.order=one-view"])
