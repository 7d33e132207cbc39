"""Checkpoints of older format versions, brought up to date one version at a time."""

import os
import shutil

import numpy as np

from splaxel_mpi.checkpoint.base import FORMAT_VERSION
from splaxel_mpi.checkpoint.read import SEEN, Reader
from splaxel_mpi.checkpoint.schema import (
    BLOCK_ROWS,
    FORMAT,
    LIBVER,
    block_starts,
    checksum,
    put_fact,
    reserve,
)
from splaxel_mpi.checkpoint.seal import extents, put_seal
from splaxel_mpi.errors import UserError
from splaxel_mpi.files import (
    HDF5_DAMAGE,
    open_hdf5,
    partial_name,
    probe_space,
    put_in_place,
    replacing,
)


def version_of(path):
    """Format version that a checkpoint states. Raises UserError for other files."""
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such checkpoint; name an existing file")
    try:
        with open_hdf5(path) as file:
            if file.attrs.get("format") != np.bytes_(FORMAT):
                raise ValueError("not a splaxel_mpi checkpoint")
            return int(file.attrs["version"])
    except HDF5_DAMAGE as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}: not a readable checkpoint ({reason})") from error


def upgrade(path):
    """Bring a checkpoint to the present format version; returns the version that it had.

    The file is verified first; a copy is changed, verified and takes its name. Raises UserError
    for a file that is damaged or of a newer version, or where there is no room.
    """
    path = os.fspath(path)
    found = version = version_of(path)
    while version < FORMAT_VERSION:
        if version not in STEPS:
            raise UserError(f"{path}: format version {version} was never in use")
        replace(path, version, STEPS[version])
        version += 1
    with Reader(path) as reader:  # refuses newer versions
        reader.verify()
    return found


def replace(path, version, step):
    """Put a copy of a whole file of this version, changed by ``step``, in its place."""
    temporary = partial_name(path)
    with replacing(path, temporary):
        with Reader(path, version) as reader:
            reader.verify()
            # what a step adds is less than the statistics of 8 bytes a Gaussian
            needed = os.path.getsize(path) + 8 * reader.count + (4 << 20)
        probe_space(temporary, needed)
        shutil.copyfile(path, temporary)
        step(temporary)
        with Reader(temporary, version + 1) as reader:
            reader.verify()
        put_in_place(temporary, path)


def to_2(path):
    """Version 1 to 2: densify/seen_count where it is missing (zeros), and the seal."""
    import h5py

    with h5py.File(path, "r+", libver=LIBVER) as file:
        contents = file["layout/contents"][()].decode().split("\n")
        offsets = file["layout/rank_offsets"][()]
        if SEEN not in contents:
            add_zeros(file, SEEN, offsets, int(file["layout/block_rows"][()]))
            contents.append(SEEN)
            del file["layout/contents"]
            put_fact(file, "layout/contents", "\n".join(contents))
        file.attrs.modify("version", np.int64(2))
        rows = extents([file[name] for name in contents if f"checksums/{name}" in file])
    put_seal(path, rows)


def add_zeros(file, name, offsets, block_rows):
    """A data set of one int32 zero a row, with its checksums."""
    count, bounds = int(offsets[-1]), block_starts(offsets, block_rows)
    reserve(file, name, (count,), np.dtype(np.int32))
    for start in range(0, count, BLOCK_ROWS):
        file[name][start : start + BLOCK_ROWS] = 0
    sizes = np.diff(bounds)
    sums = {size: checksum(np.zeros(size, np.int32)) for size in np.unique(sizes).tolist()}
    file[f"checksums/{name}"] = np.array([sums[size] for size in sizes.tolist()], np.uint32)


STEPS = {1: to_2}
