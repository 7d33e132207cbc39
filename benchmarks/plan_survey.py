"""Time and memory of `splaxel-mpi plan` for a survey of a large city, CPU only.

    python benchmarks/plan_survey.py FOLDER [--views 350000] [--points 3000000] [--side 2500]
    python benchmarks/plan_survey.py FOLDER --ranks 1 64 1024 4096 --gaussians 100M

Makes a binary COLMAP model without photographs in FOLDER, unless there is one, and plans it on
each rank count in a process of its own. FOLDER takes about 1.6 GB: every image has some hundred
observations and every point a track, as a reconstruction has them. They are random: what matters
is that a reader must get past them. Prints seconds of the wall and the largest resident memory.
"""

import argparse
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.data.colmap_binary import IMAGE, POINT, POINT2D_BYTES, TRACK_BYTES  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras as city_cameras  # noqa: E402
from splaxel_mpi.data.gaussian_city import gaussians as city_gaussians  # noqa: E402

PINHOLE = 1  # COLMAP's number of the camera model
CHUNK = 1 << 18  # points written at a time


def write_survey(folder, views, points, side, observations, track, seed=0):
    """A city's model in folder/sparse/0. observations, track: the mean of an image and of a
    point; numbers differ, from 0 on."""
    model = Path(folder) / "sparse" / "0"
    model.mkdir(parents=True)
    random = np.random.default_rng(seed)
    cameras = city_cameras("mixed", views, side)
    _write_cameras(model / "cameras.bin", cameras[:2])
    _write_images(model / "images.bin", cameras, observations, random)
    _write_points(model / "points3D.bin", points, side, track, random)


def _write_cameras(path, cameras):
    """Street and aerial, ids 1 and 2."""
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(cameras)))
        for number, c in enumerate(cameras, 1):
            file.write(struct.pack("<iiQQ4d", number, PINHOLE, c.width, c.height, c.fx, c.fy,
                                   c.cx, c.cy))


def _write_images(path, cameras, observations, random):
    rotations = Rotation.from_matrix([camera.rotation for camera in cameras]).as_quat()
    counts = random.integers(0, 2 * observations + 1, len(cameras))
    noise = random.bytes(POINT2D_BYTES * int(counts.max(initial=0)))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(cameras)))
        for k, (camera, (x, y, z, w), count) in enumerate(zip(cameras, rotations, counts)):
            pose = w, x, y, z, *camera.translation
            file.write(IMAGE.pack(k + 1, *pose, 1 + k % 2))
            file.write(f"drive_{k // 1000:04d}/{k % 1000:04d}.jpg\0".encode())
            file.write(struct.pack("<Q", count) + noise[: POINT2D_BYTES * int(count)])


def _write_points(path, points, side, track, random):
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", points))
        for first in range(0, points, CHUNK):
            stop = min(first + CHUNK, points)
            rows = city_gaussians(points, side, bands=0, start=first, stop=stop)
            records = np.zeros(stop - first, POINT)
            records["id"] = np.arange(first, stop)
            records["xyz"] = rows.means
            records["rgb"] = random.integers(0, 256, (stop - first, 3))
            records["track"] = random.integers(0, 2 * track + 1, stop - first)
            sizes = POINT.itemsize + TRACK_BYTES * records["track"].astype(np.int64)
            starts = np.cumsum(sizes) - sizes
            out = np.frombuffer(random.bytes(int(sizes.sum())), np.uint8).copy()
            places = starts[:, None] + np.arange(POINT.itemsize)
            out[places] = records.view(np.uint8).reshape(-1, POINT.itemsize)
            file.write(out)


def measure(folder, ranks, gaussians):
    """(seconds, bytes of resident memory, lines) of one plan in a process of its own."""
    config = Path(folder) / "survey.yaml"
    config.write_text(f"data: {{path: {folder}}}\nrun: {{folder: {folder}}}\n")
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "splaxel_mpi", "plan", str(config), "--ranks", str(ranks),
         "--gaussians", gaussians], stdout=subprocess.PIPE, text=True,
    )
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return time.perf_counter() - start, 1024 * usage.ru_maxrss, text, child.returncode


def main():
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--views", type=int, default=350_000)
    parser.add_argument("--points", type=int, default=3_000_000)
    parser.add_argument("--side", type=float, default=2500.0, help="metres")
    parser.add_argument("--observations", type=int, default=128, help="mean of an image")
    parser.add_argument("--track", type=int, default=8, help="mean length of a point's track")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1024])
    parser.add_argument("--gaussians", default="100M")
    wanted = parser.parse_args()
    if not (Path(wanted.folder) / "sparse").exists():
        start = time.perf_counter()
        write_survey(wanted.folder, wanted.views, wanted.points, wanted.side,
                     wanted.observations, wanted.track)
        print(f"survey written in {time.perf_counter() - start:.0f} s")
    for ranks in wanted.ranks:
        seconds, memory, text, status = measure(wanted.folder, ranks, wanted.gaussians)
        print(f"{ranks} ranks: {seconds:.1f} s, {memory / 1e9:.2f} GB, exit status {status}")
        print(text)


if __name__ == "__main__":
    main()
