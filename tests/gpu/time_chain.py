"""Times a view forward and backward on the benchmark city (shared/bench/city.py on the path).

    python tests/gpu/time_chain.py Gaussians side kind views [--gsplat]

Forward: project, tile lists, rasterize. Backward: rasterize backward and projection backward
into zeroed gradients of all parameters. Medians over views in ms by CUDA events, host work and
synchronisations included. --gsplat times gsplat's two modes on the same views in the same run.
"""

import sys

import numpy as np
from time_raster import load_cameras

from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.scene.gaussians import Gaussians
from splaxel_mpi.train.state import State

NEAR, STOP, PASSES = 0.1, 1e-4, 3


def load_city(count, side):
    """The city with degree 3 colours, as gsplat's arrays and as ours."""
    from city import gaussians

    city = gaussians(count, side)
    opacity = np.clip(city["opacities"], 1e-6, 1 - 1e-6)[:, None]
    ours = Gaussians(
        city["means"], np.log(city["scales"]), city["quats"],
        np.log(opacity / (1 - opacity)).astype(np.float32),
        np.ascontiguousarray(city["sh"][:, 0]),
        np.ascontiguousarray(city["sh"][:, 1:].reshape(count, 45)),
        np.arange(count, dtype=np.int64),
    )
    return city, ours


def time_passes(views, forward, backward):
    """Medians over views and passes but the first: (forward ms, backward ms)."""
    import cupy

    found = []
    for repeat in range(PASSES):
        for view in views:
            events = [cupy.cuda.Event() for _ in range(3)]
            events[0].record()
            kept = forward(view)
            events[1].record()
            backward(view, kept)
            events[2].record()
            events[2].synchronize()
            if repeat:
                spans = zip(events[:-1], events[1:])
                found.append([cupy.cuda.get_elapsed_time(a, b) for a, b in spans])
    return np.median(found, axis=0)


def time_ours(gaussians, cameras):
    """Our chain on one cell."""
    import cupy

    backend = CudaBackend()
    gaussians = gaussians.map(cupy.asarray)
    state = State.fresh(gaussians, None)
    out = state.gradients()

    def forward(camera):
        splats = backend.project(gaussians, camera, 3, NEAR)
        lists = backend.tile_lists(splats, camera)
        return splats, lists, backend.rasterize(splats, lists, camera, STOP)

    def backward(camera, kept):
        splats, lists, partial = kept
        seeds = cupy.full(partial.pixels.shape, 1e-6, np.float32)
        for name, _ in gaussians.groups():
            getattr(out, name)[...] = 0
        rows = backend.rasterize_backward(splats, lists, partial, seeds, camera, STOP)
        backend.project_backward(gaussians, camera, 3, splats, rows, out)

    return time_passes(cameras, forward, backward)


def time_gsplat(city, cameras, packed):
    """gsplat 1.5.3 as its users call it."""
    import gsplat_prebuilt  # noqa: F401
    import torch
    from gsplat import rasterization

    tensors = {k: torch.tensor(v, device="cuda", requires_grad=True) for k, v in city.items()}
    found = []
    for repeat in range(PASSES):
        for c in cameras:
            k = torch.tensor([[c.fx, 0, c.cx], [0, c.fy, c.cy], [0, 0, 1]], device="cuda")
            w = np.eye(4)
            w[:3, :3], w[:3, 3] = c.rotation, c.translation
            w = torch.tensor(w, device="cuda", dtype=torch.float32)
            for tensor in tensors.values():
                tensor.grad = None
            events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
            events[0].record()
            image, *_ = rasterization(
                tensors["means"], tensors["quats"], tensors["scales"], tensors["opacities"],
                tensors["sh"], w[None], k[None].float(), c.width, c.height, sh_degree=3,
                packed=packed, near_plane=NEAR,
            )
            events[1].record()
            image.backward(torch.full_like(image, 1e-6))
            events[2].record()
            torch.cuda.synchronize()
            if repeat:
                found.append([a.elapsed_time(b) for a, b in zip(events[:-1], events[1:])])
    return np.median(found, axis=0)


def main(count, side, kind, views, with_gsplat):
    city, ours = load_city(count, side)
    cameras = list(load_cameras(kind, views, side))
    rows = {"splaxel": time_ours(ours, cameras)}
    if with_gsplat:
        rows["gsplat dense"] = time_gsplat(city, cameras, False)
        rows["gsplat packed"] = time_gsplat(city, cameras, True)
    for name, (forward, backward) in rows.items():
        total = forward + backward
        print(f"{count / 1e6:g} M {kind} {name}: forward {forward:.2f} backward {backward:.2f} "
              f"sum {total:.2f} ms, {total / sum(rows['splaxel']):.2f} x ours", flush=True)


if __name__ == "__main__":
    main(int(float(sys.argv[1])), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]),
         "--gsplat" in sys.argv)
