"""The page of figures of a run."""

import math
import sys
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import splaxel_mpi
from splaxel_mpi.files import write_json


def write_summary(
    path,
    *,
    psnr,
    ssim,
    gaussians,
    images_seen,
    ranks,
    seconds,
    images_per_second,
    bytes_exchanged,
    **more,
):
    """Write the figures of a run as JSON, whole or not at all.

    psnr in dB, ssim in -1..1, seconds of wall time, bytes_exchanged one number or a dict by
    kind; ``more`` adds further keys. numpy numbers and arrays become JSON numbers and lists; a
    figure that is not finite (no test views: NaN) becomes null. "versions" is added. Raises
    UserError when the file cannot be written, TypeError for values JSON cannot hold.
    """
    figures = {
        "psnr": psnr,
        "ssim": ssim,
        "gaussians": gaussians,
        "images_seen": images_seen,
        "ranks": ranks,
        "seconds": seconds,
        "images_per_second": images_per_second,
        "bytes_exchanged": bytes_exchanged,
        **more,
    }
    figures.setdefault("versions", versions())
    write_json(path, plain(figures))


def plain(value):
    """The value with only what JSON knows."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions():
    """Name -> version text of what takes part in a result.

    "MPI library" is None where no MPI was started: asking would start it.
    """
    import h5py

    found = {"python": sys.version.split()[0], "splaxel_mpi": splaxel_mpi.__version__}
    for name in ("numpy", "scipy", "mpi4py", "h5py"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    running = sys.modules.get("mpi4py.MPI")
    # Open MPI's text ends in a NUL byte.
    library = running.Get_library_version() if running else None
    found["MPI library"] = library.strip("\0 \n").split("\n")[0] if library else None
    found["HDF5"] = h5py.version.hdf5_version
    found["HDF5 parallel"] = bool(h5py.get_config().mpi)
    return found
