"""Times whole training steps (batch 1), and gsplat's in the same run.

    python tests/gpu/time_step.py city Gaussians side kind views [--gsplat]
    python tests/gpu/time_step.py scene folder scale images [--gsplat]

city: the benchmark city (its module on the path) against synthetic photographs, selective Adam,
learning rates zero. scene: a data set that is first trained for so many images. ms a step is wall
time over many steps, host work included; stages are by CUDA events in a second pass, in which the
GPU never waits for the host. gsplat is called as its users do: rasterization, L1 + SSIM by
convolutions, backward, then torch's fused dense Adam or gsplat's SelectiveAdam.
"""

import sys
import tempfile
import time
from types import SimpleNamespace

import numpy as np
from time_chain import load_city
from time_raster import load_cameras

from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.settings import Rates, Train
from splaxel_mpi.train.one_rank import OneRank
from splaxel_mpi.train.optimizer import RATES, Optimizer
from splaxel_mpi.train.state import State

NEAR, STOP, WARM, STEPS = 0.1, 1e-4, 24, 96
STAGES = ["project", "tile_lists", "rasterize", "compose_layer", "loss", "compose_layer_backward",
          "rasterize_backward", "project_backward_adam", "project_backward", "adam_groups"]
# Keeps the GPU busy while the host launches a step, so that spans hold no waiting for the host.
SPIN = """extern "C" __global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles);
}"""
SPIN_CYCLES = 6_000_000


def city_steps(gaussians, extent=1.0):
    """(state, OneRank) on the city, its rows in the order in which training keeps them."""
    import cupy
    from mpi4py import MPI

    from splaxel_mpi.mpi.staged import StagedExchange

    backend = CudaBackend()
    train = Train(images=10**6, rates=Rates(**{name: 0.0 for name in RATES.values()}))
    rows = np.array([0, len(gaussians)], np.int64)
    state = State.fresh(gaussians.map(cupy.asarray), rows)
    state.migrate(Tree.single(), StagedExchange(MPI.COMM_SELF))
    renderer = SimpleNamespace(
        backend=backend, visible_count=0, timers=lambda name: Nothing())
    running = backend.free_running(NEAR, STOP, np.zeros(3, np.float32), train.ssim_weight)
    return state, OneRank(renderer, Optimizer(backend, train, extent, 1), running)


class Nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def time_steps(state, steps, views, photos):
    """Prints ms a step and ms of each stage."""
    def run(count):
        for k in range(count):
            steps.step(state, [views[k % len(views)]], photos, 3)
        steps.settle()

    run(WARM)
    start = time.perf_counter()
    for k in range(STEPS):
        steps.step(state, [views[k % len(views)]], photos, 3)
    launched = time.perf_counter() - start
    steps.settle()
    whole = time.perf_counter() - start
    count = steps.renderer.visible_count // (WARM + STEPS)
    print(f"ours: {1e3 * whole / STEPS:.3f} ms a step, launched in {1e3 * launched / STEPS:.3f}, "
          f"{len(state.gaussians)} Gaussians, {count} visible, room for "
          f"{steps.tally.room(len(state.gaussians)).splats}", flush=True)
    host(run)
    breakdown(state, steps, views, photos)


class NoRecordings(dict):
    """Has every view launched stage by stage."""

    def __setitem__(self, key, value):
        pass


def breakdown(state, steps, views, photos):
    """Prints ms of each stage and of the whole step on the GPU."""
    import cupy

    spin = cupy.RawKernel(SPIN, "spin")
    backend, running = steps.running.backend, steps.running
    spans = {name: [] for name in STAGES}
    for name in STAGES:
        setattr(backend, name, timed(getattr(backend, name), spans[name]))
    view, whole = running.view, []
    running.view = timed(view, whole)
    running.recordings = NoRecordings()
    for k in range(2 * len(views)):
        spin((1,), (1,), (np.int64(SPIN_CYCLES),))
        steps.step(state, [views[k % len(views)]], photos, 3)
    steps.settle()
    spans["view"] = whole
    times = {name: np.median([cupy.cuda.get_elapsed_time(*pair) for pair in pairs])
             for name, pairs in spans.items() if pairs}
    print("   on the GPU: " + ", ".join(f"{name} {ms:.3f}" for name, ms in times.items()),
          flush=True)
    for name in STAGES:
        delattr(backend, name)
    del running.view


def timed(function, spans):
    import cupy

    def call(*arguments, **named):
        pair = cupy.cuda.Event(), cupy.cuda.Event()
        pair[0].record()
        result = function(*arguments, **named)
        pair[1].record()
        spans.append(pair)
        return result

    return call


