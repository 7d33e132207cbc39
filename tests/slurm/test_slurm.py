"""The script of `splaxel-mpi job` on a real SLURM: runs, is preempted, starts again, goes on."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
CLUSTER = Path(__file__).with_name("cluster.sh")
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "setpriv")
LAUNCHED = any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
missing = [name for name in NEEDED if not shutil.which(name)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(LAUNCHED, reason="starts ranks itself"),
    pytest.mark.skipif(bool(missing), reason="no SLURM here (Debian: apt-get install slurmctld "
                       f"slurmd slurm-client munge): {', '.join(missing)} not found"),
    pytest.mark.skipif(os.getuid() != 0, reason="SLURM's daemons need root"),
]


class Cluster:
    """Two nodes, and a folder to submit from."""

    def __init__(self, folder, place):
        self.folder = folder
        self.env = dict(os.environ, SLURM_CONF=str(place / "slurm.conf"),
                        SPLAXEL_PROFILE=str(folder / "profile.sh"))
        # what a login node has no more than a node: the job's environment comes from its profile
        for name in [name for name in self.env if name.startswith(("OMPI_", "PMIX_", "PYTHON"))]:
            del self.env[name]
        program = folder / "bin" / "splaxel-mpi"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m splaxel_mpi "$@"\n')
        program.chmod(0o755)
        # two nodes of one machine have the same names in shared memory: messages go by TCP
        (folder / "profile.sh").write_text(
            f'. "{ROOT}/tools/mpi-env.sh"\n'
            f'export PATH="{program.parent}:$PATH" PYTHONPATH="{ROOT}"\n'
            "export OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo\n"
        )

    def __call__(self, *command, **options):
        done = subprocess.run([str(part) for part in command], env=self.env, cwd=self.folder,
                              timeout=30, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, **options)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def state(self, job):
        """Fields of a job as scontrol shows them."""
        return dict(re.findall(r"(\w+)=(\S*)", self("scontrol", "show", "job", job)))

    def wait_for(self, job, done, seconds=90):
        """State and log of a job, once done(state, log) is true."""
        end = time.monotonic() + seconds
        while True:
            state = self.state(job)
            log = "".join(path.read_text() for path in self.folder.glob(f"*-{job}.log"))
            if done(state, log):
                return state, log
            assert time.monotonic() < end, f"{state['JobState']} {state['Reason']}\n{log}"
            time.sleep(0.3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Cluster, taken down at the end."""
    # pytest's own folders are closed to other users, and munge's daemon is one
    place = Path(tempfile.mkdtemp(prefix="slurm-"))
    place.chmod(0o755)
    try:
        subprocess.run([CLUSTER, "start", place], check=True, timeout=60)
        yield Cluster(tmp_path_factory.mktemp("submit"), place)
    finally:
        subprocess.run([CLUSTER, "stop", place], check=True, timeout=60)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def submit(cluster, city, tmp_path):
    """Function (*options) that submits an endless run on two nodes: (job, folder, settings)."""
    jobs = []

    def send(*options):
        settings = tmp_path / "run.yaml"
        write(settings, city, tmp_path, 10**6)
        text = cluster(
            cluster.folder / "bin" / "splaxel-mpi", "job", settings, "backend.threads=1",
            "--nodes", 2, "--ranks-per-node", 1, "--cpus-per-rank", 1, "--shared",
            "--time", "0:30:00", "--lead", 60, "--partition", "low", *options,
        )
        script = cluster.folder / "train.sbatch"
        script.write_text(text)
        jobs.append(cluster("sbatch", "--parsable", script).strip())
        return jobs[-1], tmp_path / "run", settings

    cluster.env["PYTHONPATH"] = str(ROOT)
    yield send
    for job in jobs:
        if cluster.state(job)["JobState"] not in ENDS:
            cluster("scancel", job)
            cluster.wait_for(job, lambda state, log: state["JobState"] in ENDS)


def write(path, city, folder, images):
    path.write_text(yaml.safe_dump(dict(
        data=dict(path=str(city)), run=dict(folder=str(folder)), log=dict(every=8),
        train=dict(images=images, batch=4), backend=dict(name="host"),
        densify=dict(method="none"), evaluate=dict(pictures=0),
    )))


def trained(state, log):
    """Whether a job is at work."""
    return re.search(r"\d+/\d+ images", log)


def test_run_preempt_requeue_resume_finish(cluster, submit, city, tmp_path):
    job, run, settings = submit()
    cluster.wait_for(job, trained)
    cluster("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null",
            "--wrap=true")
    stopped = r"stopped after (\d+) of 1000000 images, since SIGTERM"
    _, log = cluster.wait_for(job, lambda state, log: re.search(stopped, log))
    seen = int(re.search(stopped, log)[1])
    write(settings, city, tmp_path, seen + 16)  # for the next start, some seconds from now
    state, log = cluster.wait_for(job, lambda state, log: state["JobState"] in ENDS)
    assert (state["JobState"], state["Restarts"]) == ("COMPLETED", "1"), log
    assert "start 2, splaxel-mpi" in log and f"resumed after {seen} of {seen + 16} images" in log
    summary = json.loads((run / "summary.json").read_text())
    assert summary["images_seen"] == seen + 16 and summary["ranks"] == 2
    assert (run / "model.ply").exists() and not (run.parent / "run.1").exists()


@pytest.mark.parametrize("launcher, options", [("pmix", []), ("mpirun", ["--batch"])])
def test_near_its_time_limit_a_job_asks_for_another_start(cluster, submit, launcher, options):
    """The signal that SLURM sends then: to all ranks, or to the script."""
    job, run, _ = submit("--launcher", launcher)
    cluster.wait_for(job, trained)
    cluster("scancel", *options, "--signal=USR1", job)
    _, log = cluster.wait_for(job, lambda state, log: state["Restarts"] == "1")
    assert "since SIGUSR1" in log and "another start" in log
    assert len(list(run.glob("checkpoints/checkpoint_*.h5"))) == 1


def test_a_cancelled_job_stays_away(cluster, submit):
    job, run, _ = submit()
    cluster.wait_for(job, trained)
    cluster("scancel", job)
    cluster.wait_for(job, lambda state, log: state["JobState"] == "CANCELLED")
    state, log = cluster.wait_for(job, lambda state, log: "since SIGTERM" in log)
    assert len(list(run.glob("checkpoints/checkpoint_*.h5"))) == 1
    assert "another start" not in log and state["Restarts"] == "0"
