"""An installed wheel works from any directory, with the kernels' sources in it."""

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What a wheel is made of. build/ carries compiled objects, so that nothing is compiled twice.
PARTS = ["splaxel_mpi", "cuda_src", "setup.py", "setup.cfg", "pyproject.toml"]
PARTS += ["LICENSE", "README.md"]

LOOK = """
import importlib.resources
import splaxel_mpi
from splaxel_mpi.backends.host_library import library

root = importlib.resources.files("splaxel_mpi.cuda_src")
print(splaxel_mpi.__file__)
print(library()._name)
print(*sorted(f"{part.name}/{entry.name}" for part in root.iterdir() if part.is_dir()
              for entry in part.iterdir()))
"""


def packages():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return set(config["options"]["packages"].split())


def pip(*arguments, cwd):
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the sources: the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for part in PARTS:
        if (ROOT / part).is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / part, source / part, ignore=unwanted)
        elif (ROOT / part).exists():
            shutil.copy2(ROOT / part, source)
    for objects in (ROOT / "build").glob("temp.*"):
        shutil.copytree(objects, source / "build" / objects.name)
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", "dist", ".", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--target", str(target), str(wheel), cwd=target)
    return target


def run(command, installed, cwd):
    env = dict(os.environ, PYTHONPATH=str(installed))
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_folder_with_code_is_a_listed_package():
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "splaxel_mpi").rglob("*.py")
    }
    kernels = {
        ".".join(("splaxel_mpi", *path.parent.relative_to(ROOT).parts))
        for path in (ROOT / "cuda_src").rglob("*")
        if path.suffix in {".cu", ".cuh", ".cpp", ".h"} or path.name == "__init__.py"
    }
    assert folders | kernels == packages()


@pytest.mark.slow
@pytest.mark.timeout(600)  # the first to use the wheel: a compiler may have to run
def test_wheel_holds_every_source(wheel):
    expected = {
        f"splaxel_mpi/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / "cuda_src").rglob("*")
        if path.suffix in {".cu", ".cuh", ".cpp", ".h", ".py"}
    }
    expected |= {p.relative_to(ROOT).as_posix() for p in (ROOT / "splaxel_mpi").rglob("*.py")}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected - names == set()
    assert any(name.endswith("licenses/LICENSE") or name.endswith("/LICENSE") for name in names)


@pytest.mark.slow
def test_installed_package_works_elsewhere(installed, tmp_path):
    printed = run([sys.executable, "-c", LOOK], installed, tmp_path)
    package, extension, sources = printed.splitlines()
    assert Path(package).is_relative_to(installed)
    assert Path(extension).is_relative_to(installed)
    expected = {
        f"{path.parent.name}/{path.name}"
        for path in (ROOT / "cuda_src").glob("*/*")
        if path.suffix in {".cuh", ".cpp", ".h"}
    }
    assert expected <= set(sources.split())


@pytest.mark.slow
def test_installed_command_runs_elsewhere(installed, tmp_path):
    command = [sys.executable, str(installed / "bin" / "splaxel-mpi"), "--help"]
    assert "train" in run(command, installed, tmp_path)
