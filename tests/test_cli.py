"""The command line, as a user runs it: help, exit statuses, one line for a mistake."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import splaxel_mpi

ROOT = Path(__file__).resolve().parent.parent

# The command with a stand-in for the training: what it does is said by its first argument.
WITH_JOB = """
import sys, time, types
job = types.ModuleType("splaxel_mpi.train.job")
def run(config, resume, comm, deadline):
    left = None if deadline is None else round(deadline - time.monotonic(), -1)
    print("images", config.train.images, "resume", resume, "ranks", comm.size, "left", left)
    what = sys.argv[1]
    if what == "stop": return "the time limit is near"
    if what == "fail": raise ZeroDivisionError("in the loop")
    if what == "interrupt": raise KeyboardInterrupt
    if what == "mistake":
        from splaxel_mpi.errors import UserError
        raise UserError("image 3\\nis torn")
job.run, job.IF_ANY = run, "if any"
sys.modules["splaxel_mpi.train.job"] = job
from splaxel_mpi.cli import main
main(sys.argv[2:])
"""


def python(*arguments, **variables):
    """Completed process of Python with these arguments, and with the package importable."""
    env = {**os.environ, **variables}
    env["PYTHONPATH"] = os.pathsep.join([*variables.get("PYTHONPATH", "").split(), str(ROOT)])
    return subprocess.run([sys.executable, *map(str, arguments)], env=env, timeout=60,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def command(*arguments, **variables):
    return python("-m", "splaxel_mpi", *arguments, **variables)


# The same for the maker of the city.
WITH_CITY = """
import sys, types
city = types.ModuleType("splaxel_mpi.data.city")
def make_city(folder, comm, threads, progress, **options):
    assert threads >= 1
    for done in range(1, options["views"] + 1): progress(done, options["views"])
    print(folder, comm.size, sorted(options.items()))
city.make_city = make_city
sys.modules["splaxel_mpi.data.city"] = city
from splaxel_mpi.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {path: scene}\n")
    return path


@pytest.mark.parametrize(
    "name, words",
    [
        ("", ["train", "synth", "config", "mpirun -n 4", "srun --mpi=pmix"]),
        ("job", ["--gpus-per-node", "--time", "--vary", "--launcher", "sbatch"]),
        ("train", ["--resume", "--continue", "--time-limit", "75",
                   "CONFIG", "KEY=VALUE", "mpirun -n 4", "srun --mpi=pmix"]),
        ("synth", ["city"]),
        ("synth city", ["--extent", "--views", "--aerial", "--width", "--height", "--seed",
                        "--points", "--samples", "mpirun -n 4", "default: 120"]),
        ("info", ["FILE", "--config"]),
        ("verify", ["FILE...", "whole"]),
        ("upgrade", ["FILE...", "older versions"]),
        ("config", ["show", "train:", "ssim_weight: 0.2", "path: null"]),
        ("config show", ["CONFIG", "KEY=VALUE", "train.images=6000"]),
        ("kernels", ["build", "report"]),
        ("kernels build", ["--arch", "--out", "SPLAXEL_KERNELS", "backend.kernels=DIR"]),
        ("kernels report", ["--arch", "sm_80,sm_90,sm_100", "PyCUDA"]),
    ],
)
def test_help_is_complete(name, words):
    done = command(*name.split(), "--help")
    assert done.returncode == 0 and not done.stderr
    assert "Exit status: 0 done; 1 failure" in done.stdout
    for word in words:
        assert word in done.stdout, word


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom splaxel_mpi.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print([m for m in ('numpy', 'pydantic', 'mpi4py', 'h5py', 'yaml', 'tqdm')"
        " if m in sys.modules])"
    )
    assert python("-c", code).stdout.splitlines()[-1] == "[]"


def test_version():
    assert command("--version").stdout.strip().endswith(splaxel_mpi.__version__)


def test_config_show_prints_effective_settings(settings):
    done = command("config", "show", settings, "train.images=77")
    assert done.returncode == 0
    assert "images: 77" in done.stdout and "path: scene" in done.stdout
    assert "path: null" in command("config", "show").stdout
    assert "images: 77" in command("config", "show", "train.images=77", "data.path=x").stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train"], "Missing argument 'CONFIG' (see splaxel-mpi train --help)"),
        (["train", "x.yaml", "--resum"], "No such option"),
        (["tarin"], "No such command 'tarin'"),
        (["synth", "city", "x", "--views", "0"], "Invalid value for '--views'"),
        (["config", "show", "none.yaml"], "none.yaml: cannot be read: No such file"),
        (["config", "show", "data.path=x", "train.imagse=3"], "did you mean train.images?"),
        (["train", "none.yaml"], "none.yaml: cannot be read: No such file"),
        (["train", "none.yaml", "--time-limit", "soon"], "'soon' is no time: expected H:MM:SS"),
        (["job", "none.yaml"], "none.yaml: cannot be read: No such file"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("splaxel-mpi: error: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_command_shows_the_help():
    done = command()
    assert done.returncode == 2 and "Usage: splaxel-mpi" in done.stdout + done.stderr


def test_train_hands_over_settings(settings):
    done = python("-c", WITH_JOB, "", "train", settings, "train.images=12", "--resume")
    assert (done.returncode, done.stdout) == (
        0, "images 12 resume True ranks 1 left None\n"
    ), done.stderr


def test_train_hands_over_its_time_limit(settings):
    done = python("-c", WITH_JOB, "", "train", settings, "--continue", "--time-limit", "1:00:00")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("resume if any ranks 1 left 3600.0\n")


def test_a_stopped_run_has_a_status_of_its_own(settings):
    done = python("-c", WITH_JOB, "stop", "train", settings)
    assert (done.returncode, done.stderr) == (75, "")


def test_job_prints_a_script(settings):
    done = command("job", settings, "train.images=9", "--nodes", "3", "--gpus-per-node", "2")
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash\n"), done.stderr
    assert f"#   splaxel-mpi job {settings} train.images=9 --nodes 3" in done.stdout


def test_failure_has_a_traceback_and_status_1(settings):
    done = python("-c", WITH_JOB, "fail", "train", settings)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "ZeroDivisionError: in the loop" in done.stderr


def test_mistake_during_the_job(settings):
    done = python("-c", WITH_JOB, "mistake", "train", settings)
    assert (done.returncode, done.stderr) == (2, "splaxel-mpi: error: image 3 is torn\n")


def test_interrupt_is_status_130(settings):
    done = python("-c", WITH_JOB, "interrupt", "train", settings)
    assert done.returncode == 130 and "Traceback" not in done.stderr


def test_synth_city_hands_over_its_options():
    done = python("-c", WITH_CITY, "synth", "city", "here", "--views", "20", "--extent", "40")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "here 1 [('aerial', 0.5), ('extent', 40.0), ('height', 180), ('points', 20000), "
        "('samples', 4), ('seed', 0), ('views', 20), ('width', 320)]\n"
    )
    assert "2/20 photographs (10.0 %)" in done.stderr
    assert "20/20 photographs (100.0 %)" in done.stderr


def test_without_mpi_help_works_and_training_says_what_is_missing(settings, tmp_path):
    stub = tmp_path / "stub" / "mpi4py"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('cannot load MPI library')\n")
    without = {"PYTHONPATH": str(stub.parent)}
    assert command("--help", **without).returncode == 0
    assert command("config", "show", settings, **without).returncode == 0
    done = command("train", settings, **without)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "no MPI: cannot load MPI library; training needs an MPI library" in done.stderr


def test_other_ranks_leave_mistakes_to_rank_0():
    done = command("train", OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")
