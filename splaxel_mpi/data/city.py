"""The synthetic city: a data set as a photographer and an SfM tool would leave it.

Photographs are cast from geometry, never from Gaussians, so training is not tested against itself.

    DIR/images/aerial_0000.jpg ... street_0000.jpg ...   photographs, names in trajectory order
    DIR/sparse/0/{cameras,images,points3D}.bin           COLMAP model, metres (a reader takes DIR)
    DIR/transforms/transforms_{train,test}.json          MatrixCity's poses, units of 100 m
    DIR/transforms/points3D.ply                          the sparse cloud in the same units
    DIR/city.json                                        what was asked for and what came out

The frame is x east, y north, z up, ground at z = 0, in metres. Every eighth view by name is a test
view in the transforms, the rule that COLMAP data sets follow too. Poses are exact; the cloud is as
noisy as one from half a pixel of matching error. One lens is used
for aerial and one for street views; both have an off-centre principal point.
"""

import math
import os
import shutil

import numpy as np
from PIL import Image

from ..errors import UserError
from .city_cameras import make_shots
from .city_layout import make_scene
from .city_points import Rig, find_points, join
from .city_write import (
    HOLD_OUT,
    write_colmap,
    write_photograph,
    write_summary,
    write_transforms,
)

VERSION = 1  # of what a seed gives; changes with geometry, look, cameras or cloud
ROUNDS = 6  # times that more points are looked for before fewer are accepted
SURPLUS = 2.0  # candidates for a point: the rest is sky, or seen by too few views


def _check(folder, extent, views, aerial, width, height, seed, points, samples, threads):
    """Raise UserError for an argument that makes no city."""

    def whole(name, value, low, high):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise UserError(f"synth city: {name} must be a whole number, not {value!r}")
        if not low <= value <= high:
            raise UserError(f"synth city: {name} must be {low} to {high}, not {value}")

    if not (math.isfinite(extent) and 10.0 <= extent <= 10000.0):
        raise UserError(f"synth city: extent must be 10 to 10000 metres, not {extent}")
    if not 0.0 <= aerial <= 1.0:
        raise UserError(f"synth city: aerial is a share from 0 to 1, not {aerial}")
    whole("views", views, 1, 10_000_000)
    whole("width", width, 8, 16384)
    whole("height", height, 8, 16384)
    whole("seed", seed, 0, 2**63 - 1)
    whole("points", points, 1, 1_000_000_000)
    whole("samples", samples, 1, 256)
    whole("threads", threads, 0, 4096)
    if math.isqrt(samples) ** 2 != samples:
        raise UserError(f"synth city: samples must be a square (1, 4, 9, 16, ...), not {samples}")
    if os.path.lexists(folder) and not _is_empty(folder):
        raise UserError(f"synth city: {folder} exists and is not an empty folder; name a new one")


def _is_empty(folder):
    """Whether a path is a folder without content."""
    try:
        return os.path.isdir(folder) and not os.listdir(folder)
    except OSError as error:
        raise UserError(f"synth city: cannot read {folder}: {error.strerror}") from None


def _prepare(folder):
    """Make the folder that everything is written to before it gets its name; returns its path."""
    head, tail = os.path.split(os.path.abspath(folder))
    part = os.path.join(head, f".{tail}.city-part")
    try:
        if os.path.isdir(part):  # what a run that was killed left behind
            shutil.rmtree(part)
        for name in ("images", os.path.join("sparse", "0"), "transforms"):
            os.makedirs(os.path.join(part, name))
    except OSError as error:
        raise UserError(f"synth city: cannot write {part}: {error.strerror}") from None
    return part


def _on_root(comm, work):
    """work() on rank 0; its result, or its UserError, on every rank."""
    result, problem = None, None
    if comm is None or comm.rank == 0:
        try:
            result = work()
        except UserError as error:
            problem = str(error)
    if comm is not None:
        result, problem = comm.bcast((result, problem), root=0)
    if problem is not None:
        raise UserError(problem)
    return result


def _on_all(comm, work):
    """work() on every rank; when one meets a UserError, all raise it, so that none waits."""
    problem = None
    try:
        work()
    except UserError as error:
        problem = str(error)
    problems = [problem] if comm is None else comm.allgather(problem)
    problem = next((text for text in problems if text is not None), None)
    if problem is not None:
        raise UserError(problem)


