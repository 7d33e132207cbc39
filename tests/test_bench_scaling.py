"""`splaxel-mpi bench scaling-table` and `fit`, links, time limits, and tests/gpu/scaling.sh."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from exchanges import exchange_of

from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.cli import cli
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi import world
from splaxel_mpi.tools.bench import cost_model, fit, links, scaling, scaling_model
from splaxel_mpi.tools.bench.city_run import OURS, make_config
from splaxel_mpi.tools.bench.scaling import Study

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "gpu" / "scaling.sh"
SMALL = ["backend.name=host", "backend.threads=1"]
SETTINGS = dict(gaussians=(5000,), per_rank=None, side=150.0, kinds=("aerial",), count=2,
                size=(64, 48), ranks=[1], model=[2], variants=("ours",), transports=(),
                bandwidth=None, latency=None, limit=None)
FIT = dict(gaussians=20_000, side=150.0, count=2, size=(64, 48), shares=(1.0,), limit=None)


def row(ranks, source="measured", rate=10.0, **more):
    """A row of a report."""
    shares = dict(rendering=0.5, back_propagation=0.2, communication=0.1, waiting=0.15, other=0.05)
    found = dict(scaling="strong", kind="street", gaussians=1000, side=150.0, variant="ours",
                 ranks=ranks, source=source, transport="nccl", images_per_second=rate,
                 total_bytes=2e6, active=0.9, balance=0.8, views=8)
    return dict(found, **(dict(shares=shares) if source == "measured" else {}), **more)


def write(path, rows):
    path.write_text(json.dumps(dict(rows=rows)))
    return str(path)


def test_one_table_of_several_runs(tmp_path):
    link = dict(bandwidth=100.0, latency=20.0, source="measured")
    strong = [row(1), row(2, rate=18.0, link=link, modelled=dict(images_per_second=16.2)),
              row(2, transport="staged", rate=12.0),
              row(8, "modelled", 60.0, link=link, costs=[0.0] * 5)]
    late = dict(scaling="weak", gaussians=4000, side=300.0, ranks=4, source="not run",
                reason="no time was left (--limit 9)", variant="ours", kind="aerial")
    files = [write(tmp_path / "a.json", strong), write(tmp_path / "b.json", [late])]
    done = CliRunner().invoke(cli, ["bench", "scaling-table", *files, "--figures",
                                    str(tmp_path / "drawn"), "--json", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()]
    assert lines[0][:6] == ["scaling", "views", "Gaussians", "variant", "transport", "ranks"]
    assert lines[1][4:9] == ["-", "1", "measured", "10.00", "1.00"]
    assert lines[2][4:9] == ["nccl", "2", "measured", "18.00", "1.80"]
    assert lines[2][-2:] == ["16.20", "(-10%)"]
    assert lines[3][4:9] == ["nccl", "8", "modelled", "60.00", "6.00"]
    assert lines[4][4:9] == ["staged", "2", "measured", "12.00", "1.20"]
    assert "nccl: 100 GB/s a rank, 20 us a message (measured)" in done.output
    assert "4,000 Gaussians, ours, aerial on 4 ranks: no time was left" in done.output
    assert len(json.loads((tmp_path / "c.json").read_text())["rows"]) == 5
    drawn = tmp_path / "drawn" / "strong-1000-street.png"
    assert [path.name for path in drawn.parent.iterdir()] == [drawn.name]
    assert drawn.read_bytes()[:4] == b"\x89PNG"


def test_weak_scaling_of_two_sizes_is_two_series(tmp_path):
    """Each is compared with one rank of its own, and has figures of its own."""
    rows = [row(n, rate=rate, scaling="weak", gaussians=size * n)
            for size, rates in ((500, (10.0, 20.0)), (900, (4.0, 6.0)))
            for n, rate in zip((1, 2), rates)]
    files = [write(tmp_path / "a.json", rows[:2]), write(tmp_path / "b.json", rows[2:])]
    done = CliRunner().invoke(cli, ["bench", "scaling-table", *files, "--figures",
                                    str(tmp_path / "drawn")])
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.output.splitlines()[1:5]]
    assert [(line[2], line[5], line[8]) for line in lines] == [
        ("500", "1", "1.00"), ("1,000", "2", "2.00"), ("900", "1", "1.00"), ("1,800", "2", "1.50")]
    names = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert names == ["weak-500-street.png", "weak-900-street.png"]


@pytest.mark.parametrize("text", [
    "no JSON", "[]", '{"rows": [{"ranks": 2}]}', '{"rows": 3}', "[" * 100_000])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    done = CliRunner().invoke(cli, ["bench", "scaling-table", str(tmp_path / "x.json")])
    assert isinstance(done.exception, UserError)
    assert "x.json: not a report of `splaxel-mpi bench scaling" in str(done.exception)


DAMAGED = {
    "source": "magic", "scaling": "some", "ranks": "x", "gaussians": 0, "kind": "../../up",
    "variant": "mine", "transport": 3, "images_per_second": float("nan"), "total_bytes": None,
    "active": [], "balance": float("inf"), "shares": 0.5, "modelled": {}, "link": {"a": 1},
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("source", ["measured", "modelled"])
def test_a_row_that_says_nonsense_is_named(tmp_path, name, source):
    """No traceback, no file beside the folder of figures."""
    if source == "modelled" and name in ("shares", "modelled"):
        pytest.skip("such rows have none")
    link = dict(bandwidth=100.0, latency=20.0, source="measured")
    rows = [row(1), dict(row(2, source, link=link), **{name: DAMAGED[name]})]
    done = CliRunner().invoke(cli, ["bench", "scaling-table", write(tmp_path / "x.json", rows),
                                    "--figures", str(tmp_path / "a" / "b")])
    assert isinstance(done.exception, UserError)
    assert "x.json: not a report" in str(done.exception) and "rows.1" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("source", ["measured", "modelled", "not run"])
def test_a_row_without_one_of_its_figures_is_named(tmp_path, source):
    link = dict(bandwidth=100.0, latency=20.0, source="measured")
    whole = row(2, source, link=link, reason="no time")
    needed = {"scaling", "gaussians", "ranks", "source"}
    needed |= {"reason"} if source == "not run" else {
        "kind", "variant", "images_per_second", "total_bytes", "active", "balance",
        "shares" if source == "measured" else "link"}
    for name in whole:
        part = {key: value for key, value in whole.items() if key != name}
        done = CliRunner().invoke(cli, ["bench", "scaling-table",
                                        write(tmp_path / "x.json", [part])])
        assert isinstance(done.exception, UserError) == (name in needed), (name, done.output)
        assert (done.exit_code == 0) == (name not in needed), name


def test_figures_that_cannot_be_drawn_are_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    for folder in ("file", "file/below", "x" * 300):
        done = CliRunner().invoke(cli, ["bench", "scaling", "--figures", str(tmp_path / folder)])
        assert isinstance(done.exception, UserError) and "cannot be written" in str(done.exception)
        assert "images/s" not in done.output


@pytest.mark.mpi(min_size=2)
def test_a_link_is_measured_and_leaves_no_trace(comm):
    exchange = exchange_of(comm)
    found = links.measure(exchange, HostBackend(np.float32, 1))
    assert comm.allgather(found) == [found] * comm.size and found.source == "measured"
    # any memory moves between a MB and a TB a second
    assert 1e-3 < found.bandwidth < 1e3 and 0 < found.latency < 1e6
    assert not exchange.bytes and not exchange.seconds


@pytest.mark.mpi(min_size=2)
def test_the_model_takes_the_measured_link(comm):
    lines, saved = [], []
    settings = dict(SETTINGS, ranks=[1, comm.size], model=[2 * comm.size])
    rows = scaling.run(settings, SMALL, comm, lines.append,
                       lambda rows: saved.append([dict(one) for one in rows]))
    if comm.rank:
        assert not saved
        return
    one, most, modelled = rows
    assert most["link"] == modelled["link"] and most["link"]["source"] == "measured"
    assert "link" not in one and "(measured)" in lines[-1]
    # after each run, so that what was done is kept whatever comes
    assert [one["ranks"] for one in saved[0]] == [1] and len(saved[1]) >= 1
    assert saved[-1][-1]["source"] == "modelled"


def test_nothing_begins_when_the_time_is_over(alone):
    with pytest.raises(UserError, match="no time was left"):
        scaling.run(dict(SETTINGS, limit=1e-9), SMALL, alone, print)


def test_larger_counts_come_in_the_order_of_their_worth(alone, monkeypatch):
    """Where time ends, the counts that calibrate and the largest are there."""
    seen = []
    monkeypatch.setattr(scaling.Scaling, "_measure",
                        lambda self, study, ranks, end: seen.append(ranks))
    bench = scaling.Scaling(dict(SETTINGS, ranks=[1, 2, 4, 8]), SMALL, alone, print)
    bench.measure()
    assert seen == [1, 2, 8, 4]


def load(ranks, stored, views=8):
    random = np.random.default_rng(ranks)
    drawn = random.uniform(0, 1e5, (views, ranks))
    return cost_model.Load(drawn, 3 * random.uniform(0, 1e5, (views, ranks)), stored,
                           0 * drawn, 0 * drawn[:, 0])


def epoch(load, costs, joint):
    """A Measured that took these costs."""
    ranks, order = load.ranks, np.arange(len(load.total))
    steps = np.split(order, len(order) // ranks)
    compute = np.array([load.features(views) @ costs for views in steps])
    compute += joint * ranks * (ranks > 1)
    return SimpleNamespace(seconds=2.0, watched=2.0, compute=compute, shown=order.tolist(),
                           batches=[ranks] * len(steps))


def test_what_ranks_that_exchange_do_besides_is_told_apart():
    costs, joint = np.array([2e-7, 5e-8, 1e-9, 3e-3]), 4e-3
    loads = [load(1, 1e6), load(2, 5e5), load(1, 4e6)]
    model = cost_model.CostModel.fit([epoch(one, costs, joint) for one in loads], loads, 1e9, 0.0)
    np.testing.assert_allclose(model.costs, costs, rtol=1e-6)
    assert model.joint == pytest.approx(joint)
    four = load(4, 2.5e5)
    config = make_config([], OURS, 4)
    config.train.order = "one-view"
    slowest = [(four.features([view]) @ costs).max() + joint for view in range(8)]
    found = model.predict(four, config)
    assert found["milliseconds"] == pytest.approx(1e3 * np.mean(slowest))


def test_smaller_views_tell_pixels_from_views():
    """Views of one size have as many pixels each: what a pixel takes looks like a view's share."""
    costs = np.array([2e-7, 5e-8, 0, 3e-3])
    whole, half = load(1, 1e6), load(1, 1e6)
    whole.pixels[:], half.pixels[:] = 4e5, 1e5
    points = [(epoch(whole, costs, 0), whole), (epoch(half, costs, 0), half)]
    alone = cost_model.CostModel.fit(*zip(*points[:1]), 1e9, 0.0)
    assert min(alone.costs[1], alone.costs[3]) == 0
    both = cost_model.CostModel.fit(*zip(*points), 1e9, 0.0)
    np.testing.assert_allclose(both.costs, costs, rtol=1e-6)


