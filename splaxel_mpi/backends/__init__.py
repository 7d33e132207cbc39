"""Where stages compute: the choice of a backend by its name."""

import numpy as np

from ..errors import UserError

INSTALL = "install CuPy (pip install -e '.[cuda]')"


def gpu_count():
    """(GPUs that CuPy sees from this process, why none or what it is: one line)."""
    try:
        import cupy
    except ImportError as error:
        why = "is not installed" if error.name == "cupy" else f"cannot be imported: {error}"
        return 0, f"CuPy {' '.join(why.split())}"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return 0, f"CuPy {cupy.__version__} sees no GPU: {error}"
    return count, f"CuPy {cupy.__version__} sees {count} GPU{'s' if count != 1 else ''}"


def choose_backend(settings):
    """(name, reason) of the backend that this process takes.

    settings: settings.BackendSection. "auto": cuda where CuPy is installed and sees a GPU and
    precision is float32, else host. Raises UserError when cuda is asked for and not to be had.
    """
    if settings.name == "host":
        return "host", "asked for"
    if settings.precision == "float64":
        if settings.name == "cuda":
            raise UserError("backend.precision: the cuda backend computes in float32: set "
                            "backend.precision=float32 or backend.name=host")
        return "host", "float64 is asked for, which cuda does not do"
    count, reason = gpu_count()
    if settings.name == "cuda":
        if not count:
            missing = "" if "GPU" in reason else f"{INSTALL} "
            raise UserError(f"backend.name: cuda is asked for, but {reason}: "
                            f"{missing or 'run on a node with an NVIDIA GPU '}"
                            "or set backend.name=host")
        return "cuda", "asked for"
    return ("cuda" if count else "host"), reason


def make_backend(name, settings, threads):
    """The Backend called name ("host" or "cuda"), cuda on the current device.

    settings: settings.BackendSection; threads: of this rank.
    """
    real = np.dtype(settings.precision)
    if name == "cuda":
        from . import cuda_module
        from .cuda import CudaBackend

        cuda_module.use_prebuilt(settings.kernels)
        return CudaBackend(real, threads)
    from .host import HostBackend

    return HostBackend(real, threads)
