"""GPU kernels: one CuPy RawModule a source file, compiled by NVRTC for the device at hand."""

import functools
from importlib.resources import files
from pathlib import Path

# Kernels and headers are one language level; contraction is off so that a*b+c rounds as on the
# host, kernels ask for fma by name where it is wanted.
OPTIONS = ("--std=c++17", "--fmad=false")


def source_folder():
    """Folder of the kernel sources, in an installed wheel or a checkout."""
    try:
        return files("splaxel_mpi.cuda_src")
    except ModuleNotFoundError:  # a checkout on the path that is not installed
        return Path(__file__).resolve().parents[2] / "cuda_src"


@functools.lru_cache(maxsize=None)
def module(source, defines=()):
    """The RawModule of cuda_src/<source>. defines: tuple of "NAME=value".

    CuPy keeps the binary in its disk cache under a hash of source, options and device.
    """
    import cupy

    folder = source_folder()
    options = (*OPTIONS, f"-I{folder}", *(f"-D{define}" for define in defines))
    return cupy.RawModule(code=(folder / source).read_text(), options=options, backend="nvrtc")


def kernel(source, name, defines=()):
    """A kernel of cuda_src/<source>, an extern "C" function called ``name``."""
    return module(source, tuple(defines)).get_function(name)
