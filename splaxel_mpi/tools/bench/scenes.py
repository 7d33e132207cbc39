"""Scenes to measure on: the city of Gaussians, or a trained one with its cameras."""

from dataclasses import dataclass

import numpy as np

from ...data.gaussian_city import cameras, gaussians
from ...errors import UserError
from ...partition.morton import codes
from ...scene.gaussians import Gaussians


@dataclass
class Scene:
    """Gaussians (float32, on the host), views of them and what both are called."""

    name: str
    gaussians: Gaussians
    cameras: list
    degree: int  # SH degree in use


def city(count, side, kinds, views, size, threads, arrange, seed=0):
    """Yield scenes of one city, one for each kind of views.

    count: Gaussians; side: metres; kinds: of data.gaussian_city.KINDS; views: of each kind;
    size: (width, height) in pixels; threads: that make the city; arrange: puts the Gaussians,
    which are in random order, into another.
    """
    content = arrange(gaussians(count, side, seed, threads=threads))
    name = f"city of {count / 1e6:g} M Gaussians, {side:g} m"
    for kind in kinds:
        seen = cameras(kind, views, side, seed + 1, *size)
        yield Scene(f"{name}, {kind}", content, seen, 3)


def trained(model, data, scale, views, arrange):
    """The scene of a run: its PLY or checkpoint, seen by cameras of its data set.

    model: path of a .ply or .h5 file; data: path of the data set; scale: reduction of its
    images; views: how many, evenly spaced by name; arrange: as for city. Raises UserError for
    files that cannot be read.
    """
    from ...data.dataset import load

    found = load(data, scale=scale)
    content, degree = _read(str(model), found.origin)
    if not len(content):
        raise UserError(f"{model}: holds no Gaussians; give a trained model")
    picked = np.unique(np.linspace(0, len(found.views) - 1, views).round().astype(int))
    chosen = [found.views[index].camera for index in picked]
    return Scene(f"{model}, {len(content):,} Gaussians", arrange(content), chosen, degree)


def along_curve(gaussians, backend):
    """A copy in the order in which training keeps the rows of a cell (partition.morton)."""
    means = backend.to_device(gaussians.means)
    low, high = (backend.to_host(end).astype(np.float64) for end in (means.min(0), means.max(0)))
    order = backend.xp.argsort(codes(means, low, high - low, backend.xp), kind="stable")
    return gaussians.take(backend.to_host(order))


def _read(path, origin):
    """(Gaussians in the frame of training, degree in use)."""
    if path.endswith(".ply"):
        from ...scene.ply import read_ply

        return read_ply(path, origin)
    if path.endswith(".h5"):
        from ...checkpoint.resume import load

        stored = load(path)
        return stored.gaussians.map(_single), stored.sh_degree
    raise UserError(f"{path}: not a model; give a .ply or a checkpoint, .h5")


def _single(array):
    """float32 of a real array; others as they are."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array
