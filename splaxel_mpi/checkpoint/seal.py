"""The seal at the end of a checkpoint: it covers every byte that no checksum of rows covers.

HDF5 reads no further than its own end of file, so what follows does not disturb it.
"""

import os
import zlib

from splaxel_mpi.errors import UserError

# Groups whose data sets have rows, with checksums of their own.
ROWS = ("gaussians", "adam", "densify", "extra")
TEXT = b"splaxel_mpi seal: %016d bytes, crc32 of all but rows %08x\n"
LENGTH = len(TEXT % (0, 0))
# Bytes read at a time.
PIECE = 1 << 20


def has_rows(path):
    """Whether a data set of this path is one with rows."""
    return path.split("/")[0] in ROWS


def extents(items):
    """(first byte, bytes) in the file of each of these HDF5 data sets that takes room, sorted."""
    found = [(item.id.get_offset(), item.nbytes) for item in items]
    return sorted((begin, size) for begin, size in found if begin is not None and size)


def rest_checksum(path, rows, size):
    """CRC-32 of the first ``size`` bytes of a file without its extents of rows.

    Raises ValueError where extents overlap or reach beyond the size.
    """
    value, position = 0, 0
    with open(path, "rb") as file:
        for begin, length in [*rows, (size, 0)]:
            if begin < position or begin + length > size:
                raise ValueError("data sets overlap or reach beyond the file")
            file.seek(position)
            while position < begin:
                piece = file.read(min(PIECE, begin - position))
                if not piece:
                    raise ValueError("the file ends early")
                value, position = zlib.crc32(piece, value), position + len(piece)
            position = begin + length
    return value


def put_seal(path, rows):
    """Append the seal to a file that is otherwise finished. rows: its ``extents``."""
    size = os.path.getsize(path)
    text = TEXT % (size, rest_checksum(path, rows, size))
    with open(path, "ab") as file:
        file.write(text)


def check_seal(path, rows):
    """Raise UserError, its text for the end of a line, where the seal does not fit the file."""
    size = os.path.getsize(path) - LENGTH
    if size < 0:
        raise UserError("has no seal: the end of the file is missing")
    with open(path, "rb") as file:
        file.seek(size)
        text = file.read()
    try:
        whole = text == TEXT % (size, rest_checksum(path, rows, size))
    except ValueError as error:
        raise UserError(f"does not match its seal ({error})") from error
    if not whole:
        raise UserError("does not match its seal: bytes outside of the rows were changed")
