"""Every finding of `splaxel-mpi doctor`, provoked: for real where one machine can be made so, else
by facts of a machine that is made up."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from splaxel_mpi import config as configs
from splaxel_mpi.mpi import probe
from splaxel_mpi.tools.doctor import facts, findings, mpi_findings, storage
from splaxel_mpi.tools.doctor.command import examine
from splaxel_mpi.tools.doctor.facts import Facts, Gpu
from splaxel_mpi.tools.doctor.findings import ADVICE, GOOD, STOP

SETTINGS = configs.parse("data: {path: .}", "test")
PLACE = storage.Storage("runs", "ext4", False, 10**12, None, None, False)


def rank(number=0, **changes):
    """A healthy rank of a node of 8 cores."""
    made = Facts(number, "n0", {"MPI": "Open MPI 5"}, list(range(8)), 8, 1, {}, "host", "asked for",
                 hdf5={"version": "1.14", "parallel": True, "error": None})
    return replace(made, **changes)


def on_gpu(number, **changes):
    """A healthy rank with a GPU of two."""
    gpu = Gpu(f"GPU-{number}", "H200", number, [1 - number], 2)
    return rank(number, backend="cuda", cache="/cache", cache_kind="ext4", gpu=gpu, **changes)


def judged(ranks, settings=SETTINGS, place=PLACE, seen=(True,)):
    """{(name, level): line}"""
    found = findings.judge(ranks, settings, place, list(seen))
    return {(one.name, one.level): one.line() for one in found}


def run(*arguments, environ=(), **options):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "splaxel_mpi", "doctor", *arguments], text=True, timeout=120,
        capture_output=True, env={**os.environ, **dict(environ)}, **options,
    )


def test_healthy_ranks_have_no_complaint():
    for ranks in ([rank(0), rank(1)], [on_gpu(0), on_gpu(1)]):
        assert {level for _, level in judged(ranks)} == {GOOD}


@pytest.mark.parametrize(
    "ranks, name, level, words",
    [
        ([rank(0), rank(1, software={"MPI": "MPICH 4"})], "software", STOP, "MPICH 4"),
        ([rank(0), rank(1), rank(2, host="n1")], "placement", ADVICE, "unevenly: 2 on n0, 1"),
        ([rank(0), rank(1, host="n1"), rank(2), rank(3, host="n1")], "placement", ADVICE,
         "map-by slot"),
        ([rank(0, cores=[0]), rank(1, cores=[0])], "placement", ADVICE, "only 1 of its 8 cores"),
        ([rank(0, threads=8), rank(1, threads=8)], "threads", ADVICE,
         "2 ranks on n0 start 16 threads on 8 cores"),
        ([rank(0, variables={"OMP_NUM_THREADS": "8"}), rank(1)], "threads", ADVICE,
         "set OMP_NUM_THREADS=4"),
        ([rank(0), rank(1, mistake="backend.name: cuda is asked for, but")], "backend", STOP,
         "rank 1 on n0"),
        ([rank(0, extension="the compiled part is missing")], "backend", STOP, "compiled part"),
        ([on_gpu(0), rank(1, reason="sees no GPU")], "backend", ADVICE, "rank 1"),
        ([on_gpu(0), replace(on_gpu(1), gpu=None)], "GPUs", STOP, "rank 1 on n0 sees none"),
        ([on_gpu(0), replace(on_gpu(1), gpu=on_gpu(0).gpu)], "GPUs", STOP,
         "2 ranks on n0 are on GPU-0"),
        ([replace(on_gpu(k), gpu=Gpu(f"GPU-{k}", "H200", 0, [], 1)) for k in (0, 1)], "GPUs",
         ADVICE, "--gpu-bind=none"),
        ([replace(on_gpu(k), gpu=Gpu(f"GPU-{k}", "H200", k, [], 2)) for k in (0, 1)], "GPUs",
         ADVICE, "not all GPUs on n0 reach each other"),
        ([rank(0, hdf5={"version": "", "parallel": False, "error": "no libhdf5"})], "HDF5", STOP,
         "no libhdf5"),
        ([rank(k, hdf5={"version": "1.14", "parallel": False, "error": None}) for k in (0, 1)],
         "HDF5", ADVICE, "HDF5_MPI=ON"),
        ([replace(on_gpu(0), cache=None)], "kernel cache", ADVICE, "CUPY_CACHE_IN_MEMORY"),
        ([replace(on_gpu(0), cache_writable=False)], "kernel cache", ADVICE, "CUPY_CACHE_DIR"),
    ],
)
def test_finding_on_ranks(ranks, name, level, words):
    assert words in judged(ranks)[name, level]


def test_gpu_may_be_shared_where_that_is_set():
    settings = configs.parse("data: {path: .}", "test", ["mpi.share_gpu=true"])
    shared = [on_gpu(0), replace(on_gpu(1), gpu=on_gpu(0).gpu)]
    found = judged(shared, settings)
    assert ("GPUs", STOP) not in found and "on GPU-0" in found["GPUs", ADVICE]


@pytest.mark.parametrize(
    "place, seen, name, level, words",
    [
        (replace(PLACE, refused="Read-only file system"), [True], "run folder", STOP, "Read-only"),
        (replace(PLACE, busy=True), [True], "run folder", STOP, "another job"),
        (PLACE, [True, False], "run folder", STOP, "rank 1 does not see"),
        (replace(PLACE, locks="No locks available"), [True], "locking", ADVICE,
         "HDF5_USE_FILE_LOCKING=FALSE"),
        (replace(PLACE, free=5e6), [True], "run folder", ADVICE, "5 MB left"),
    ],
)
def test_finding_on_the_folder(place, seen, name, level, words):
    assert words in judged([rank(0)], place=place, seen=seen)[name, level]


def test_file_system_that_cannot_be_written():
    settings = configs.parse("data: {path: .}", "test", ["run.folder=/proc/runs"])
    found = storage.look(settings)
    assert found.kind == "proc" and found.refused


def test_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    assert storage.lockable(tmp_path) is None
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert storage.lockable(tmp_path) == "No locks available"


def test_run_of_another_job(tmp_path):
    assert not storage.busy(tmp_path) and not storage.busy(tmp_path / "none")
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert storage.busy(tmp_path)
    os.close(handle)
    assert not storage.busy(tmp_path)


def test_longest_mount_point_counts(tmp_path):
    mounts = tmp_path / "mountinfo"
    folder = tmp_path / "a b"
    folder.mkdir()
    spelled = str(folder).replace(" ", "\\040")
    mounts.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:5 / {spelled} rw - lustre fs rw\n"
        f"3 1 0:6 / {spelled}c rw - nfs4 fs rw\n"
    )
    found = storage.file_system(folder / "runs" / "x", mounts)
    assert found == storage.FileSystem("lustre", str(folder)) and found.network
    assert storage.file_system("/", mounts).kind == "ext4"


def test_hdf5_without_mpi_is_seen(monkeypatch):
    h5py = pytest.importorskip("h5py")
    monkeypatch.setattr(h5py, "get_config", lambda: type("Config", (), {"mpi": False}))
    assert facts._hdf5()["parallel"] is False
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert facts._hdf5()["error"]


@pytest.mark.parametrize(
    "support, tried, transport, level, words",
    [
        (True, None, "auto", GOOD, "yes: it says so, and a child process"),
        (True, "was ended by SIGSEGV", "auto", ADVICE, "no: was ended by SIGSEGV"),
        (False, None, "auto", ADVICE, "no: it says so"),
        (False, None, "cuda-aware", STOP, "mpi.transport=auto"),
    ],
)
def test_device_memory(monkeypatch, support, tried, transport, level, words):
    monkeypatch.setattr(probe, "claim", lambda: probe.Claim(support, "it says so"))
    monkeypatch.setattr(probe, "try_on_every_node", lambda comm, gpu: tried)
    found = mpi_findings.device_memory(None, 0, transport)
    assert found.level == level and words in found.line()


def test_wrong_launcher():
    found = run(environ={"PMI_SIZE": "4", "PMI_RANK": "0"})
    assert found.returncode == 2
    assert "STOP   MPI: mpirun of MPICH or Intel MPI" in found.stdout
    assert "training would not start" in found.stderr and "Traceback" not in found.stderr


def test_report_of_a_good_machine_is_json(tmp_path):
    found = run("--json", "backend.name=host", f"run.folder={tmp_path}")
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert report["starts"] and report["ranks"][0]["backend"] == "host"
    assert {"MPI", "HDF5", "locking", "threads", "kernel cache", "CUDA-aware"} <= {
        one["name"] for one in report["findings"]
    }


def test_configuration_with_mistakes(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("data: {path: nowhere}\nrun: {folder: /proc/runs}\n")
    found = run(str(file), "backend.threads=4096")
    assert found.returncode == 2
    for words in ("STOP   data: nowhere: data set not found", "STOP   run folder: /proc/runs on",
                  "set backend.threads=0"):
        assert words in found.stdout
    file.write_text("data: {pth: nowhere}\n")
    assert "STOP   settings" in run(str(file)).stdout


@pytest.mark.mpi(min_size=2)
def test_ranks_agree():
    from splaxel_mpi.mpi import world

    comm = world.init()
    settings = configs.parse("data: {path: .}", "test", ["backend.name=host"])
    found, ranks = examine(comm, settings, None, None, False)
    assert [one.rank for one in ranks] == list(range(comm.size))
    assert comm.allgather(found) == [found] * comm.size
    assert f"{comm.size} ranks" in found[0].text and found[0].level == GOOD
