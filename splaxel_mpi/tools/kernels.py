"""Kernels ahead of time: binaries for nodes without a compiler, and what each kernel takes.

Neither needs a GPU: nvcc compiles, or NVRTC where CuPy and its library are installed.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..backends import cuda_nvrtc
from ..backends.cuda_module import binary_name, options_for, source_folder
from ..errors import UserError
from ..files import atomic_write, cannot_write, write_text

ARCH = re.compile(r"sm_(?:[7-9]|1[0-9])[0-9]a?")
# A100, H100 and H200, B200, RTX 50: what is built where nothing else is said.
ARCHITECTURES = "sm_80,sm_90,sm_100,sm_120"
# A source says how else it is compiled; each such line is one more binary.
VARIANT = re.compile(r"^// Compiled also with: (.+)$", re.MULTILINE)
SECONDS = 300  # for one file: a hundred times what it takes

ENTRY = re.compile(r"(?:Compiling entry function '(\w+)'|Function properties for (\w+))")
SPILL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


@dataclass
class Usage:
    """What a kernel takes: registers of a thread, bytes of static shared memory of a block,
    bytes of stack and of spills of a thread."""

    kernel: str
    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0


def architectures(text):
    """Names of a comma-separated list such as "sm_80,sm_90". Raises UserError."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not ARCH.fullmatch(name):
            raise UserError(f"--arch: expected names such as sm_90, got {name[:40]!r}")
    if not names:
        raise UserError("--arch: expected names such as sm_80,sm_90")
    return list(dict.fromkeys(names))


def sources():
    """(source file, defines) of everything that is compiled: a tuple of "NAME=value"."""
    found = []
    for path in sorted(source_folder().glob("*.cu")):
        found.append((path.name, ()))
        for line in VARIANT.findall(path.read_text(encoding="utf-8")):
            found.append((path.name, tuple(line.split())))
    return found


def find_compiler(strict=False):
    """A function (source, defines, arch) -> (binary, messages of ptxas), and its name.

    nvcc of PATH, of CUDA_HOME or of the wheels, else NVRTC. strict: a warning is an error.
    Raises UserError without any, and the function does when a source does not compile.
    """
    nvcc = _nvcc()
    if nvcc:
        return lambda *what: _by_nvcc(nvcc, strict, *what), nvcc
    if cuda_nvrtc.available():
        return lambda *what: _by_nvrtc(strict, *what), "NVRTC"
    raise UserError(
        "no compiler for kernels: put nvcc on PATH, or pip install cupy-cuda13x "
        "'nvidia-cuda-nvrtc==13.0.*', which need no GPU"
    )


def _nvcc():
    places = [shutil.which("nvcc")]
    if os.environ.get("CUDA_HOME"):
        places.append(os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc"))
    wheels = importlib.util.find_spec("nvidia")  # cuda-toolkit[nvcc] installs below it
    for folder in (wheels.submodule_search_locations or ()) if wheels else ():
        places += sorted(map(str, Path(folder).glob("cu*/bin/nvcc")))
    return next((one for one in places if one and os.access(one, os.X_OK)), None)


def _by_nvcc(nvcc, strict, source, defines, arch):
    with tempfile.TemporaryDirectory(prefix="splaxel-nvcc-") as folder:
        out = Path(folder, "kernels.cubin")
        command = [nvcc, "-cubin", f"-arch={arch}", "-Xptxas=-v", *options_for(defines)]
        command += ["-Werror", "all-warnings"] if strict else []
        try:
            done = subprocess.run([*command, "-o", str(out), str(source_folder() / source)],
                                  capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"{nvcc}: {error}") from None
        if done.returncode:
            what = cuda_nvrtc.error_in(done.stderr)
            raise UserError(f"{source} does not compile for {arch}: {what}")
        return out.read_bytes(), done.stderr


def _by_nvrtc(strict, source, defines, arch):
    code = (source_folder() / source).read_text(encoding="utf-8")
    return cuda_nvrtc.compile_text(code, source, arch, options_for(defines), strict)


def compile_into(folder, source, defines, arch, compiler):
    """Path of a binary in folder, compiled unless it is there for these sources.

    What ptxas says lies beside it, as .txt. Raises UserError where it cannot be written.
    """
    path = Path(folder, binary_name(source, defines, arch))
    notes = path.with_suffix(".txt")
    if path.is_file() and notes.is_file():
        return path
    binary, messages = compiler(source, defines, arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(cannot_write(path, error)) from None
    write_text(notes, messages)
    with atomic_write(path) as file:
        file.write(binary)
    return path


def usage(path):
    """Usage of each kernel of a binary that compile_into made."""
    found = {}
    current = None
    for line in path.with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        entry = ENTRY.search(line)
        if entry:
            name = entry[1] or entry[2]
            current = found.setdefault(name, Usage(name))
        if current is None:
            continue
        if match := SPILL.search(line):
            current.stack = int(match[1])
            current.spills = int(match[2]) + int(match[3])
        if match := USED.search(line):
            current.registers = int(match[1])
            shared = SHARED.search(line)
            current.shared = int(shared[1]) if shared else 0
    return list(found.values())


def build(arches, folder, say):
    """Compile every source for every architecture into folder. say: takes a line of text.

    arches: such as ["sm_80", "sm_90"]. Raises UserError.
    """
    compiler, name = find_compiler()
    say(f"compiling with {name}")
    for arch in arches:
        for source, defines in sources():
            path = compile_into(folder, source, defines, arch, compiler)
            say(f"{path} ({path.stat().st_size} bytes)")
    say(f"a run takes them with backend.kernels={folder}, or SPLAXEL_KERNELS={folder}")


def report(arches, say):
    """A table of what each kernel takes, with occupancy where PyCUDA and a GPU are at hand.

    Nothing is kept. Raises UserError.
    """
    from . import occupancy

    compiler, name = find_compiler()
    device, why = occupancy.find_device()
    say(f"compiled with {name}; occupancy: {why}")
    if device:
        say(f"{device.name}: {', '.join(device.attributes)}")
    say(f"{'kernel':28s} {'source':34s} {'arch':6s} {'regs':>5s} {'shared':>7s} {'stack':>6s} "
        f"{'spills':>6s}" + (f" {'threads':>8s} {'blocks':>6s} {'warps':>6s}" if device else ""))
    with tempfile.TemporaryDirectory(prefix="splaxel-kernels-") as folder:
        for source, defines in sources():
            shown = " ".join((source, *defines))
            for arch in arches:
                path = compile_into(folder, source, defines, arch, compiler)
                for one in usage(path):
                    more = device.shown(path, arch, one) if device else ""
                    say(f"{one.kernel:28s} {shown:34s} {arch:6s} {one.registers:5d} "
                        f"{one.shared:7d} {one.stack:6d} {one.spills:6d}{more}")
