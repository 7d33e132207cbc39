"""Every GPU kernel compiles for real architectures, without a GPU; the commands around it.

Binaries are kept in build/kernels by the content of their sources, so only a changed source is
compiled again.
"""

import os
import subprocess
import sys
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import pytest

from splaxel_mpi.backends import cuda_module
from splaxel_mpi.errors import UserError
from splaxel_mpi.tools import kernels, occupancy

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "build" / "kernels" / "without-warnings"
ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120"]


@pytest.fixture(scope="module")
def compiler():
    """A warning is an error."""
    try:
        return kernels.find_compiler(strict=True)[0]
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def compiled(compiler):
    """(source, defines, arch) -> path of its binary, or what is wrong with it."""

    def one(what):
        try:
            return kernels.compile_into(KEPT, *what, compiler)
        except UserError as error:
            return error

    assert kernels.ARCHITECTURES.split(",") == ARCHITECTURES
    wanted = [(*what, arch) for what in kernels.sources() for arch in ARCHITECTURES]
    with ThreadPool(min(8, len(os.sched_getaffinity(0)))) as pool:
        return dict(zip(wanted, pool.map(one, wanted, 1)))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_source_compiles(compiled):
    wrong = [str(path) for path in compiled.values() if isinstance(path, UserError)]
    assert not wrong, wrong[0]
    assert {what[0] for what in compiled} == {path.name for path in ROOT.glob("cuda_src/*.cu")}
    for what, path in compiled.items():
        assert path.read_bytes()[:4] == b"\x7fELF", what


@pytest.mark.slow
def test_hot_kernels_do_not_spill(compiled):
    """Rasterizer and loss on the architecture they are tuned for: a spill there is a slower run."""
    found = {}
    for (source, defines, arch), path in compiled.items():
        if arch == "sm_90" and source.startswith(("raster", "loss")):
            found.update({(source, *defines, one.kernel): one for one in kernels.usage(path)})
    assert len(found) >= 2
    assert {name: one.spills for name, one in found.items() if one.spills} == {}
    assert all(0 < one.registers <= 255 for one in found.values())


def command(*arguments, **variables):
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, "-m", "splaxel_mpi", "kernels", *map(str, arguments)],
                          env=env, timeout=100, text=True, capture_output=True)


@pytest.fixture
def one_source(tmp_path, monkeypatch):
    """A folder with a single small kernel and a variant of it in place of the real sources."""
    folder = tmp_path / "cuda_src"
    folder.mkdir()
    (folder / "add.cu").write_text(
        "// Compiled also with: TWICE=2\n"
        "#ifndef TWICE\n#define TWICE 1\n#endif\n"
        'extern "C" __global__ void add(float* x) {\n'
        "    __shared__ float kept[64];\n"
        "    kept[threadIdx.x] = x[threadIdx.x];\n    __syncthreads();\n"
        "    x[threadIdx.x] += TWICE * kept[63 - threadIdx.x];\n}\n"
    )
    monkeypatch.setattr(cuda_module, "source_folder", lambda: folder)
    monkeypatch.setattr(kernels, "source_folder", lambda: folder)
    cuda_module._headers.cache_clear()
    yield folder / "add.cu"
    cuda_module._headers.cache_clear()


def test_build_is_what_a_run_loads(compiler, one_source, tmp_path, monkeypatch):
    said = []
    kernels.build(["sm_80"], tmp_path / "out", said.append)
    for defines in ((), ("TWICE=2",)):
        for capability in ("80", "86"):  # a binary runs on later ones of its major number
            path = cuda_module._binary("add.cu", defines, capability)
            assert path is None
            monkeypatch.setenv(cuda_module.VARIABLE, str(tmp_path / "out"))
            path = cuda_module._binary("add.cu", defines, capability)
            assert path.read_bytes()[:4] == b"\x7fELF" and str(path) in " ".join(said)
            monkeypatch.delenv(cuda_module.VARIABLE)
    cuda_module.use_prebuilt(str(tmp_path / "out"))
    try:
        for source, capability in [("add.cu", "90"), ("add.cu", "75")]:
            with pytest.raises(UserError, match=f"no kernels of add.cu for sm_{capability}.*"
                               "kernels build --arch sm_"):
                cuda_module._binary(source, (), capability)
        one_source.write_text(one_source.read_text() + "// changed\n")
        with pytest.raises(UserError, match="no kernels of add.cu for sm_80 and this version"):
            cuda_module._binary("add.cu", (), "80")
    finally:
        cuda_module.use_prebuilt(None)


def test_build_keeps_what_is_up_to_date(compiler, one_source, tmp_path):
    kernels.build(["sm_90"], tmp_path, lambda text: None)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("add.*.cubin")}
    assert len(before) == 2
    kernels.build(["sm_90"], tmp_path, lambda text: None)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("add.*.cubin")}


def test_report(compiler, one_source):
    said = []
    kernels.report(["sm_80", "sm_90"], said.append)
    rows = [line.split() for line in said[2:]]
    assert [row[0] for row in rows] == ["add"] * 4
    defines = [row[-6] if row[-6] == "TWICE=2" else "" for row in rows]
    assert defines == ["", "", "TWICE=2", "TWICE=2"]
    for row in rows:
        registers, shared, stack, spills = map(int, row[-4:])
        assert 2 <= registers <= 32 and (shared, stack, spills) == (256, 0, 0)


