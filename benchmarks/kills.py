"""Kill training runs again and again, and see that nothing but an interval is lost.

    python benchmarks/kills.py [--kills 100] [--ranks 2 3 4] [--seed 0] [--folder DIR]
        [SETTING=VALUE ...]

A small city is trained on each rank count without a break, for reference. Then runs of the same
settings are killed with SIGKILL, all processes at once or one rank alone, at a random moment: any
time from the launch on, while a checkpoint is being written, or while the metrics are. After each
kill every checkpoint must verify, the metrics must be readable, and no more than one interval of
checkpoints may be lost of the images that the log tells of. Then the run resumes, which must go
on from the newest checkpoint, and is killed again. A run that comes to its end must equal the
unbroken one bit for bit, and so must its losses; then the next rank count has its turn.

Prints a line for each kill and a table. The exit status is 0 only if all of that held.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import h5py
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from splaxel_mpi.checkpoint.read import Reader  # noqa: E402
from splaxel_mpi.checkpoint.resume import checkpoints, images_of  # noqa: E402
from splaxel_mpi.data.city import make_city  # noqa: E402
from splaxel_mpi.evaluate.series import read_series  # noqa: E402

BATCH, EVERY, IMAGES = 4, 12, 120
SETTINGS = [
    f"train.images={IMAGES}", f"train.batch={BATCH}", f"checkpoint.every={EVERY}",
    f"log.every={BATCH}", "checkpoint.keep=3", "checkpoint.keep_every=40", "train.sh_every=16",
    "densify.start=8", "densify.every=16", "densify.stop=0.9", "densify.reset_every=64",
    "densify.threshold=1e-4", "evaluate.pictures=0", "backend.threads=1", "backend.name=host",
]
# Kills after which a run is left to come to its end, so that all rank counts have their turn.
KILLS = 6
# Seconds: the longest wait for a moment to kill, and for a launcher to end after a kill.
PATIENCE, END = 40, 30
# Longest time from the launch after which "any" kills; a run of these settings takes about 20 s.
ANY = 20.0


class Run:
    """A folder in which one training is started, killed and resumed."""

    def __init__(self, city, folder, ranks, settings):
        self.folder, self.ranks, self.process = folder / "run", ranks, None
        self.command = [
            os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks), sys.executable, "-m", "mpi4py",
            "-m", "splaxel_mpi", "train", str(folder / "run.yaml"), *SETTINGS, *settings,
        ]
        folder.mkdir(parents=True)
        (folder / "run.yaml").write_text(
            f"data: {{path: '{city}'}}\nrun: {{folder: '{folder}', name: run}}\n"
        )
        self.output, self.told = folder / "output.txt", 0  # bytes of the log before this start

    def start(self):
        """Launch the job, resuming where there is something to go on from."""
        resume = ["--resume"] if checkpoints(self.folder / "checkpoints") else []
        log = self.folder / "log.txt"
        self.told = log.stat().st_size if log.exists() else 0
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with open(self.output, "w") as output:
            self.process = subprocess.Popen(
                self.command + resume, stdout=output, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env=dict(os.environ, PYTHONPATH=path),
            )

    def alive(self):
        return self.process.poll() is None

    def kill(self, draw):
        """SIGKILL all processes of the job, or one rank; returns what was killed."""
        ranks = children(self.process.pid)
        if ranks and draw.random() < 0.3:
            victims, name = [draw.choice(ranks)], "one rank"
        else:
            victims, name = [self.process.pid, *ranks], "all"
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            self.process.wait(END)
        except subprocess.TimeoutExpired:
            name = "one rank; mpirun had to be killed too"
            for pid in (self.process.pid, *children(self.process.pid)):
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
        wait_gone(ranks)
        return name


def children(pid):
    """Process ids of the children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it has ended meanwhile
        if int(text.rpartition(")")[2].split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def wait_gone(pids):
    """Wait until processes have ended: the next job needs the lock of the folder."""
    end = time.monotonic() + END
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.01)


def wait_moment(run, moment, draw):
    """Wait for a moment to kill; False where the run ended before."""
    end = time.monotonic() + (draw.uniform(0, ANY) if moment == "any" else PATIENCE)
    pattern = {
        "checkpoint": ("checkpoints", ".checkpoint_*.partial"),
        "metrics": (".", ".metrics*.partial"),
    }.get(moment)
    skip = draw.randrange(3)  # of the first writes
    seen = False
    while run.alive() and time.monotonic() < end:
        if pattern:
            there = any((run.folder / pattern[0]).glob(pattern[1]))
            if there and not seen:
                if skip == 0:
                    time.sleep(draw.choice([0, draw.uniform(0, 0.01), draw.uniform(0, 0.5)]))
                    return True
                skip -= 1
            seen = there
        time.sleep(0.0005)
    return run.alive()


def last_trained(run):
    """Largest image count that the log of a run tells of since its last start, or 0."""
    log = run.folder / "log.txt"
    text = log.read_bytes()[run.told:].decode(errors="replace") if log.exists() else ""
    return max(map(int, re.findall(rf" (\d+)/{IMAGES} images", text)), default=0)


