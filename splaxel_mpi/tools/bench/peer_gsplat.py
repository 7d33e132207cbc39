"""gsplat on the same views, as its users call it; imported only when asked for.

Dense and packed rasterization, forward and backward; a whole step with L1 + SSIM by convolutions
and PyTorch's fused dense Adam; and rasterization with gsplat's SelectiveAdam, without a loss.
"""

import math

import numpy as np

from .base import Samples
from .stages import NEAR, SEED, SSIM_WEIGHT

WINDOW, SIGMA = 11, 1.5  # of SSIM
RATE, EPSILON = 1e-12, 1e-15


def require():
    """Raise ImportError where torch or gsplat is missing or sees no GPU."""
    import gsplat  # noqa: F401
    import torch

    if not torch.cuda.is_available():
        raise ImportError("PyTorch sees no GPU")


def measure(scene, passes):
    """{name, version, modes: {mode: {what: median milliseconds over views}}} of a scene."""
    import gsplat
    import torch

    views = [_view(camera) for camera in scene.cameras]
    modes = {}
    for mode in ("dense", "packed"):
        samples = _time_raster(scene, views, mode == "packed", passes)
        forward, backward = (samples.median(name) for name in ("forward", "backward"))
        modes[mode] = {"forward": forward, "backward": backward,
                       "forward + backward": forward + backward}
        torch.cuda.empty_cache()
    faster = min(("dense", "packed"), key=lambda mode: modes[mode]["forward + backward"])
    modes["loss, dense Adam"] = {"step": _time_step(scene, views, passes, False, False)}
    torch.cuda.empty_cache()
    step = _time_step(scene, views, passes, True, faster == "packed")
    modes[f"{faster}, SelectiveAdam"] = {"step without loss": step}
    torch.cuda.empty_cache()
    return {"name": "gsplat", "version": gsplat.__version__, "modes": modes}


def image(scene, camera):
    """(height, width, 3) float32 that gsplat renders."""
    import torch

    with torch.no_grad():
        return _render(_activated(scene), _view(camera), scene.degree, False)[0][0].cpu().numpy()


def _view(camera):
    """(world to camera, intrinsics, width, height) as gsplat takes them."""
    import torch

    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = camera.rotation, camera.translation
    matrix = [[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]]
    pose, matrix = (torch.tensor(np.array(a), dtype=torch.float32, device="cuda")[None]
                    for a in (pose, matrix))
    return pose, matrix, camera.width, camera.height


def _parameters(scene):
    """The groups that a trainer holds, as tensors with gradients."""
    import torch

    g = scene.gaussians
    colours = np.concatenate([g.sh0[:, None], g.shN.reshape(len(g), 15, 3)], axis=1)
    arrays = {"means": g.means, "scales": g.scales, "quats": g.quats,
              "opacities": g.opacities[:, 0], "sh": colours}
    return {name: torch.nn.Parameter(torch.tensor(array, device="cuda"))
            for name, array in arrays.items()}


def _activated(scene):
    """Tensors that rasterization takes, as leaves."""
    found = _parameters(scene)
    found["scales"] = found["scales"].detach().exp().requires_grad_()
    found["opacities"] = found["opacities"].detach().sigmoid().requires_grad_()
    return found


def _render(p, view, degree, packed):
    """gsplat's (image (1, h, w, 3), alpha, facts)."""
    from gsplat import rasterization

    return rasterization(p["means"], p["quats"], p["scales"], p["opacities"], p["sh"], *view,
                         sh_degree=degree, packed=packed, near_plane=NEAR)


def _events(count):
    import torch

    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def _time_raster(scene, views, packed, passes):
    """Samples of forward and backward into gradients of all parameters."""
    import torch

    tensors, samples = _activated(scene), Samples()
    for turn in range(passes):
        for index, view in enumerate(views):
            for tensor in tensors.values():
                tensor.grad = None
            begin, middle, end = _events(3)
            torch.cuda.synchronize()
            begin.record()
            rendered, *_ = _render(tensors, view, scene.degree, packed)
            middle.record()
            rendered.backward(torch.full_like(rendered, SEED))
            end.record()
            torch.cuda.synchronize()
            if turn:
                samples.add("forward", index, begin.elapsed_time(middle))
                samples.add("backward", index, middle.elapsed_time(end))
    return samples


def _time_step(scene, views, passes, selective, packed):
    """Median milliseconds of a step: with the loss and dense Adam, or without a loss and with
    SelectiveAdam."""
    import torch

    parameters, samples = _parameters(scene), Samples()
    optimizers = [_optimizer(one, selective) for one in parameters.values()]
    dissimilarity = _Dissimilarity()
    for turn in range(passes):
        for index, view in enumerate(views):
            photo = torch.rand(1, view[3], view[2], 3, device="cuda")
            begin, end = _events(2)
            torch.cuda.synchronize()
            begin.record()
            active = dict(parameters, scales=parameters["scales"].exp(),
                          opacities=parameters["opacities"].sigmoid())
            rendered, _, facts = _render(active, view, scene.degree, packed)
            if selective:
                rendered.backward(torch.full_like(rendered, SEED))
                seen = _seen(facts, len(scene.gaussians), packed)
            else:
                error = (1 - SSIM_WEIGHT) * (rendered - photo).abs().mean()
                (error + SSIM_WEIGHT * dissimilarity(rendered, photo)).backward()
            for optimizer in optimizers:
                optimizer.step(seen) if selective else optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            end.record()
            torch.cuda.synchronize()
            if turn:
                samples.add("step", index, begin.elapsed_time(end))
    return samples.median("step")


def _optimizer(parameter, selective):
    import torch

    if selective:
        from gsplat.optimizers import SelectiveAdam

        group = {"params": [parameter], "lr": RATE}
        return SelectiveAdam([group], eps=EPSILON, betas=(0.9, 0.999))
    return torch.optim.Adam([parameter], lr=RATE, eps=EPSILON, fused=True)


def _seen(facts, count, packed):
    """(count,) bool, Gaussians that a view sees."""
    import torch

    if not packed:
        return (facts["radii"] > 0).all(-1).any(0)
    seen = torch.zeros(count, dtype=torch.bool, device="cuda")
    seen[facts["gaussian_ids"]] = True
    return seen


class _Dissimilarity:
    """1 - SSIM by convolutions, the way trainers on PyTorch compute it."""

    def __init__(self):
        import torch

        taps = torch.arange(WINDOW, device="cuda") - WINDOW // 2
        taps = torch.exp(-taps.float() ** 2 / (2 * SIGMA**2)) / (SIGMA * math.sqrt(2 * math.pi))
        taps = taps / taps.sum()
        self.window = (taps[:, None] * taps[None])[None, None].repeat(3, 1, 1, 1)

    def __call__(self, first, second):
        import torch.nn.functional as functional

        def blur(planes):
            return functional.conv2d(planes, self.window, padding=WINDOW // 2, groups=3)

        x, y = first.permute(0, 3, 1, 2), second.permute(0, 3, 1, 2)
        mean_x, mean_y = blur(x), blur(y)
        xx, yy = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2
        xy = blur(x * y) - mean_x * mean_y
        above = (2 * mean_x * mean_y + 0.01**2) * (2 * xy + 0.03**2)
        below = (mean_x**2 + mean_y**2 + 0.01**2) * (xx + yy + 0.03**2)
        return 1 - (above / below).mean()