def test_one_rank_is_measured_with_smaller_views_too():
    from mpi4py import MPI

    world.init()
    bench = scaling.Scaling(SETTINGS, SMALL, MPI.COMM_SELF, lambda rows: None)
    bench.measure()
    bench.model()
    (study,) = bench.studies
    assert study.small["aerial", "ours"].images == 2
    cameras = [count.camera for count in study.small_counts["aerial"]]
    assert [(camera.width, camera.height) for camera in cameras] == [(32, 24)] * 2
    assert [row["source"] for row in study.rows] == ["measured", "modelled"]


def test_stored_gaussians_need_another_size():
    """One rank alone tells what a stored Gaussian costs only beside another city."""
    costs = np.array([2e-7, 5e-8, 1e-9, 3e-3])
    small, large = load(1, 1e6), load(1, 4e6)
    model = cost_model.CostModel.fit([epoch(small, costs, 0)], [small], 1e9, 0.0)
    np.testing.assert_allclose(model.costs, [2e-7, 5e-8, 0, 4e-3], rtol=1e-6, atol=1e-15)
    both = [small, large]
    model = cost_model.CostModel.fit([epoch(one, costs, 0) for one in both], both, 1e9, 0.0)
    np.testing.assert_allclose(model.costs, costs, rtol=1e-6)