def host(run):
    """What the host spends its time on."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(run, 64)
    stats = pstats.Stats(profile)
    rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])[:14]
    print("   host (us a step, own time, profiled): " + "; ".join(
        f"{where[2]} {1e6 * row[2] / 64:.0f} ({row[0] // 64}x)" for where, row in rows),
        flush=True)


def gsplat_steps(parameters, cameras, photos, near, selective):
    """Medians in ms of gsplat's steps: all, render, loss, backward, update."""
    import gsplat_prebuilt  # noqa: F401
    import torch
    import torch.nn.functional as F
    from gsplat import rasterization
    from gsplat.optimizers import SelectiveAdam

    taps = torch.exp(-(torch.arange(11, device="cuda") - 5.0) ** 2 / 4.5)
    taps /= taps.sum()
    window = (taps[:, None] * taps[None])[None, None].repeat(3, 1, 1, 1)

    def blur(x):
        return F.conv2d(x, window, padding=5, groups=3)

    def ssim(a, b):
        a, b = a.permute(0, 3, 1, 2), b.permute(0, 3, 1, 2)
        ma, mb = blur(a), blur(b)
        va, vb, vab = blur(a * a) - ma * ma, blur(b * b) - mb * mb, blur(a * b) - ma * mb
        top = (2 * ma * mb + 1e-4) * (2 * vab + 9e-4)
        return (top / ((ma * ma + mb * mb + 1e-4) * (va + vb + 9e-4))).mean()

    p = {k: torch.nn.Parameter(torch.as_tensor(v, device="cuda")) for k, v in parameters.items()}
    if selective:
        optimizers = [SelectiveAdam([x], eps=1e-15, betas=(0.9, 0.999)) for x in p.values()]
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 1e-9
    else:
        optimizers = [torch.optim.Adam([x], lr=1e-9, eps=1e-15, fused=True) for x in p.values()]
    found = []
    for repeat in range(3):
        for camera, photo in zip(cameras, photos):
            k = torch.tensor([[camera.fx, 0, camera.cx], [0, camera.fy, camera.cy], [0, 0, 1]],
                             device="cuda", dtype=torch.float32)
            w = np.eye(4, dtype=np.float32)
            w[:3, :3], w[:3, 3] = camera.rotation, camera.translation
            w = torch.tensor(w, device="cuda")
            events = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
            events[0].record()
            image, _, info = rasterization(
                p["means"], p["quats"], p["scales"].exp(), p["opacities"].sigmoid(), p["sh"],
                w[None], k[None], camera.width, camera.height, sh_degree=3, packed=False,
                near_plane=near)
            events[1].record()
            truth = photo[None].float() / 255
            loss = 0.8 * (image - truth).abs().mean() + 0.2 * (1 - ssim(image, truth))
            events[2].record()
            loss.backward()
            events[3].record()
            seen = (info["radii"] > 0).all(-1).any(0)
            for optimizer in optimizers:
                optimizer.step(seen) if selective else optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            events[4].record()
            torch.cuda.synchronize()
            if repeat:
                marks = [a.elapsed_time(b) for a, b in zip(events[:-1], events[1:])]
                found.append([events[0].elapsed_time(events[4]), *marks])
    return np.median(found, axis=0)


def compare_with_gsplat(state, views, photos, near):
    import torch

    host = {name: array.get() for name, array in state.gaussians.groups()}
    rest = host["shN"].reshape(-1, 15, 3)
    parameters = dict(
        means=host["means"], quats=host["quats"], scales=host["scales"],
        opacities=host["opacities"][:, 0], sh=np.concatenate([host["sh0"][:, None], rest], 1))
    pictures = [torch.as_tensor(photos[view.index].get(), device="cuda") for view in views]
    for selective in (False, True):
        times = gsplat_steps(parameters, [v.camera for v in views], pictures, near, selective)
        print(f"gsplat {'SelectiveAdam' if selective else 'dense Adam'}: {times[0]:.2f} ms a step; "
              "render {:.2f} loss {:.2f} backward {:.2f} update {:.2f}".format(*times[1:]),
              flush=True)


def time_city(count, side, kind, views, with_gsplat):
    import cupy

    _, gaussians = load_city(count, side)
    views = [SimpleNamespace(camera=camera, index=i)
             for i, camera in enumerate(load_cameras(kind, views, side))]
    random = np.random.default_rng(0)
    photos = {v.index: cupy.asarray(random.integers(
        0, 256, (v.camera.height, v.camera.width, 3), np.uint8)) for v in views}
    print(f"city {count / 1e6:g} M {kind}", flush=True)
    state, steps = city_steps(gaussians)
    time_steps(state, steps, views, photos)
    if with_gsplat:
        del steps
        cupy.get_default_memory_pool().free_all_blocks()
        compare_with_gsplat(state, views, photos, NEAR)


def time_scene(folder, scale, images, with_gsplat):
    from mpi4py import MPI

    from splaxel_mpi.config import load
    from splaxel_mpi.train import job
    from splaxel_mpi.train.folder import open_folder

    out = tempfile.mkdtemp()
    config = load("configs/photos.yaml", [
        f"data.path={folder}", f"data.scale={scale}", f"train.images={images}", "train.batch=1",
        f"run.folder={out}"])
    comm = MPI.COMM_WORLD
    world = job.make_world(config, comm)
    data = job.read_data(config, world)
    cache = job.make_cache(config, world, data)
    with open_folder(config, False, world) as (place, _):
        trainer = job.prepare(config, False, world, data, cache, place)
        windows = [(0, time.perf_counter())]
        report = trainer.recorder.report

        def timed_report(state, *rest):
            report(state, *rest)
            windows.append((state.images_seen, time.perf_counter()))

        trainer.recorder.report = timed_report
        trainer.run()
        spans = np.diff(np.array(windows), axis=0)
        each = 1e3 * spans[:, 1] / spans[:, 0]
        print(f"trained {images} images in {spans[:, 1].sum():.2f} s (compilation included); "
              f"between reports, growth included, {np.median(each):.3f} ms an image, the last "
              f"{each[-1]:.3f}; PSNR {trainer.evaluate().psnr:.2f}", flush=True)
    views = [data.views[i] for i in data.train]
    photos = trainer.photos.fetch(data.train)
    time_steps(trainer.state, trainer.steps, views, photos)
    if with_gsplat:
        compare_with_gsplat(trainer.state, views, photos, config.render.near)


if __name__ == "__main__":
    flag = "--gsplat" in sys.argv
    if sys.argv[1] == "city":
        time_city(int(float(sys.argv[2])), float(sys.argv[3]), sys.argv[4], int(sys.argv[5]), flag)
    else:
        time_scene(sys.argv[2], sys.argv[3], int(sys.argv[4]), flag)
