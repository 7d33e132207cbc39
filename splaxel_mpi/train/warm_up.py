"""GPU kernels before the clock starts: one rank of a node compiles, the others load."""

import logging
import os
import time
from types import SimpleNamespace

import numpy as np

from ..densify import make_densifier
from ..mpi.transport import exchange_alone
from ..partition.content import ContentBoxes
from ..partition.kdtree import build
from ..scene.camera import Camera
from ..scene.gaussians import GROUPS, Gaussians
from ..visibility.demand import whole_image
from .one_rank import OneRank
from .optimizer import Optimizer
from .state import State
from .step import make_steps
from .world import World

log = logging.getLogger(__name__)

SIZE = 64  # pixels of a side: some tiles
COUNT = 300


def warm_up(config, world, make_renderer):
    """Bring all kernels of a training to every rank's GPU. Collective.

    make_renderer: function (config, world, tree, state, boxes) -> Renderer. Rank 0 of each node
    compiles while the others wait; these find the results in CuPy's folder on disk. Where they
    do not see that folder each compiles for itself. Does nothing on the host backend.
    """
    if world.backend.name != "cuda":
        return
    start = time.perf_counter()
    folder, reason = _shared_folder(world.node)
    waits = world.node.rank > 0 and reason is None
    if waits:
        _build_sorts(world.backend)
    else:
        _prepare(config, world, make_renderer)
    world.node.Barrier()
    if waits:
        _prepare(config, world, make_renderer)
    world.comm.Barrier()
    if world.is_root:
        how = f"kept in {folder}" if not reason else f"{reason}: every rank compiles, every time"
        log.info("kernels: ready after %.1f s (%s)", time.perf_counter() - start, how)


def _shared_folder(node):
    """CuPy's folder, and why one rank cannot compile for all of the node, or None. Collective."""
    from ..backends.cuda_compile import probe_folder
    from ..backends.cuda_module import cache_folder

    folder = cache_folder()
    path = probe_folder(folder) if node.rank == 0 else None
    path = node.bcast(path)
    # in the folder of each rank: names of folders may differ, and what is behind the same name
    name = path and os.path.basename(path)
    seen = node.allgather(bool(folder and name and os.path.exists(folder / name)))
    if node.rank == 0 and path:
        os.unlink(path)
    if folder is None:
        return folder, "CUPY_CACHE_IN_MEMORY is set"
    if path is None:
        return folder, f"{folder} cannot be written, CUPY_CACHE_DIR may name another folder"
    if not all(seen):
        return folder, f"the ranks of a node do not share {folder}"
    return folder, None


def _build_sorts(backend):
    from ..backends.cuda_compile import in_background, sort_jobs

    with in_background(backend.device, sort_jobs(), backend.threads):
        pass


def _prepare(config, world, make_renderer):
    """Compile or load everything: what takes long at the same time as the growth event."""
    from ..backends.cuda_compile import in_background, kernel_jobs, sort_jobs
    from ..tools.kernels import sources

    backend = world.backend
    jobs = sort_jobs() + kernel_jobs(sources())
    cells = config.partition.cells or world.ranks
    rehearsal = Rehearsal(config, backend, make_renderer, min(cells, 2))
    with in_background(backend.device, jobs, backend.threads):
        rehearsal.grow()
    rehearsal.step()


class Rehearsal:
    """A tiny scene on this rank alone, in two cells, or in one where the run has one.

    What the run does goes through the same calls with arrays of the same types, so that what is
    compiled at a first call, by whatever library, is compiled here.
    """

    def __init__(self, config, backend, make_renderer, cells):
        self.config, self.backend, self.make_renderer = config, backend, make_renderer
        self.exchange = exchange_alone(backend)
        self.densifier = make_densifier(config.densify, 1.0, 0, backend)
        gaussians = _gaussians(backend.real)
        self.tree = build(gaussians.means, None, cells, self.exchange)
        self.state = State.fresh(gaussians, None)
        self.state.move(backend.to_device)
        self.state.migrate(self.tree, self.exchange)

    def grow(self):
        """A growth event in which every Gaussian is cloned or split."""
        total = self.config.train.images
        if self.densifier and total > 1:
            self.state.norm[:] = 1
            self.densifier.apply(self.state, 0, total - 1, total, self.exchange)
            self.state.migrate(self.tree, self.exchange)

    def step(self):
        """One update from one view, and an image of it."""
        config, comm, backend = self.config, self.exchange.comm, self.backend
        world = World(comm, comm, self.exchange, backend)
        boxes, state = ContentBoxes(config.partition.margin), self.state
        boxes.update(state.gaussians, state.offsets, self.tree, self.exchange)
        renderer = self.make_renderer(config, world, self.tree, state, boxes)
        optimizer = Optimizer(backend, config.train, 1.0, 1)
        steps = make_steps(renderer, optimizer, config.train, self.densifier)
        photo = np.full((SIZE, SIZE, 3), 99, np.uint8)
        if isinstance(steps, OneRank):
            photo = backend.to_device(photo)
        views = [SimpleNamespace(camera=_camera(), index=0)]
        degree = config.scene.sh_degree
        steps.step(state, views, {0: photo}, degree)
        steps.settle()
        renderer.draw(state.gaussians, [_camera()], degree, [whole_image(0)])


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