def test_links_that_are_given_come_first():
    study = Study("strong", 1000, 150.0)
    study.links = {("nccl", 2): links.Link(80.0, 10.0, "measured"),
                   ("nccl", 4): links.Link(60.0, 20.0, "measured")}
    find = scaling_model._link
    nothing = dict(bandwidth=None, latency=None)
    assert find(study, "nccl", nothing) == study.links["nccl", 2]
    assert find(study, None, nothing) == links.ASSUMED
    assert find(study, "nccl", dict(nothing, bandwidth=5.0)) == links.Link(5.0, 10.0, "given")


@pytest.mark.mpi(min_size=2)
def test_fit_finds_the_fewest_ranks(comm):
    """A rank has room for 15,000 Gaussians, so that 20,000 need two."""
    lines = []
    given = [*SMALL, f"backend.memory={965 * 15_000}"]
    rows = fit.run(dict(FIT, shares=(0.5, 1.0)), given, comm, lines.append)
    assert [(one["ranks"], one["gaussians"]) for one in rows] == [
        (1, 20_000), (2, 20_000), (comm.size, comm.size * 7500), (comm.size, comm.size * 15_000)
    ]
    assert "rank 0 would hold 20000 of 20000" in rows[0]["result"]
    for one in rows[1:]:
        assert one["result"] == "fits" and one["budget"] == 965
        assert one["rows"] == pytest.approx(965, rel=1e-3)  # cells differ by a row or two
        assert one["peak"] > one["rows"] and min(one["milliseconds"].values()) > 0
    if comm.rank == 0:
        assert len(lines) == 4 + 5 and lines[4].startswith("Gaussians")


