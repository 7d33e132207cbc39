"""Compiled kernels on disk, without a GPU: CuPy and its compiler are stand-ins."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from splaxel_mpi.backends import cuda_module
from splaxel_mpi.errors import UserError
from splaxel_mpi.files import Alone
from splaxel_mpi.train import warm_up

SOURCE = "adam.cu"


class Module:
    """As CuPy's: reads its file when it is asked to compile."""

    def __init__(self, path):
        self.path, self.code = path, None

    def compile(self):
        self.code = self.code or Path(self.path).read_bytes()


@pytest.fixture
def compiled(monkeypatch):
    """List of the sources that were compiled."""
    found = []

    def compile_text(text, name, arch, options, strict=False):
        found.append(name)
        return f"{name} for {arch} ".encode() * 100, ""

    device = SimpleNamespace(compute_capability="90")
    cupy = SimpleNamespace(RawModule=Module, cuda=SimpleNamespace(Device=lambda: device))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cuda_module.cuda_nvrtc, "version", lambda: (13, 0))
    monkeypatch.setattr(cuda_module.cuda_nvrtc, "compile_text", compile_text)
    monkeypatch.delenv("CUPY_CACHE_IN_MEMORY", raising=False)
    yield found
    forget()


def forget():
    """What the end of a process does."""
    cuda_module.module.cache_clear()
    cuda_module._machine_code.cache_clear()


def start():
    """(path, code) of a module as a new process gets it."""
    forget()
    found = cuda_module.module(SOURCE)
    found.compile()
    return found.path, found.code


def test_a_later_start_loads(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    assert start() == start()
    assert compiled == [SOURCE]


def shorten(path):
    path.write_bytes(path.read_bytes()[:-7])


def empty(path):
    path.write_bytes(b"")


def flip(path):
    code = bytearray(path.read_bytes())
    code[len(code) // 2] ^= 1
    path.write_bytes(code)


def become_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [shorten, empty, flip, become_folder])
def test_a_damaged_file_is_made_anew(compiled, monkeypatch, tmp_path, damage):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    path, code = start()
    damage(Path(path))
    assert start()[1] == code and compiled == [SOURCE] * 2
    if damage is not become_folder:  # which nobody can replace
        assert start() == (path, code) and compiled == [SOURCE] * 2


@pytest.mark.parametrize("where", ["in memory", "below a file", "name too long", "no home"])
def test_kernels_that_cannot_be_kept_are_compiled(compiled, monkeypatch, tmp_path, where):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    if where == "no home":
        monkeypatch.delenv("CUPY_CACHE_DIR", raising=False)
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
        (tmp_path / "~").touch()
    elif where == "in memory":
        monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    else:
        name = "file/below" if where == "below a file" else "x" * 300
        monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / name))
    path, code = start()
    assert code.startswith(SOURCE.encode()) and compiled == [SOURCE]
    assert not os.path.exists(path), "the temporary file is gone"
    assert warm_up._shared_folder(Alone())[1], "said in the log"


def test_two_starts_at_once_leave_one_whole_file(compiled, monkeypatch, tmp_path):
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    forget()
    meeting, make = threading.Barrier(2), cuda_module.cuda_nvrtc.compile_text

    def compile_text(*arguments, **options):
        meeting.wait(10)
        return make(*arguments, **options)

    monkeypatch.setattr(cuda_module.cuda_nvrtc, "compile_text", compile_text)
    paths = []
    threads = [threading.Thread(target=lambda: paths.append(
        cuda_module._kept(SOURCE, (), "sm_90"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert compiled == [SOURCE] * 2 and paths[0] == paths[1]
    assert list(paths[0].parent.iterdir()) == [paths[0]]
    assert start()[0] == str(paths[0]) and compiled == [SOURCE] * 2


def test_a_folder_that_cannot_be_read_is_told_in_one_line(compiled, monkeypatch):
    monkeypatch.setenv(cuda_module.VARIABLE, "x" * 300)
    with pytest.raises(UserError, match="splaxel-mpi kernels build"):
        start()
