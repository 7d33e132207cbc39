"""COLMAP's binary model files (little endian), read through a memory map.

Every length is checked against the bytes that are left before memory is taken or skipped.
"""

import mmap
import struct

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from splaxel_mpi.data.base import Points
from splaxel_mpi.data.colmap_models import MODELS
from splaxel_mpi.data.files import open_file
from splaxel_mpi.errors import UserError

COUNT = struct.Struct("<Q")
CAMERA = struct.Struct("<iiQQ")  # id, model, width, height; then float64 parameters
IMAGE = struct.Struct("<I7dI")  # id, quaternion w x y z, translation, camera id; then the name
POINT = np.dtype(
    [("id", "<u8"), ("xyz", "<f8", 3), ("rgb", "u1", 3), ("error", "<f8"), ("track", "<u8")]
)
TRACK_AT = POINT.itemsize - COUNT.size  # offset of the track length in a point record
POINT2D_BYTES = 24  # x, y float64 and a point id
TRACK_BYTES = 8  # image id and 2D point index, uint32 each
LONGEST_NAME = 4096  # PATH_MAX of Linux
CHUNK = 1 << 16  # point records gathered at a time: 3 MB, near the processor
# Bytes of a file after which those that were read are let go: files of surveys take 100 GB
SEEN = 1 << 26


class Cursor:
    """Walks the bytes of one file; a read past the end is a UserError naming the record."""

    def __init__(self, path):
        self.path = path
        self.position = self.released = 0
        with open_file(path) as file:
            file.seek(0, 2)
            self.size = file.tell()
            # an empty file cannot be mapped
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.size:
            self.data.close()

    def fail(self, record, problem):
        raise UserError(f"{self.path}: {record}: {problem}")

    def skip(self, count, record):
        """Moves on by count bytes, returns the position before."""
        start = self.position
        if count > self.size - start:
            self.fail(
                record,
                f"truncated, needs {count} bytes at offset {start} but the file ends at "
                f"{self.size}; copy or export it again",
            )
        self.position = start + count
        return start

    def release(self):
        """Now and then: do not count what was read as memory of this process any longer."""
        if self.position - self.released > SEEN:
            self.data.madvise(mmap.MADV_DONTNEED)
            self.released = self.position

    def unpack(self, layout, record):
        return layout.unpack_from(self.data, self.skip(layout.size, record))

    def count(self, least, record):
        """Reads a 64-bit count of items that take at least ``least`` bytes each."""
        (count,) = self.unpack(COUNT, record)
        room = (self.size - self.position) // least
        if count > room:
            self.fail(
                record,
                f"claims {count} entries but the file has room for {room}; truncated or corrupt, "
                "copy or export it again",
            )
        return count

    def name(self, record):
        """Reads a NUL-terminated name."""
        end = self.data.find(b"\0", self.position, self.position + LONGEST_NAME)
        if end < 0:
            self.fail(record, "the image name has no end; truncated or corrupt")
        raw = self.data[self.position : end]
        self.position = end + 1
        return raw.decode("utf-8", "surrogateescape")

    def finish(self):
        if self.position != self.size:
            self.fail(
                "after the last record",
                f"{self.size - self.position} unexpected bytes; not a file of this format",
            )


def read_cameras(path):
    """{camera id: (model name, width, height, parameters)} of cameras.bin."""
    cameras = {}
    with Cursor(path) as cursor:
        for number in range(cursor.count(CAMERA.size, "header")):
            record = f"camera record {number}"
            camera_id, model, width, height = cursor.unpack(CAMERA, record)
            if model not in MODELS:
                cursor.fail(record, f"camera {camera_id} has unknown model id {model}")
            if camera_id in cameras:
                cursor.fail(record, f"camera id {camera_id} appears twice")
            name, size = MODELS[model]
            params = cursor.unpack(struct.Struct(f"<{size}d"), record)
            cameras[camera_id] = (name, width, height, params)
        cursor.finish()
    return cameras


def read_images(path):
    """List of (image id, quaternion w x y z, translation, camera id, name) of images.bin; the
    2D points are stepped over."""
    images = []
    with Cursor(path) as cursor:
        least = IMAGE.size + 1 + COUNT.size
        for number in range(cursor.count(least, "header")):
            record = f"image record {number}"
            image_id, *pose, camera_id = cursor.unpack(IMAGE, record)
            name = cursor.name(record)
            record = f"{record} ({name})"
            observations = cursor.count(POINT2D_BYTES, record)
            cursor.skip(observations * POINT2D_BYTES, record)
            images.append((image_id, pose[:4], pose[4:], camera_id, name))
            cursor.release()
        cursor.finish()
    return images


def read_points(path):
    """Points of points3D.bin in file order; tracks are stepped over."""
    with Cursor(path) as cursor:
        count = cursor.count(POINT.itemsize, "header")
        positions = np.empty((count, 3))
        colors = np.empty((count, 3), np.uint8)
        for first in range(0, count, CHUNK):
            part = slice(first, min(first + CHUNK, count))
            records = _gather(cursor.data, _point_starts(cursor, part.start, part.stop))
            positions[part] = records["xyz"]
            colors[part] = records["rgb"]
            cursor.release()
        cursor.finish()
    return Points(positions, colors)


def _gather(data, starts):
    """Copies of the point records at the given byte offsets."""
    windows = sliding_window_view(np.frombuffer(data, np.uint8), POINT.itemsize)
    return windows[starts].view(POINT)[:, 0]


def _point_starts(cursor, first, end):
    """Byte offsets of point records first to end; moves the cursor behind them. Only the track
    length is read here, in a plain loop: records have variable length, so this is what bounds
    the time (a second per some million points)."""
    starts = []
    data, position = cursor.data, cursor.position
    last, unpack, add = cursor.size - POINT.itemsize, COUNT.unpack_from, starts.append
    while len(starts) < end - first and position <= last:
        add(position)
        position += POINT.itemsize + TRACK_BYTES * unpack(data, position + TRACK_AT)[0]
    if position > cursor.size:
        problem = "its track runs past the end of the file; truncated or corrupt, copy it again"
        cursor.fail(f"point record {first + len(starts) - 1}", problem)
    cursor.position = position
    if len(starts) < end - first:
        cursor.skip(POINT.itemsize, f"point record {first + len(starts)}")
    return np.array(starts, np.int64)