def test_fit_on_the_host_wants_a_bound(alone):
    with pytest.raises(UserError, match="backend.memory=1G"):
        fit.run(FIT, SMALL, alone, print)


def test_fit_wants_room_for_a_gaussian(alone):
    with pytest.raises(UserError, match="--share 1e-09 of .* holds no Gaussian"):
        fit.run(dict(FIT, shares=(0.7, 1e-9)), [*SMALL, "backend.memory=20M"], alone, print)


def test_fit_keeps_what_was_begun(alone, monkeypatch):
    """A try that ends the process is in the report."""
    saved = []

    def end(*arguments):
        raise RuntimeError("the job is gone")

    monkeypatch.setattr(fit, "_steps", end)
    with pytest.raises(RuntimeError):
        fit.run(FIT, [*SMALL, "backend.memory=50M"], alone, print,
                lambda rows: saved.append(rows[-1]["result"]))
    assert saved == ["begun, and not ended"]


def shell(folder, **variables):
    """tests/gpu/scaling.sh with variables of its own; what it prints, and its status."""
    env = {**os.environ, "OUT": str(folder), **variables}
    return subprocess.run(["bash", str(SCRIPT)], env=env, text=True, timeout=280,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_dry_run(mpirun, tmp_path):
    """The script that is for GPUs, on two CPU ranks."""
    done = shell(tmp_path, SCALING_DRY="1", SCALING_RANKS="2", SCALING_SIZE="2", PYTHON="python")
    assert done.returncode == 0, done.stdout
    report = json.loads((tmp_path / "scaling.json").read_text())
    found = {(one["scaling"], one["gaussians"], one["kind"], one["variant"], one["ranks"])
             for one in report["rows"] if one["source"] == "measured"}
    wanted = {(scaling, count * (ranks if scaling == "weak" else 1), kind, variant, ranks)
              for scaling, count in (("strong", 2000), ("strong", 8000), ("weak", 2000))
              for kind in ("street", "aerial") for variant in ("ours", "paper", "gaussian")
              for ranks in (1, 2)}
    assert found == wanted
    modelled = {one["ranks"] for one in report["rows"] if one["source"] == "modelled"}
    assert modelled == {4, 8}
    assert all("modelled" in one for one in report["rows"] if one["source"] == "measured")
    fits = json.loads((tmp_path / "fit.json").read_text())["rows"]
    assert [one["result"] == "fits" for one in fits] == [False, False, True, True]
    assert len(list((tmp_path / "figures").glob("*.png"))) == 6
    assert "all runs ended well" in (tmp_path / "log.txt").read_text()


FAKE = """#!/bin/bash
case "$*" in
*getDeviceCount*) echo 2 ;;
*"bench scaling-table"*) exec python "$@" ;;
*"bench scaling --no-strong"*) echo "weak: $*"; exit 3 ;;
*"bench scaling"*) echo "strong: $*"; cp "$REPORT" "$OUT/strong.json" ;;
*"bench fit"*) echo "fit: $*"; echo '{}' >"$OUT/fit.json" ;;
esac
"""
FAKE_MPI = '#!/bin/bash\necho "mpirun of $0: $*"\nwhile [ "$1" != FAKE ]; do shift; done; "$@"\n'


def test_script_on_two_gpus_of_which_a_run_fails(tmp_path):
    """With programs that stand for Python and MPI: what would be run, and that the rest goes on."""
    prefix = tmp_path / "mpi"
    for path, text in ((tmp_path / "FAKE", FAKE), (prefix / "bin" / "mpirun", FAKE_MPI)):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text.replace('!= FAKE', f'!= "{tmp_path / "FAKE"}"'))
        path.chmod(0o755)
    report = write(tmp_path / "report.json", [row(1), row(2, rate=18.0)])
    done = shell(tmp_path / "out", PYTHON=str(tmp_path / "FAKE"), REPORT=report,
                 SPLAXEL_CUDA_MPI=str(prefix), SCALING_SECONDS="400")
    text = done.stdout
    assert done.returncode == 1 and "weak: ended with status 3" in text, text
    strong, weak, fits = (next(line for line in text.splitlines() if line.startswith(name))
                          for name in ("strong: ", "weak: ", "fit: "))
    assert "--transport cuda-aware --transport staged --transport nccl" in strong
    assert "--model 4 --model 8 " in strong and "--per-rank 15M" in weak
    for line in (strong, weak, fits):
        assert "backend.name=cuda" in line and "--limit" in line
    assert text.count(f"mpirun of {prefix}") == 4 and "-n 2" in text and "--mca pml ucx" in text
    assert "some runs did not end well" in text
    assert (tmp_path / "out" / "figures" / "strong-1000-street.png").exists()
    # without that MPI: what is at hand
    done = shell(tmp_path / "out", PYTHON=str(tmp_path / "FAKE"), REPORT=report,
                 SPLAXEL_CUDA_MPI=str(tmp_path / "none"), SCALING_SECONDS="400",
                 MPIRUN=str(prefix / "bin" / "mpirun"))
    assert "the MPI at hand is taken" in done.stdout
    assert "--transport nccl --transport staged" in done.stdout
    assert "cuda-aware --transport" not in done.stdout


