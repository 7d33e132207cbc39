"""All kernels before the first step, instead of one after the other as steps meet them."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .cuda_module import module


def cache_folder(environ=os.environ):
    """Folder in which CuPy keeps what it compiles, None where it keeps nothing on disk."""
    if environ.get("CUPY_CACHE_IN_MEMORY", "0") not in ("0", ""):
        return None
    return Path(environ.get("CUPY_CACHE_DIR") or Path("~/.cupy/kernel_cache").expanduser())


def probe_folder(folder):
    """A new file in the folder that others may look for, None where none can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix="splaxel-", dir=folder)
        os.close(handle)
        return path
    except (OSError, AttributeError):  # no folder at all is None
        return None


def load_all(device, sources, threads):
    """Compile kernels, or load them where that has been done, on so many threads.

    device: cupy.cuda.Device; sources: (file of cuda_src, defines) each. Raises what CuPy raises
    for a source that does not compile.
    """

    def load(source, defines):
        device.use()  # each thread has a current device of its own
        module(source, defines).compile()

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(load, *what) for what in sources]:
            done.result()
