"""Where time, bytes and pixels of a run go, as its user reads it."""

import re
import sys
import time
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from exchanges import exchange_of
from runs import last_checkpoint, shared_folder, stop_half_way, train

from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.train import loop
from splaxel_mpi.train.accounts import VIEW_KINDS
from splaxel_mpi.train.shares import NAMES, Waiting, in_words, shares
from splaxel_mpi.train.timers import COLLECTIVES, MOST_MARKS, OUTSIDE, DeviceClock, Timers

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
CHAIN = ("possible", "visible", "occupied", "unsaturated")
# Opaque from the start, so that the few tiles of small images saturate.
OPAQUE = ["partition.cells=3", "scene.initial_opacity=0.95", "saturation.threshold=0.1",
          "densify.reset_every=0", "log.ranks=true"]


def rows_of(run):
    """{name: values of the rows that reports wrote} of a run's metrics."""
    series = read_series(run / "metrics.h5")
    kept = np.isfinite(series["loss"])
    return {name: values[kept] for name, values in series.items()}


def wall(rows):
    """Seconds of each row's interval, from one report to the next."""
    return np.diff(rows["time"], prepend=0.0)


@pytest.fixture(scope="module")
def finished(city, tmp_path_factory, alone):
    """Folder of a run with masks on one rank with three cells, and held-out views between."""
    folder = tmp_path_factory.mktemp("runs")
    return train(city, folder, alone, *OPAQUE, "evaluate.every=20", "train.images=96")


def test_shares_add_up_to_the_time_of_the_run(finished):
    rows = rows_of(finished)
    parts = {name: rows[f"shares/{name}/mean"] for name in NAMES if f"shares/{name}/mean" in rows}
    assert set(parts) == set(NAMES) - {"step"}
    assert all((np.nan_to_num(values) >= 0).all() for values in parts.values())
    total = sum(np.nan_to_num(values) for values in parts.values())
    assert total.sum() == pytest.approx(wall(rows).sum(), rel=0.05)
    for name in ("rendering", "back_propagation", "other"):
        assert (parts[name] > 0).all(), name
    assert (parts["waiting"] == 0).all() and np.nansum(parts["apart"]) > 0
    stages = [values for name, values in rows.items() if re.match("seconds/.*/mean", name)]
    np.testing.assert_allclose(sum(map(np.nan_to_num, stages)), total, rtol=1e-9)


def test_each_reduction_leaves_fewer_pixels(finished):
    rows = rows_of(finished)
    counts = [rows[f"pixels/{name}"] for name in CHAIN]
    assert (counts[0] == 3 * 80 * 45).all()
    for more, fewer in zip(counts, counts[1:]):
        assert (more >= fewer).all()
    assert counts[2][-1] > counts[3][-1] > 0  # some tiles are masked by then
    assert counts[0][0] > counts[1][0] > counts[2][0]
    assert ((0 < rows["participants"]) & (rows["participants"] <= 3)).all()
    assert (rows["utilisation"] == 1).all()  # the only rank draws in every chunk
    assert "view_bytes" not in rows and "waiting/full" not in rows
    np.testing.assert_array_equal(rows["gaussians/full"][:, 0], rows["gaussians/mean"])


def test_splats_of_held_out_views_are_not_counted_as_training(city, tmp_path, alone, monkeypatch):
    how = "partition.cells=2", "train.images=16", "log.every=4", "densify.method=none"
    found = rows_of(train(city, tmp_path / "some", alone, *how, "evaluate.every=4"))
    monkeypatch.setattr(loop, "evaluate", lambda *_: None)
    want = rows_of(train(city, tmp_path / "none", alone, *how))
    for name in ("visible/mean", "ghosts/mean"):
        np.testing.assert_array_equal(found[name], want[name], err_msg=name)
        assert want[name].min() > 0