def test_a_source_that_does_not_compile(compiler, one_source, tmp_path):
    one_source.write_text('extern "C" __global__ void add(float* x) { x[0] = missing; }\n')
    with pytest.raises(UserError, match="add.cu does not compile for sm_90: .*missing") as info:
        kernels.build(["sm_90"], tmp_path, lambda text: None)
    assert "\n" not in str(info.value)
    assert not list(tmp_path.glob("*.cubin"))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("which", ["nvcc", "nvrtc"])
def test_a_warning(one_source, tmp_path, monkeypatch, which, strict):
    """Tests refuse what a user's newer compiler may find fault with."""
    if which == "nvrtc":
        monkeypatch.setattr(kernels, "_nvcc", lambda: None)
    try:
        compiler, name = kernels.find_compiler(strict)
    except UserError as error:
        pytest.skip(str(error))
    if which not in name.lower():
        pytest.skip(f"no {which} here")
    text = one_source.read_text()
    one_source.write_text(text.replace("__shared__", "int unused; __shared__"))
    if strict:
        with pytest.raises(UserError, match="does not compile for sm_90: .*unused"):
            kernels.compile_into(tmp_path, "add.cu", (), "sm_90", compiler)
    else:
        assert kernels.compile_into(tmp_path, "add.cu", (), "sm_90", compiler).is_file()


@pytest.mark.parametrize("text", ["", "90", "sm_9", "sm_90;rm", "sm_80,compute_90", "sm_60"])
def test_names_that_are_no_architecture(text):
    with pytest.raises(UserError, match="--arch: expected names such as sm_"):
        kernels.architectures(text)


def test_architectures():
    assert kernels.architectures("sm_80, sm_90a,sm_80,") == ["sm_80", "sm_90a"]
    for name in ("build", "report"):
        assert f"[default: {kernels.ARCHITECTURES}]" in " ".join(command(name, "-h").stdout.split())


def test_mistakes_are_one_line(tmp_path):
    done = command("build", "--arch", "sm_1", "--out", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "expected names such as sm_90, got 'sm_1'" in done.stderr
    done = command("build", "--arch", "sm_90")
    assert done.returncode == 2 and "--out" in done.stderr


def test_without_a_compiler(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    stub = tmp_path / "site" / "cupy"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('no CuPy')\n")
    (tmp_path / "site" / "nvidia.py").write_text("")
    done = command("report", PATH=str(empty), CUDA_HOME=str(empty),
                   PYTHONPATH=os.pathsep.join([str(tmp_path / "site"), str(ROOT)]))
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "no compiler for kernels: put nvcc on PATH, or pip install" in done.stderr


# registers of 64 and 128 fill an H100's 65536 with 1024 and 512 threads; 1 KiB a block is CUDA's
@pytest.mark.parametrize(
    "registers, shared, threads, blocks",
    [
        (64, 0, 512, 2),
        (65, 0, 512, 1),
        (128, 0, 256, 2),
        (32, 0, 1024, 2),
        (16, 0, 32, 32),
        (16, 106032, 512, 2),
        (16, 120 * 1024, 128, 1),
        (16, 228 * 1024, 128, 0),
    ],
)
def test_resident_blocks(registers, shared, threads, blocks):
    h100 = occupancy.Limits(2048, 32, 65536, 228 * 1024)
    assert occupancy.resident_blocks(h100, registers, shared, threads) == blocks


class PyCuda:
    """What the report takes from pycuda.driver, with one H200."""

    class device_attribute:
        MAX_THREADS_PER_MULTIPROCESSOR = "threads"
        MAX_REGISTERS_PER_MULTIPROCESSOR = "registers"
        MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = "shared"
        CLOCK_RATE = "clock"

    class function_attribute:
        MAX_THREADS_PER_BLOCK, NUM_REGS, SHARED_SIZE_BYTES = 256, 40, 256

    class Device:
        def __init__(self, index):
            self.attributes = {"threads": 2048, "registers": 65536, "shared": 233472}
            self.attributes["clock"] = 1_980_000

        def retain_primary_context(self):
            return SimpleNamespace(push=lambda: None, pop=lambda: None)

        def compute_capability(self):
            return 9, 0

        def name(self):
            return "NVIDIA H200"

        def total_memory(self):
            return 140 << 30

        def get_attribute(self, name):
            return self.attributes[name]

    @staticmethod
    def module_from_file(path):
        assert Path(path).read_bytes()[:4] == b"\x7fELF"
        function = SimpleNamespace(get_attribute=lambda value: value)
        return SimpleNamespace(get_function=lambda name: function)


def test_report_with_pycuda(compiler, one_source, monkeypatch):
    found = occupancy.Device(PyCuda), "of the made-up one"
    monkeypatch.setattr(occupancy, "find_device", lambda: found)
    said = []
    kernels.report(["sm_80", "sm_90"], said.append)
    assert said.pop(1) == (
        "NVIDIA H200: memory 140.0 GiB, clock 1980 MHz, threads a multiprocessor 2048, "
        "registers a multiprocessor 65536, shared memory a multiprocessor 228 KiB"
    )
    assert said[1].split()[-3:] == ["threads", "blocks", "warps"]
    # 40 registers x 256 threads: 10240 of 65536, six blocks of eight warps
    assert [line.split()[-3:] for line in said[2:] if "sm_90" in line] == [["256", "6", "48"]] * 2
    assert all(len(line) < len(said[1]) for line in said[2:] if "sm_80" in line)