@pytest.mark.parametrize("name", ["SCALING_SECONDS", "SCALING_RANKS", "SCALING_SIZE"])
@pytest.mark.parametrize("value", ["x", "-1", "0", "08", "1e3", "a[$(touch pwned)]"])
def test_script_refuses_numbers_that_are_none(tmp_path, name, value):
    done = shell(tmp_path / "out", **{name: value})
    assert done.returncode == 2 and done.stdout.startswith(f"{name}={value}: expected a whole")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_script_takes_its_ranks_with_it(tmp_path, number, status):
    """A signal does not leave a run on the GPUs that nobody waits for."""
    for name, text in (("python", f"#!/bin/bash\nif [ $2 = splaxel_mpi ]; then echo $$ "
                        f">{tmp_path}/rank; exec sleep 60; fi\n"),
                       ("mpirun", FAKE_MPI.replace("FAKE", str(tmp_path / "python")))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = dict(os.environ, OUT=str(tmp_path), SCALING_DRY="1", PYTHON=str(tmp_path / "python"),
               MPIRUN=str(tmp_path / "mpirun"))
    running = subprocess.Popen(
        ["bash", str(SCRIPT)], env=env, stdout=subprocess.DEVNULL,
        # a shell cannot trap what was ignored when it started, as behind nohup
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    rank = int(wait_for(tmp_path / "rank"))
    running.send_signal(number)
    assert running.wait(20) == status
    for _ in range(200):  # an orphan is buried by somebody else
        if not Path(f"/proc/{rank}").exists():
            break
        time.sleep(0.05)
    else:
        os.kill(rank, signal.SIGKILL)
        pytest.fail("the rank goes on")


def wait_for(path):
    """Text of a file that a program is going to write."""
    for _ in range(600):
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} was never written")
