"""GPU kernels: one CuPy RawModule a source file, compiled by NVRTC for the device at hand or
loaded as a binary that `splaxel-mpi kernels build` made."""

import functools
import hashlib
import os
from importlib.resources import files
from pathlib import Path

from ..errors import UserError

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
        if path.is_file():
            return path
    raise UserError(
        f"{folder}: no kernels of {source} for sm_{capability} and this version: build them with "
        f"splaxel-mpi kernels build --arch sm_{capability} --out {folder}"
    )


@functools.lru_cache(maxsize=None)
def module(source, defines=()):
    """The RawModule of cuda_src/<source>. defines: tuple of "NAME=value".

    CuPy keeps what NVRTC makes in its disk cache under a hash of source, options and device.
    Raises UserError when binaries are asked for and not there.
    """
    import cupy

    binary = _binary(source, defines, cupy.cuda.Device().compute_capability)
    if binary:
        return cupy.RawModule(path=str(binary))
    code = (source_folder() / source).read_text(encoding="utf-8")
    # the cache does not look into included files, so their digest stands in the text
    code = f"// headers {_headers().hex()}\n{code}"
    return cupy.RawModule(code=code, options=options_for(defines), backend="nvrtc")


@functools.lru_cache(maxsize=None)  # a look-up costs as much as a launch
def kernel(source, name, defines=()):
    """A kernel of cuda_src/<source>, an extern "C" function called ``name``."""
    return module(source, defines).get_function(name)
