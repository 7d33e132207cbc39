"""Sparse clouds from PLY files."""

import numpy as np
from plyfile import PlyData

from splaxel_mpi.data.base import Points
from splaxel_mpi.data.files import open_file
from splaxel_mpi.errors import UserError

LONGEST_HEADER = 1 << 16  # bytes; real headers take a few hundred
GREY = 128  # of points without colours


def read_ply(path):
    """Points of the vertex element of a PLY file (ASCII or binary), file order.

    Needs x, y, z; red, green, blue may be uint8, or floats in [0, 1]; without colours points are
    grey. Raises UserError for a damaged file, checking counts against the file's size first.
    """
    with open_file(path) as file:
        _check_counts(file, path)
        try:
            elements = PlyData.read(file)
            names = _vertex_properties(elements, path)
            vertex = elements["vertex"]
            positions = np.stack([np.asarray(vertex[axis], np.float64) for axis in "xyz"], 1)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # plyfile lets numpy's and struct's errors through
            raise UserError(f"{path}: cannot be read as PLY: {error}") from None
    if not {"red", "green", "blue"} <= set(names):
        return Points(positions, np.full((len(positions), 3), GREY, np.uint8))
    channels = np.stack([np.asarray(vertex[name]) for name in ("red", "green", "blue")], 1)
    return Points(positions, _bytes(channels, path))


def _vertex_properties(elements, path):
    """Names of the vertex element's properties; x, y, z must be among them."""
    names = [
        prop.name
        for element in elements
        if element.name == "vertex"
        for prop in element.properties
    ]
    if not {"x", "y", "z"} <= set(names):
        raise UserError(f"{path}: has no vertex element with properties x, y, z")
    return names


def _bytes(channels, path):
    """Colours (n, 3) as uint8."""
    if channels.dtype == np.uint8:
        return channels
    if channels.dtype.kind != "f":
        raise UserError(f"{path}: colours of type {channels.dtype}; store them as uchar")
    valid = ((channels >= 0) & (channels <= 1)).all(axis=1)
    if not valid.all():
        raise UserError(
            f"{path}: point record {int(np.argmin(valid))}: float colours must lie in [0, 1]"
        )
    return np.round(channels * 255).astype(np.uint8)


def _check_counts(file, path):
    """Refuses a header that promises more entries than the file has bytes for; every property
    takes a byte at least. Leaves the file at its start."""
    size = file.seek(0, 2)
    file.seek(0)
    least, count, ended = 0, 0, False
    header = file.read(LONGEST_HEADER)
    file.seek(0)
    if not header.startswith(b"ply"):
        raise UserError(f"{path}: is not a PLY file")
    for line in header.splitlines():
        words = line.split()
        if words[:1] == [b"end_header"]:
            ended = True
            break
        if words[:1] == [b"element"] and len(words) == 3 and words[2].isdigit():
            count = int(words[2])
            least = max(least, count)
        elif words[:1] == [b"property"]:
            least += count
    if not ended:
        raise UserError(f"{path}: the PLY header has no end; truncated or corrupt")
    if least > size:
        raise UserError(
            f"{path}: the PLY header promises at least {least} bytes of data but the file has "
            f"{size}; truncated or corrupt, copy it again"
        )
