"""Times training steps of ranks that exchange, and how long their hosts take.

    mpirun -n P python -m mpi4py tests/gpu/time_ranks.py GAUSSIANS SIDE KIND VIEWS CHUNK [--profile]

The city of data/gaussian_city.py, a step of VIEWS views of one KIND in chunks of CHUNK, masks on.
First rank 0 alone with all Gaussians and one cell (train/one_rank.py), then all ranks under the
strategies overlap and owner. Of each, milliseconds a view, the slowest rank: the whole; until the
calls return; of that waiting for exchanges; waiting for counts and flags of the device; and the
rest, which is the host's own work. --profile: also the functions that cost rank 0 most.
"""

import cProfile
import pstats
import sys
import time
from types import SimpleNamespace

import numpy as np

from splaxel_mpi.backends.cuda_copies import Reading
from splaxel_mpi.compose import make_compositor
from splaxel_mpi.data import gaussian_city
from splaxel_mpi.mpi import device, transport, world
from splaxel_mpi.mpi.pending import Pending
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.settings import Train
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import make_steps
from splaxel_mpi.visibility.saturation import Saturation

STEPS, WARM = 6, 4
SHOWN = 40  # functions of a profile
THREADS = 6  # that make Gaussians, a rank
STOP = THRESHOLD = 1e-4


class Clock:
    """Seconds inside some functions."""

    def __init__(self):
        self.seconds = 0.0

    def around(self, function):
        def timed(*arguments, **named):
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def make_job(exchange, backend, count, side, strategy, batch, chunk):
    """(state, steps) of these ranks on the city."""
    rank, ranks = exchange.rank, exchange.ranks
    bounds = [count * k // ranks for k in (rank, rank + 1)]
    gaussians = gaussian_city.gaussians(
        count, side, start=bounds[0], stop=bounds[1], threads=THREADS
    )
    tree = Tree.single() if ranks == 1 else build(gaussians.means, None, ranks, exchange)
    state = State.fresh(gaussians, None)
    state.move(backend.to_device)
    state.migrate(tree, exchange)
    layout = Layout(tree, rank, ranks, state.offsets)
    settings = SimpleNamespace(strategy=strategy, precision="float32")
    compositor = make_compositor(settings, backend, exchange, layout, [0, 0, 0])
    saturation = Saturation(THRESHOLD, "residual") if ranks > 1 else None
    renderer = Renderer(
        backend, exchange, layout, compositor, 0.1, STOP, saturation=saturation
    )
    train = Train(chunk=chunk)
    return state, make_steps(renderer, Optimizer(backend, train, side, batch), train)


def measure(name, exchange, backend, job, views, photos, profile):
    """Print a line on a job; returns milliseconds a view."""
    state, steps = job
    moving, reading = Clock(), Clock()
    originals = Pending.wait, Reading.take
    Pending.wait, Reading.take = moving.around(Pending.wait), reading.around(Reading.take)
    for _ in range(WARM):
        steps.step(state, views, photos, 3)
    steps.settle()
    exchange.comm.Barrier()
    moving.seconds = reading.seconds = 0.0
    steps.renderer.timers.take()
    start = time.perf_counter()
    for _ in range(STEPS):
        steps.step(state, views, photos, 3)
    returned = time.perf_counter() - start
    spent = np.array([moving.seconds, reading.seconds])
    steps.settle()
    backend.device.synchronize()
    whole = time.perf_counter() - start
    own = [whole, returned, *spent, returned - spent.sum()]
    times = np.max(exchange.comm.allgather(own), axis=0) * 1e3 / (STEPS * len(views))
    Pending.wait, Reading.take = originals
    if exchange.rank == 0:
        print(f"{name:8s} {times[0]:7.3f} ms a view; calls return after {times[1]:.3f}: exchanges "
              f"{times[2]:.3f}, reads {times[3]:.3f}, host {times[4]:.3f}", flush=True)
        stages = {key: seconds * 1e3 / (STEPS * len(views))
                  for key, seconds in steps.renderer.timers.seconds.items()}
        print("  stages:", ", ".join(f"{key} {ms:.3f}" for key, ms in stages.items()), flush=True)
    if profile:
        show_profile(steps, state, views, photos, exchange.rank == 0)
    return times[0]


def show_profile(steps, state, views, photos, shown):
    """Some more steps under the profiler."""
    profiler = cProfile.Profile()
    if shown:
        profiler.enable()
    for _ in range(STEPS):
        steps.step(state, views, photos, 3)
    steps.settle()
    if shown:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(SHOWN)


def main(count, side, kind, views, chunk, *options):
    from splaxel_mpi.backends.cuda import CudaBackend

    device.bind_early()
    comm = world.init()
    lines = device.bind(comm, share=True)
    backend = CudaBackend()
    if comm.rank == 0:
        print("\n".join(lines), flush=True)
    exchange = transport.make_exchange("auto", backend, comm)
    count, side, views, chunk = int(float(count)), float(side), int(views), int(chunk)
    cameras = gaussian_city.cameras(kind, views, side)
    views = [SimpleNamespace(camera=c, index=i) for i, c in enumerate(cameras)]
    photos = {v.index: backend.to_device(np.full((v.camera.height, v.camera.width, 3), 99, "u1"))
              for v in views}
    alone = 0.0
    if comm.rank == 0:
        one = transport.exchange_alone(backend)
        job = make_job(one, backend, count, side, "overlap", len(views), chunk)
        alone = measure("alone", one, backend, job, views, photos, False)
        del job
    alone = comm.bcast(alone)
    for strategy in ("overlap", "owner"):
        if comm.size > 1:
            job = make_job(exchange, backend, count, side, strategy, len(views), chunk)
            spent = measure(strategy, exchange, backend, job, views, photos,
                            "--profile" in options)
            del job
            if comm.rank == 0:
                print(f"{strategy}: {exchange.name}, {alone / spent:.2f} x one rank", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
