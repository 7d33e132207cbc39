"""All kernels before the first step, instead of one after the other as steps meet them."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from .cuda_module import module
from .cuda_sort import sorter

# Key types of the sorts of a view: depths, tiles (of images up to 4096 x 4096 pixels), and ids
# where depths are equal.
SORTED = (np.uint32, np.uint16, np.int64)


def probe_folder(folder):
    """A new file in the folder that others may look for, None where none can be written."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix="splaxel-", dir=folder)
        os.close(handle)
        return path
    except OSError:
        return None


@contextmanager
def in_background(device, jobs, threads):
    """Do jobs on threads during a with block; its end waits for them and raises what they did.

    device: cupy.cuda.Device; jobs: functions without arguments. Compilers leave Python free, so
    that jobs run at the same time.
    """

    def work(job):
        device.use()  # each thread has a current device of its own
        job()

    with ThreadPoolExecutor(max(1, threads)) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        yield
        for future in futures:
            future.result()


def sort_jobs():
    """Jobs that build the sorts. Nothing on disk spares a process from that."""
    import cupy

    return [
        lambda key=key: sorter(cupy.empty(1, key), cupy.empty(1, np.int32)) for key in SORTED
    ]


def kernel_jobs(sources):
    """Jobs that compile kernels, or load them where that has been done before.

    sources: (file of cuda_src, defines) each.
    """
    return [lambda what=what: module(*what).compile() for what in sources]