def test_the_log_says_it_in_one_line(finished):
    lines = (finished / "log.txt").read_text().splitlines()
    told = [k for k, text in enumerate(lines) if " time: " in text]
    assert len(told) == 6 and all("/96 images (" in lines[k - 1] for k in told)
    for k in told:
        percent = dict(re.findall(r"([a-z][a-z\- ]*?) (\d+)%", lines[k].split("time: ")[1]))
        assert sum(map(int, percent.values())) == pytest.approx(100, abs=3)
        assert {"rendering", "back-propagation", "other"} <= set(percent)
        assert len(lines[k]) < 160 and "MB" not in lines[k]


def test_a_resumed_run_goes_on_with_the_same_series(city, finished, tmp_path, alone):
    whole = train(city, tmp_path / "whole", alone, *OPAQUE)
    (tmp_path / "half").mkdir()
    stop_half_way(whole, tmp_path / "half")
    resumed = train(city, tmp_path / "half", alone, *OPAQUE, resume=True)
    one, two = rows_of(whole), rows_of(resumed)
    assert one.keys() == two.keys()
    assert one["images_seen"].tolist() == [16, 32, 48] == two["images_seen"].tolist()
    for name in CHAIN[2:]:  # content boxes are made anew at the resume
        assert one[f"pixels/{name}"][0] == two[f"pixels/{name}"][0]
        assert one[f"pixels/{name}"][2] == two[f"pixels/{name}"][2]
    assert two["shares/rendering/mean"][2] > 0


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["overlap", "owner"])
def test_ranks_account_for_their_time_and_count_as_one(comm, city, tmp_path_factory, strategy):
    """Shares of every rank add up to the time of the run, and what cells draw is the same on any
    number of ranks."""
    from mpi4py import MPI

    folder = shared_folder(comm, tmp_path_factory)
    options = ["partition.cells=4", "train.images=32", "densify.method=none", "log.ranks=true",
               "backend.precision=float64", "render.stop=0", f"exchange.strategy={strategy}"]
    run = train(city, folder / "many", comm, *options)
    if comm.rank == 0:
        rows = rows_of(run)
        one = rows_of(train(city, folder / "one", MPI.COMM_SELF, "backend.threads=1", *options))
        parts = [rows[f"shares/{name}/full"] for name in NAMES if f"shares/{name}/full" in rows]
        totals = sum(np.nan_to_num(values) for values in parts).sum(axis=0)
        assert len(totals) == comm.size and len(parts) == 6
        np.testing.assert_allclose(totals, wall(rows).sum(), rtol=0.05)
        assert (rows["shares/waiting/max"] > 0).all()
        for name in [*(f"pixels/{link}" for link in CHAIN), "participants"]:
            # boxes of content differ by rounding alone
            np.testing.assert_allclose(rows[name], one[name], rtol=1e-9, err_msg=name)
        assert (rows["utilisation"] <= 1).all() and (rows["view_bytes"] > 1000).all()
        kinds = [rows[f"bytes/{kind}/mean"] for kind in VIEW_KINDS if f"bytes/{kind}/mean" in rows]
        assert len(kinds) == (7 if strategy == "owner" else 5)
        # the checkpoint shares masks, too
        assert rows["view_bytes"] == pytest.approx(sum(kinds) * comm.size / 16, rel=1e-3)
        log = (run / "log.txt").read_text()
        assert "waiting" in log and re.search(r"[\d.]+ MB a view  utilisation \d+%", log)
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_who_comes_first_waits_for_the_last(comm):
    exchange, timers = exchange_of(comm), Timers()
    exchange.watch = timers
    waiting = Waiting(exchange, SimpleNamespace(size=comm.size))
    comm.barrier()
    timers.take()
    if comm.rank == 0:
        with timers("late"):
            time.sleep(0.3)
    exchange.allgather("test", np.zeros(1))
    exchange.alltoallv("test", np.zeros(comm.size), np.ones(comm.size), np.ones(comm.size))
    spent = timers.take()
    found = shares(spent, waiting.seconds(spent))
    assert len(spent.ready) == 2 and set(spent.number) == {0, 1}
    assert sum(found.values()) == pytest.approx(sum(spent.seconds.values()), rel=1e-12)
    # the machine may be busy: a rank is not always let go at once
    assert found["waiting"] < 0.15 if comm.rank == 0 else found["waiting"] > 0.2
    # clocks of nodes that differ are set against each other
    apart = Waiting(exchange, SimpleNamespace(size=1))
    assert abs(apart._ahead()) < 0.1


