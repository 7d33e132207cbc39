"""GPU kernels before the clock starts: one rank of a node compiles, the others load."""

import logging
import os
import time
from types import SimpleNamespace

import numpy as np

from ..densify import make_densifier
from ..mpi.transport import exchange_alone
from ..partition.kdtree import build
from ..scene.camera import Camera
from ..scene.gaussians import GROUPS, Gaussians
from ..visibility.demand import whole_image
from .optimizer import Optimizer
from .state import State
from .step import train_step
from .world import World

log = logging.getLogger(__name__)

SIZE = 64  # pixels of a side: some tiles
COUNT = 300


def warm_up(config, world, make_renderer):
    """Bring all kernels of a training to every rank's GPU. Collective.

    make_renderer: function (config, world, tree, state) -> Renderer. Rank 0 of each node
    compiles while the others wait; these find the results in CuPy's folder on disk. Where they
    do not see that folder each compiles for itself. Does nothing on the host backend.
    """
    if world.backend.name != "cuda":
        return
    start = time.perf_counter()
    folder, reason = _shared_folder(world.node)
    alone = reason is None
    if world.node.rank == 0 or not alone:
        _prepare(config, world, make_renderer)
    world.node.Barrier()
    if world.node.rank and alone:
        _prepare(config, world, make_renderer)
    world.comm.Barrier()
    if world.is_root:
        how = f"kept in {folder}" if alone else f"{reason}: every rank compiles, at every start"
        log.info("kernels: ready after %.1f s (%s)", time.perf_counter() - start, how)


def _shared_folder(node):
    """CuPy's folder, and why one rank cannot compile for all of the node, or None. Collective."""
    from ..backends.cuda_compile import cache_folder, probe_folder

    folder = cache_folder()
    path = probe_folder(folder) if node.rank == 0 else None
    path = node.bcast(path)
    seen = node.allgather(path is not None and os.path.exists(path))
    if node.rank == 0 and path:
        os.unlink(path)
    if folder is None:
        return folder, "CUPY_CACHE_IN_MEMORY is set"
    if path is None:
        return folder, f"{folder} cannot be written, CUPY_CACHE_DIR may name another folder"
    if not all(seen):
        return folder, f"the ranks of a node do not share {folder}"
    return folder, None


def _prepare(config, world, make_renderer):
    from ..backends.cuda_compile import load_all
    from ..tools.kernels import sources

    load_all(world.backend.device, sources(), max(1, world.backend.threads))
    rehearse(config, world.backend, make_renderer)


def rehearse(config, backend, make_renderer):
    """One step and one growth event of a tiny scene in two cells on this rank alone.

    What the run does goes through the same calls with arrays of the same types, so that what is
    compiled at a first call, by whatever library, is compiled here.
    """
    exchange = exchange_alone(backend)
    world = World(exchange.comm, exchange.comm, exchange, backend)
    gaussians = _gaussians(backend.real)
    tree = build(gaussians.means, None, 2, exchange)
    state = State.fresh(gaussians, None)
    state.move(backend.to_device)
    state.migrate(tree, exchange)
    renderer = make_renderer(config, world, tree, state)
    views = [SimpleNamespace(camera=_camera(), index=0)]
    photos = {0: np.full((SIZE, SIZE, 3), 99, np.uint8)}
    optimizer = Optimizer(backend, config.train, 1.0, 1)
    degree = config.scene.sh_degree
    train_step(renderer, optimizer, state, views, photos, degree, config.train)
    renderer.draw(state.gaussians, [_camera()], degree, [whole_image(0)])
    densifier, total = make_densifier(config.densify, 1.0, 0), config.train.images
    if densifier and total > 1:
        state.norm[:] = 1  # all of them grow
        densifier.apply(state, 0, total - 1, total, exchange)
        state.migrate(tree, exchange)


def _camera():
    """At the origin, along z, over SIZE x SIZE pixels."""
    middle = SIZE / 2
    return Camera(SIZE, SIZE, SIZE, SIZE, middle, middle, np.eye(3), np.zeros(3))


def _gaussians(real):
    """COUNT in front of the camera, on either side of its axis; half of them very small."""
    draw = np.random.default_rng(0)
    parts = {name: draw.normal(0, 0.3, (COUNT, width)) for name, width in GROUPS.items()}
    parts["means"] += [0, 0, 3]
    parts["scales"] -= 3
    parts["scales"][::2] -= 3
    parts["quats"][:, 0] += 1
    parts = {name: np.ascontiguousarray(array, real) for name, array in parts.items()}
    return Gaussians(**parts, ids=np.arange(COUNT, dtype=np.int64))
