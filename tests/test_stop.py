"""Runs that are asked to stop: a checkpoint, a status of their own, and they go on as if nothing
had been."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runs import SHORT, assert_same, last_checkpoint, shared_folder, train
from splaxel_mpi import config, log
from splaxel_mpi.cli import STOPPED
from splaxel_mpi.mpi.watchdog import Word, verdict
from splaxel_mpi.times import seconds_of
from splaxel_mpi.train import job
from splaxel_mpi.train.stopping import Stop

ROOT = Path(__file__).resolve().parent.parent
LAUNCHED = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))
ENDLESS = ["train.images=1000000", "train.batch=4", "log.every=8", "densify.method=none",
           "backend.threads=1", "backend.name=host"]

pytestmark = pytest.mark.timeout(180)


class Asked:
    """Stands in for StopSignals: asks at once."""

    asked = signal.SIGUSR1

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Run:
    """An endless training under mpirun whose ranks can be signalled."""

    def __init__(self, city, folder, ranks, *overrides):
        if LAUNCHED:
            pytest.skip("starts mpirun itself")
        settings = folder / "run.yaml"
        settings.write_text(f"data: {{path: '{city}'}}\nrun: {{folder: '{folder}'}}\n")
        self.folder, self.lines = folder / "run", []
        self.process = subprocess.Popen(
            [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks), sys.executable, "-m",
             "splaxel_mpi", "train", str(settings), *ENDLESS, *overrides],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        try:
            self.wait_for(r"\b\d+/1000000 images")
            self.ranks = self._ranks()
            assert len(self.ranks) == ranks
        except BaseException:
            self.process.kill()
            raise

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait_for(self, pattern, seconds=60):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            assert time.monotonic() < end and self.process.poll() is None, self.text
            time.sleep(0.05)

    def _ranks(self):
        """Process of each rank, by rank."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]) != \
                        self.process.pid:
                    continue
            except OSError:
                continue
            for one in environ:
                if one.startswith((b"OMPI_COMM_WORLD_RANK=", b"PMI_RANK=")):
                    found[int(one.split(b"=")[1])] = int(entry.name)
        return [found[rank] for rank in sorted(found)]

    def end(self, seconds=60):
        """Exit status; never leaves a process behind."""
        try:
            status = self.process.wait(seconds)
        finally:
            for one in self.ranks if self.process.poll() is None else ():
                os.kill(one, signal.SIGKILL)
            self.process.kill()
        self.reader.join(10)
        return status


@pytest.fixture
def start(city, tmp_path):
    """Function (ranks, *overrides) that starts a Run."""
    runs = []

    def start_run(*arguments):
        runs.append(Run(city, tmp_path, *arguments))
        return runs[-1]

    yield start_run
    for run in runs:
        if run.process.poll() is None:
            for one in run.ranks:
                os.kill(one, signal.SIGKILL)
            run.process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("ranks, to, number", [
    (4, "mpirun", signal.SIGUSR1), (3, "one", signal.SIGTERM), (1, "one", signal.SIGUSR2),
])
def test_a_signal_stops_with_a_checkpoint(start, ranks, to, number):
    run = start(ranks)
    asked = time.monotonic()
    os.kill(run.process.pid if to == "mpirun" else run.ranks[-1], number)
    assert run.end() == STOPPED, run.text
    took = time.monotonic() - asked
    name = signal.Signals(number).name
    stopped = re.search(rf"stopped after (\d+) of 1000000 images, since {name}", run.text)
    assert stopped and "Traceback" not in run.text
    assert last_checkpoint(run.folder).name == f"checkpoint_{int(stopped[1]):012d}.h5"
    assert took < 20, "a step takes a fraction of a second"


@pytest.mark.slow
def test_a_second_signal_ends_at_once(start, tmp_path):
    run = start(2)
    os.kill(run.ranks[0], signal.SIGSTOP)  # so that there is no end of the step
    os.kill(run.ranks[1], signal.SIGTERM)
    os.kill(run.ranks[1], signal.SIGTERM)  # the same one, sent on by a launcher
    time.sleep(2.5)
    assert run.process.poll() is None
    os.kill(run.ranks[1], signal.SIGUSR2)
    status = run.end(15)
    assert status not in (0, STOPPED) and "SIGUSR2, the second signal" in run.text
    assert not list(run.folder.rglob("checkpoint_*.h5"))


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [2, 0])
def test_the_watchdog_names_a_stopped_rank(start, stopped):
    run = start(3, "mpi.timeout=8")
    since = time.monotonic()
    os.kill(run.ranks[stopped], signal.SIGSTOP)
    run.wait_for("error: no progress", 20)
    took = time.monotonic() - since
    assert run.end(20) not in (0, STOPPED)
    named = f"rank {stopped} (process {run.ranks[stopped]} on "
    line = next(line for line in run.lines if "error: no progress within 8 s" in line)
    assert named in line and "gave no answer" in line
    assert took < 8.5, "within its limit, and the time of a look"
    for rank in {0, 1, 2} - {stopped}:
        assert f"[rank {rank}] thread MainThread" in run.text
        assert re.search(rf"\[rank {rank}\] for [\d.]+ s in: \w", run.text)