def fake_clock(now):
    """A clock that shows now[0]."""
    return SimpleNamespace(
        mark=lambda: now[0], reached=lambda mark: mark, anchor=lambda moment: None,
        seconds=np.array,
    )


def test_an_inner_stage_stops_the_outer_one():
    now = [0.0]
    timers = Timers(fake_clock(now))

    def spend(seconds):
        now[0] += seconds

    for _ in range(MOST_MARKS):  # more marks than are kept
        with timers("outer"):
            spend(1)
            with timers("inner"):
                spend(2)
            with timers.blocked(timers.begin()):
                spend(3)
        spend(4)
    with pytest.raises(KeyError), timers("evaluate", whole=True):
        with timers("inner"), timers.blocked(timers.begin()):
            spend(8)
        raise KeyError
    assert timers.computed() == 3 * MOST_MARKS + 8
    spent = timers.take()
    assert spent.seconds == {
        OUTSIDE: 4 * MOST_MARKS, "outer": MOST_MARKS, "inner": 2 * MOST_MARKS,
        COLLECTIVES: 3 * MOST_MARKS, "evaluate": 8,
    }
    np.testing.assert_array_equal(spent.ready, 3 + 10 * np.arange(MOST_MARKS))
    assert (spent.blocked == 3).all() and sum(timers.take().seconds.values()) == 0


def test_a_rank_that_computes_meanwhile_does_not_wait():
    """Ready at 0, at work until 5, held up until 9, and the other rank is ready at 7: 2 s of
    waiting, 2 s of communication."""
    now, other = [0.0], SimpleNamespace(ranks=2, allreduce=lambda kind, data, op: data + 7)
    timers = Timers(fake_clock(now))
    number = timers.begin()
    with timers("work"):
        now[0] = 5.0
    with timers.blocked(number):
        now[0] = 9.0
    spent = timers.take()
    waiting = Waiting(other, SimpleNamespace(size=2)).seconds(spent)
    found = shares(spent, waiting)
    assert (found["waiting"], found["communication"], found["other"]) == (2, 2, 5)


def test_time_of_a_device_is_told_by_its_events(monkeypatch):
    """A device that works 2 s for what is launched in 0.5 s: stages get the device's time, on the
    host's clock."""
    host, device = [100.0], [7.0]

    class Event:
        def record(self):
            self.at = device[0] = max(device[0], host[0] - 93)

        def synchronize(self):
            host[0] = max(host[0], self.at + 93)

    cuda = SimpleNamespace(Event=Event, get_elapsed_time=lambda a, b: 1e3 * (b.at - a.at))
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(time, "perf_counter", lambda: host[0])
    timers = Timers(DeviceClock())
    for _ in range(3):
        with timers("launched"):
            host[0] += 0.5
            device[0] = max(device[0], host[0] - 93) + 2
        with timers.blocked(timers.begin()):
            host[0] += 0.25
    spent = timers.take()
    assert sum(spent.seconds.values()) == pytest.approx(host[0] - 100)
    assert spent.seconds["launched"] == pytest.approx(6.5)
    assert spent.ready[0] == pytest.approx(102.5) and host[0] == pytest.approx(106.5)


def test_words():
    means = dict(rendering=1.0, back_propagation=2.0, communication=0.001, other=1.0)
    assert in_words(means) == "time: rendering 25%, back-propagation 50%, other 25%"
    assert in_words({}) == "time: "


def test_a_run_of_the_baseline_has_no_cells_to_count(city, tmp_path, alone):
    run = train(city, tmp_path, alone, "exchange.strategy=gaussian", "train.images=16")
    with h5py.File(run / "metrics.h5") as file:
        assert "pixels" not in file and "participants" not in file
        assert np.nanmax(file["shares/rendering/mean"][()]) > 0
    assert last_checkpoint(run).exists()
