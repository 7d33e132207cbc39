"""GPU kernels: one CuPy RawModule a source file, compiled by NVRTC for the device at hand or
loaded as a binary that `splaxel-mpi kernels build` made."""

import functools
import hashlib
import os
import tempfile
from importlib.resources import files
from pathlib import Path

from ..errors import UserError
from ..files import atomic_write
from . import cuda_nvrtc

# Kernels and headers are one language level; contraction is off so that a*b+c rounds as on the
# host, kernels ask for fma by name where it is wanted.
OPTIONS = ("--std=c++17", "--fmad=false")
# Folder of binaries, where the setting backend.kernels names none.
VARIABLE = "SPLAXEL_KERNELS"

_prebuilt = None


def use_prebuilt(folder):
    """Take binaries from this folder, from the one in SPLAXEL_KERNELS when it is None."""
    global _prebuilt
    _prebuilt = folder


def source_folder():
    """Folder of the kernel sources, in an installed wheel or a checkout."""
    try:
        return Path(str(files("splaxel_mpi.cuda_src")))
    except ModuleNotFoundError:  # a checkout on the path that is not installed
        return Path(__file__).resolve().parents[2] / "cuda_src"


def options_for(defines=()):
    """Compiler options that nvcc and NVRTC share. defines: "NAME=value" each."""
    return (*OPTIONS, f"-I{source_folder()}", *(f"-D{define}" for define in defines))


@functools.lru_cache(maxsize=None)
def _headers():
    """Digest of all headers: any of them may be in any kernel."""
    digest = hashlib.sha256()
    folder = source_folder()
    for path in sorted(folder.rglob("*.cuh")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.digest()


def binary_name(source, defines, arch):
    """File name of a compiled source, different for any other text, options or architecture.

    source: file in cuda_src; defines: "NAME=value" each; arch: such as "sm_90".
    """
    digest = hashlib.sha256(_headers())
    digest.update((source_folder() / source).read_bytes())
    digest.update("\0".join((*OPTIONS, *defines)).encode())
    return f"{Path(source).stem}.{arch}.{digest.hexdigest()[:16]}.cubin"


def _binary(source, defines, capability):
    """Path of the binary to load for a device, None where no folder is named.

    capability: such as "90". A binary runs on its own architecture and on later ones of the
    same major number. Raises UserError when the folder has none.
    """
    folder = _prebuilt or os.environ.get(VARIABLE)
    if not folder:
        return None
    for minor in range(int(capability[-1]), -1, -1):
        path = Path(folder, binary_name(source, defines, f"sm_{capability[:-1]}{minor}"))
        if os.path.isfile(path):  # False, too, where the folder cannot be looked into
            return path
    raise UserError(
        f"{folder}: no kernels of {source} for sm_{capability} and this version: build them with "
        f"splaxel-mpi kernels build --arch sm_{capability} --out {folder}"
    )


def cache_folder(environ=os.environ):
    """Folder in which CuPy keeps what it compiles, None where it keeps nothing on disk."""
    if environ.get("CUPY_CACHE_IN_MEMORY", "0") not in ("0", ""):
        return None
    # as CuPy has it: "~" stays where the user has no home, as in some containers
    return Path(environ.get("CUPY_CACHE_DIR") or os.path.expanduser("~/.cupy/kernel_cache"))


@functools.lru_cache(maxsize=None)
def module(source, defines=()):
    """The RawModule of cuda_src/<source>, for the current device. defines: tuple of "NAME=value".

    What is not built ahead is compiled and kept in a folder below cache_folder(). Raises UserError
    when binaries are asked for and not there, or the source does not compile for the device.
    """
    import cupy

    capability = cupy.cuda.Device().compute_capability
    path = _binary(source, defines, capability) or _kept(source, defines, f"sm_{capability}")
    if path:
        return cupy.RawModule(path=str(path))
    code = _machine_code(source, defines, f"sm_{capability}")
    with tempfile.TemporaryDirectory(prefix="splaxel-kernels-") as folder:
        path = Path(folder, "kernels.cubin")
        path.write_bytes(code)
        found = cupy.RawModule(path=str(path))
        found.compile()  # reads the file
    return found


def _kept(source, defines, arch):
    """Path of a binary that a start like this one has left, or leaves now, on disk; None where it
    cannot be kept (train/warm_up.py says so)."""
    folder = cache_folder()
    if folder is None:
        return None
    # another release of the compiler makes other binaries
    folder = folder / "splaxel-nvrtc-{}.{}".format(*cuda_nvrtc.version())
    name = Path(binary_name(source, defines, arch)).stem
    path = _find_kept(folder, name)
    if path:
        return path
    code = _machine_code(source, defines, arch)
    path = folder / f"{name}.{_digest(code)}.cubin"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(code)
    except (OSError, UserError):
        return None
    return path


def _digest(code):
    """What the name of a kept binary says of its content."""
    return hashlib.sha256(code).hexdigest()[:16]


def _find_kept(folder, name):
    """Path of a kept binary that is what was written, or None: a full disk or a crash of the
    node may have left one that the driver refuses, or worse, takes."""
    try:
        for path in sorted(folder.glob(f"{name}.*.cubin")):
            if path.is_file() and path.name.split(".")[-2] == _digest(path.read_bytes()):
                return path
    except OSError:  # nor can it be written
        pass
    return None


@functools.lru_cache(maxsize=1)  # asked for again at once where it cannot be kept
def _machine_code(source, defines, arch):
    text = (source_folder() / source).read_text(encoding="utf-8")
    return cuda_nvrtc.compile_text(text, source, arch, options_for(defines))[0]


@functools.lru_cache(maxsize=None)  # a look-up costs as much as a launch
def kernel(source, name, defines=()):
    """A kernel of cuda_src/<source>, an extern "C" function called ``name``."""
    return module(source, defines).get_function(name)
