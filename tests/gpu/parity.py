"""What it means that a view on the GPU equals the host's (design section 8)."""

import dataclasses

import numpy as np
import reference
import splats as make
from test_project import convert, zero_gradients

from splaxel_mpi.backends.base import Splats
from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.scene.gaussians import GROUPS

NEAR = 0.05
IMAGE = 1e-5  # max|x - y| / max|y|
# L2 of a parameter group: sums by atomic additions in any order, and in a fixed one
ATOMIC, DETERMINISTIC = 1e-3, 1e-5


def on_device(value):
    """A dataclass of arrays with its arrays on the GPU."""
    import cupy

    arrays = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return type(value)(**{name: None if array is None else cupy.asarray(array)
                          for name, array in arrays.items()})


def double(splats):
    """The same splats for the float64 host build."""
    return Splats(splats.rows, splats.data.astype(np.float64), splats.ids)


@dataclasses.dataclass
class View:
    """A view that the host projected, in float32, and the seeds of its gradient: zero where a
    rounding decides whether a splat is drawn, for there any two builds differ."""

    gaussians: object
    camera: object
    splats: Splats
    near: np.ndarray  # (height, width) bool, those pixels
    seeds: np.ndarray  # (height, width, 4) float32
    rows: object  # what is compared of the gradients: (n,) bool, or all

    @staticmethod
    def of(gaussians, camera, rows=slice(None)):
        """The view of Gaussians (float32)."""
        splats = HostBackend(np.float32, 2).project(gaussians, camera, 3, NEAR)
        near = make.cut_off_pixels(splats, camera)
        seeds = (make.random_seeds(camera) * ~near[..., None]).astype(np.float32)
        return View(gaussians, camera, splats, near, seeds, rows)


def host_results(view, stop):
    """(image, gradients of the parameters) of the float64 host build."""
    host, gaussians = HostBackend(np.float64, 2), convert(view.gaussians, np.float64)
    return results(host, view, gaussians, double(view.splats), stop, lambda array: array)


def device_results(view, stop, deterministic):
    """The same of the CUDA backend."""
    import cupy

    backend = CudaBackend()
    backend.deterministic = deterministic
    splats = on_device(view.splats)
    return results(backend, view, on_device(view.gaussians), splats, stop, cupy.asarray)


def results(backend, view, gaussians, splats, stop, place):
    """From splats forward and back through a backend."""
    camera = view.camera
    lists = backend.tile_lists(splats, camera)
    partial = backend.rasterize(splats, lists, camera, stop)
    tiles = backend.to_host(lists.tiles)
    seeds = place(reference.to_tiles(view.seeds.astype(backend.real), tiles, camera))
    rows = backend.rasterize_backward(splats, lists, partial, seeds, camera, stop)
    out = zero_gradients(gaussians) if backend.name == "host" else on_device(
        zero_gradients(view.gaussians))
    backend.project_backward(gaussians, camera, 3, splats, rows, out)
    image = reference.to_image(tiles, backend.to_host(partial.pixels), camera)
    return image, {name: backend.to_host(getattr(out, name)) for name in (*GROUPS, "norm")}


def errors(found, expected, view):
    """(error of the image where it is not near a cut-off, {group: error of the gradient})."""
    (image, gradients), (real_image, real) = found, expected
    scale = max(np.abs(real_image).max(), 1e-30)
    worst = {}
    for name, values in real.items():
        values, mine = values[view.rows], gradients[name][view.rows]
        worst[name] = np.linalg.norm(mine - values) / max(np.linalg.norm(values), 1e-30)
    return np.abs(image - real_image)[~view.near].max(initial=0) / scale, worst


def check(view, stop=0.0, image=IMAGE, atomic=ATOMIC, deterministic=DETERMINISTIC):
    """Assert that the GPU equals the host on a view; bars as named."""
    expected = host_results(view, stop)
    for fixed, bar in ((False, atomic), (True, deterministic)):
        found = device_results(view, stop, fixed)
        image_error, worst = errors(found, expected, view)
        assert image_error <= image, image_error
        assert max(worst.values()) <= bar, (fixed, worst)
        assert all(np.isfinite(values).all() for values in found[1].values())