def check_killed(run):
    """What a killed run left; (newest image count or 0, images lost). Raises where it is bad."""
    folder = run.folder
    paths = checkpoints(folder / "checkpoints")
    for path in paths:
        with Reader(path) as reader:
            reader.verify()
    newest = images_of(paths[0]) if paths else 0
    if (folder / "metrics.h5").exists():
        images = read_series(folder / "metrics.h5")["images_seen"]
        require(images.max(initial=0) >= newest - BATCH, "metrics end before the checkpoint")
    else:
        require(not paths, "there is a checkpoint and no metrics")
    lost = max(last_trained(run) - newest, 0)
    require(lost <= EVERY, f"{lost} images are lost")
    return newest, lost


def require(true, message):
    if not true:
        raise AssertionError(message)


def check_resumed(run, expected):
    """The last start must have gone on from the newest checkpoint, where it came that far."""
    found = re.findall(r"resumed after (\d+) of", run.output.read_text(errors="replace"))
    require(not found or int(found[-1]) == expected, f"resumed from {found}, not {expected}")
    return bool(found)


def rows_of(path):
    """Bytes of every data set of Gaussians and moments in a checkpoint."""
    rows = {}

    def collect(name, item):
        if isinstance(item, h5py.Dataset) and name.split("/")[0] in ("gaussians", "adam"):
            rows[name] = item[()].tobytes()

    with h5py.File(path, "r") as file:
        file.visititems(collect)
    return rows


def check_equal(folder, reference):
    """A finished run must equal the unbroken one."""
    one, two = (checkpoints(place / "checkpoints")[0] for place in (folder, reference))
    require(rows_of(one) == rows_of(two), "the finished run differs from the unbroken one")
    one, two = (read_series(place / "metrics.h5") for place in (folder, reference))
    kept = [np.isfinite(series["loss"]) for series in (one, two)]
    for name in ("images_seen", "loss"):
        same = np.array_equal(one[name][kept[0]], two[name][kept[1]])
        require(same, f"{name} of the finished run differs")


def finish(run, timeout=300):
    """Let a run come to its end."""
    run.process.wait(timeout)
    require(run.process.returncode == 0, f"failed:\n{run.output.read_text()[-2000:]}")


class Campaign:
    """Runs that are killed until there were enough kills."""

    def __init__(self, arguments, folder):
        self.folder, self.kills, self.ranks = folder, arguments.kills, arguments.ranks
        self.settings, self.draw = arguments.settings, random.Random(arguments.seed)
        self.count, self.runs, self.resumes, self.equal = 0, 0, 0, 0
        self.lost, self.moments = [], Counter()
        self.city = folder / "city"
        make_city(str(self.city), extent=40.0, views=16, width=80, height=45, points=400,
                  samples=1, threads=1)

    def start(self):
        """Train the references, then kill."""
        references = {}
        for ranks in self.ranks:
            run = Run(self.city, self.folder / f"reference-{ranks}", ranks, self.settings)
            run.start()
            finish(run)
            references[ranks] = run.folder
            print(f"reference on {ranks} ranks is trained", flush=True)
        while self.count < self.kills:
            ranks = self.ranks[self.runs % len(self.ranks)]
            self.runs += 1
            self.break_run(ranks, references[ranks])

    def break_run(self, ranks, reference):
        """One run, killed until it comes to its end or there are enough kills; then it ends."""
        run = Run(self.city, self.folder / f"run-{self.runs}", ranks, self.settings)
        newest, kills = 0, self.count
        while True:
            run.start()
            moment = self.draw.choice(["any", "checkpoint", "checkpoint", "metrics"])
            enough = self.count >= min(self.kills, kills + KILLS)
            if enough or not wait_moment(run, moment, self.draw):
                finish(run)
                self.resumes += check_resumed(run, newest)
                check_equal(run.folder, reference)
                self.equal += 1
                print(f"run {self.runs} on {ranks} ranks is finished and equal", flush=True)
                return
            what = run.kill(self.draw)
            self.count += 1
            self.resumes += check_resumed(run, newest)
            newest, lost = check_killed(run)
            self.lost.append(lost)
            self.moments[moment] += 1
            print(f"kill {self.count}: run {self.runs}, {ranks} ranks, {what}, {moment}: "
                  f"checkpoint {newest}, lost {lost} images", flush=True)

    def report(self):
        """The table."""
        print("\n| figure | value |\n| --- | --- |")
        print(f"| kills | {self.count} |")
        for moment, count in sorted(self.moments.items()):
            print(f"| kills, {moment} | {count} |")
        print(f"| resumed from the newest checkpoint | {self.resumes} |")
        print(f"| finished and equal to the unbroken run, bit for bit | {self.equal} |")
        print(f"| images lost, most (interval {EVERY}) | {max(self.lost, default=0)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where the runs go, on the disk to be tried")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        campaign = Campaign(arguments, Path(folder))
        campaign.start()
    campaign.report()


if __name__ == "__main__":
    main()
