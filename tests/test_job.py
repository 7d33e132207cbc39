"""Batch scripts: right for the configuration, explained line by line, and as they are in jobs/."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from splaxel_mpi.errors import UserError
from splaxel_mpi.tools.job import Job, script

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = sorted((ROOT / "jobs").glob("*.sbatch"))


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {path: scene}\nrun: {name: mine}\ndensify: {limit: 1000000}\n")
    return str(path)


def requests(text):
    """{option: value} of the #SBATCH lines."""
    lines = [line[len("#SBATCH --"):] for line in text.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_every_kind_of_script_is_there():
    assert {path.stem for path in SCRIPTS} == {
        "one_node", "several_nodes", "requeue", "ablation_array", "cpu_smoke",
    }


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_what_their_command_prints(path):
    text = path.read_text()
    made = next(line for line in text.splitlines() if line.startswith("#   splaxel-mpi job"))
    done = subprocess.run(
        [sys.executable, "-m", "splaxel_mpi", *shlex.split(made[1:])[1:]], cwd=ROOT, text=True,
        capture_output=True, timeout=60, env=dict(os.environ, PYTHONPATH=str(ROOT)),
    )
    assert done.returncode == 0 and done.stdout == text, done.stderr


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here")
def test_shellcheck_finds_nothing(settings, tmp_path):
    paths = [*SCRIPTS, ROOT / "jobs" / "profile.sh.example", ROOT / "tests/slurm/cluster.sh"]
    for launcher in ("pmi2", "mpirun"):
        for requeue in (True, False):
            path = tmp_path / f"{launcher}-{requeue}.sbatch"
            path.write_text(script(settings, [], Job(launcher=launcher, requeue=requeue)))
            paths.append(path)
    done = subprocess.run(["shellcheck", *paths], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_request_is_explained(path):
    lines = path.read_text().splitlines()
    for before, line in zip(lines, lines[1:]):
        if line.startswith("#SBATCH"):
            assert before.startswith("# ") and len(before) > 8, line


def test_gpus(settings):
    text = script(settings, [], Job(nodes=4, gpus=8, time="12:00:00", account="me"))
    asked = requests(text)
    assert asked["nodes"] == "4" and asked["gpus-per-node"] == asked["ntasks-per-node"] == "8"
    assert asked["time"] == "12:00:00" and asked["job-name"] == "mine" and asked["account"] == "me"
    assert asked["signal"].startswith("USR1@") and "requeue" in asked and "exclusive" in asked
    assert "srun --mpi=pmix" in text and "backend.name=cuda" in text and "--gpu-bind=none" in text
    assert "--continue" in text and "scontrol requeue" in text


def test_cpus(settings):
    text = script(settings, ["train.images=10"], Job(ranks=16, cores=2, shared=True,
                                                     launcher="mpirun", requeue=False))
    asked = requests(text)
    assert asked["ntasks-per-node"] == "16" and asked["cpus-per-task"] == "2"
    assert asked["signal"].startswith("B:USR1@") and "exclusive" not in asked
    assert "gpus-per-node" not in asked and "no-requeue" in asked
    assert "mpirun -n 16" in text and "scontrol" not in text and "train.images=10" in text


def test_a_larger_scene_is_told_earlier(settings):
    small, large = (requests(script(settings, [f"densify.limit={n}"], Job(time="1-0")))["signal"]
                    for n in (10**6, 10**9))
    assert int(small.split("@")[1]) < 130 and int(large.split("@")[1]) > 3000


def test_an_array_has_a_run_for_each_combination(settings):
    text = script(settings, [], Job(), ["boundary=exact,none", "train.batch=1,2"])
    assert requests(text)["array"] == "0-3" and requests(text)["output"] == "%x-%A_%a.log"
    assert "'boundary=none train.batch=2 run.name=mine-none-2'" in text


def test_names_with_spaces_stay_whole(tmp_path):
    path = tmp_path / "my run; rm -rf $HOME.yaml"
    path.write_text("data: {path: scene}\n")
    assert shlex.quote(str(path)) in script(str(path), [], Job())


@pytest.mark.parametrize("overrides, job, varied, message", [
    (["backend.name=host"], Job(gpus=4), [], "backend.name is host"),
    (["backend.name=cuda"], Job(), [], "--gpus-per-node"),
    ([], Job(gpus=2, ranks=4), [], "share"),
    ([], Job(time="soon"), [], "--time: 'soon' is no time"),
    ([], Job(time="0:03:00"), [], "too short"),
    (["train.imges=3"], Job(), [], "did you mean train.images"),
    ([], Job(), ["boundary"], "--vary boundary"),
    ([], Job(), ["boundary=exact,never"], "one of exact, filter, none"),
    ([], Job(), ["data.path=a b"], "plain values"),
    ([], Job(), ["boundary=exact,exact"], "twice"),
])
def test_mistakes_are_told_before_the_queue(settings, overrides, job, varied, message):
    with pytest.raises(UserError, match=message):
        script(settings, overrides, job, varied)