def _photograph(scene, shots, own, images, samples, threads, progress):
    """Take this rank's photographs."""
    for done, k in enumerate(own, 1):
        picture = scene.render(shots[k].camera, samples, threads)
        try:
            write_photograph(os.path.join(images, shots[k].name), picture)
        except OSError as error:
            where = os.path.join(images, shots[k].name)
            raise UserError(f"synth city: cannot write {where}: {error.strerror}") from None
        if progress is not None:
            progress(done, len(own))


def _survey(scene, shots, own, images, points, comm, threads):
    """The sparse cloud on rank 0 (None elsewhere), whatever the number of ranks."""
    rig, found, count = Rig(shots), {}, 0
    for turn in range(ROUNDS):
        share = math.ceil((points - count) * SURPLUS / len(shots)) + 1
        for k in own:
            with Image.open(os.path.join(images, shots[k].name)) as file:
                picture = np.asarray(file)
            found[turn, k] = find_points(scene, rig, k, picture, share, turn, threads)
        count = sum(len(cloud.xyz) for cloud in found.values())
        count = count if comm is None else comm.allreduce(count)
        if count >= points:
            break
    parts = [found] if comm is None else comm.gather(found, root=0)
    if parts is None:
        return None
    found = {key: cloud for part in parts for key, cloud in part.items()}
    cloud = join([found[key] for key in sorted(found)])
    random = np.random.Generator(np.random.Philox(key=[scene.seed, 2]))
    return cloud.take(random.permutation(len(cloud.xyz))[:points])


def make_city(folder, extent=80.0, views=120, aerial=0.5, width=320, height=180, seed=0,
              points=20000, samples=4, comm=None, threads=0, progress=None):  # fmt: skip
    """Make the data set of a synthetic city in `folder` (see the module for its layout).

    folder: a new or empty folder; it appears whole or not at all (rank 0 renames it at the end).
    extent: side of the city, metres; whole blocks of 40 m, at least one. views: photographs;
    aerial: share of them from the air, 0 to 1. width, height: pixels. seed: everything follows
    from it. points: sparse points. samples: rays a pixel, a square number. comm: communicator of
    ranks that share the work (view k is rank k mod P's) or None; threads: per rank, 0 takes all.
    progress(done, total) is called after each photograph of this rank.

    The files are the same bytes for every number of ranks and threads. Returns a summary, equal on
    all ranks: the arguments, version, half (of the side of the blocks) and tallest in metres,
    pieces of geometry, train, test, points found (fewer where too little is seen by several
    views), observations. Raises UserError for arguments that make no city and for a folder
    that cannot be written.
    """
    folder = os.fspath(folder)
    arguments = dict(extent=float(extent), views=views, aerial=float(aerial), width=width)
    arguments.update(height=height, seed=seed, points=points, samples=samples)
    _on_root(comm, lambda: _check(folder, threads=threads, **arguments))
    part = _on_root(comm, lambda: _prepare(folder))
    scene = make_scene(float(extent), int(seed))
    shots = make_shots(scene, views, aerial, width, height)
    rank, ranks = (0, 1) if comm is None else (comm.rank, comm.size)
    own, images = range(rank, views, ranks), os.path.join(part, "images")
    _on_all(comm, lambda: _photograph(scene, shots, own, images, samples, threads, progress))
    cloud = _survey(scene, shots, own, images, points, comm, threads)

    def finish():
        summary = dict(kind="splaxel_mpi synthetic city", version=VERSION, **arguments)
        summary.update(half=scene.half, tallest=scene.tallest, pieces=len(scene.bounds))
        test = len(range(0, views, HOLD_OUT))
        summary.update(test=test, train=views - test)
        summary.update(points=len(cloud.xyz), observations=int(cloud.length.sum()))
        try:
            write_colmap(os.path.join(part, "sparse", "0"), shots, cloud)
            write_transforms(os.path.join(part, "transforms"), shots, cloud)
            write_summary(part, summary)
            os.rename(part, folder)
        except OSError as error:
            raise UserError(f"synth city: cannot write {folder}: {error.strerror}") from None
        return summary

    return _on_root(comm, finish)