@pytest.mark.slow
def test_the_watchdog_lets_a_suspended_job_go_on(start):
    run = start(2, "mpi.timeout=10")
    for number, seconds in ((signal.SIGSTOP, 12), (signal.SIGCONT, 2)):
        for one in run.ranks:
            os.kill(one, number)
        time.sleep(seconds)
    assert run.process.poll() is None, run.text
    os.kill(run.process.pid, signal.SIGUSR1)
    assert run.end() == STOPPED and "no progress" not in run.text


@pytest.mark.mpi
def test_a_stopped_run_ends_as_one_that_was_not(comm, city, tmp_path_factory):
    folder = shared_folder(comm, tmp_path_factory)
    whole = train(city, folder / "whole", comm)
    text = f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {folder / 'cut'}\n"
    settings = config.parse(text, "test", SHORT)
    for _ in range(2):  # the second time from a checkpoint of the first
        try:
            assert "time limit" in job.run(settings, job.IF_ANY, comm, time.monotonic())
        finally:
            log.close()
    cut = folder / "cut" / "small"
    comm.barrier()
    assert [p.name for p in sorted((cut / "checkpoints").glob("*.h5"))] == [
        "checkpoint_000000000004.h5", "checkpoint_000000000008.h5",
    ]
    comm.barrier()
    train(city, folder / "cut", comm, resume=job.IF_ANY)
    assert_same(last_checkpoint(whole), last_checkpoint(cut))
    assert (cut / "model.ply").exists()


def test_a_benchmark_is_not_made_of_half_a_run(city, tmp_path, alone, monkeypatch):
    from splaxel_mpi.errors import UserError
    from splaxel_mpi.tools.bench import trainings

    monkeypatch.setattr(trainings.job, "StopSignals", Asked)
    text = f"data:\n  path: {city}\nrun:\n  folder: {tmp_path}\n"
    try:
        with pytest.raises(UserError, match="stopped before its end, since SIGUSR1"):
            trainings.measure(config.parse(text, "test", SHORT), alone)
    finally:
        log.close()


@pytest.mark.mpi
def test_ranks_agree_on_what_one_was_asked(comm):
    class Silent:
        asked = 0

    stop = Stop(comm, Silent())
    assert not any(stop.step_ended() for _ in range(3)) and stop.reason is None
    stop.signals = Asked() if comm.rank == comm.size - 1 else Silent()
    stop.begin()
    assert stop.agreed() and stop.reason == "SIGUSR1"
    stop.close()


@pytest.mark.mpi
def test_the_clock_of_the_root_decides(comm):
    class Silent:
        asked = 0

    now = time.monotonic()
    stop = Stop(comm, Silent(), now + 3600 if comm.rank == 0 else now - 1)
    assert not stop.agreed()
    stop.wrote(2000)  # two writes of this kind do not fit any more
    assert stop.agreed() and stop.reason == "the time limit is near"
    stop.close()


@pytest.mark.parametrize("text, seconds", [
    ("90", 5400), ("1:30", 90), ("12:00:00", 43200), ("1-0", 86400), ("1-02:30", 95400),
    ("2-00:00:01", 172801),
])
def test_times_are_read_as_slurm_reads_them(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "soon", "1:2:3:4", "-5", "1.5", "9" * 30])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError):
        seconds_of(text)


def test_who_holds_up_whom_is_told():
    places = [("n1", 10 + rank, 1) for rank in range(4)]
    waiting = Word("exchange, collectives", 9.0, 50)
    line = verdict({0: waiting, 1: Word("photographs", 9.0, 48), 2: waiting, 3: waiting}, places)
    assert line.startswith("rank 1 (process 11 on n1) is furthest behind, in photographs")
    assert "ranks 0, 2, 3 in exchange, collectives" in line
    line = verdict({0: waiting, 3: waiting}, places)
    assert line.startswith("rank 1 (process 11 on n1), rank 2 (process 12 on n1) gave no answer")
