"""Times the exchanges inside training steps against the same messages alone.

    mpirun -n 2 python -m mpi4py tests/gpu/time_exchange.py city Gaussians side kind views
    mpirun -n 2 python -m mpi4py tests/gpu/time_exchange.py photos configs/photos.yaml KEY=VALUE...

For each transport that works here: steps of two views, each exchange behind a barrier, so that
waiting for the other ranks is apart. "alone": the same counts once more, without a step around
them and without our buffers, median of 20: MPI's Alltoallv on device memory for cuda-aware and
staged (there through page-locked memory), grouped calls of NCCL for nccl. The city is that of
data/gaussian_city.py.
"""

import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from splaxel_mpi import config
from splaxel_mpi.compose.overlap import Overlap
from splaxel_mpi.data import gaussian_city
from splaxel_mpi.mpi import device, transport, world
from splaxel_mpi.mpi.host import starts
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.settings import Train
from splaxel_mpi.train import job
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import make_steps
from splaxel_mpi.train.world import make_world

STEPS, WARM, REPEATS = 12, 4, 20


def recording(kind):
    """The transport, which also keeps what every exchange of device data was."""

    class Recording(kind):
        calls = ()

        def alltoallv(self, what, data, counts, received=None):
            before = self.seconds[what] - self.waited[what]
            out, received = super().alltoallv(what, data, counts, received)
            if not isinstance(data, np.ndarray):
                spent = self.seconds[what] - self.waited[what] - before
                sizes = counts * data.itemsize, received * data.itemsize
                self.calls.append((what, *sizes, spent))
            return out, received

    return Recording


def alone(exchange, sent, received):
    """Median seconds of an exchange of so many bytes, nothing around it."""
    import cupy

    own, stream = exchange.rank, cupy.cuda.get_current_stream()
    sent, received = (np.where(np.arange(len(a)) == own, 0, a) for a in (sent, received))
    data, out = (cupy.zeros(int(a.sum()) + 1, np.uint8) for a in (sent, received))
    if exchange.name == "staged":
        lower, upper = (exchange._allocate(len(a)) for a in (data, out))

    def run():
        if exchange.name == "nccl":
            at = (exchange._address(data), starts(sent), sent)
            exchange._exchanging(*at, exchange._address(out), starts(received), received)[0]()
        elif exchange.name == "staged":
            data.get(out=lower)
            move(lower, upper)
            out.set(upper)
        else:
            move(data, out)
        stream.synchronize()

    def move(one, other):
        exchange.comm.Alltoallv(
            [one, (sent, starts(sent))], [other, (received, starts(received))]
        )

    times = []
    for _ in range(REPEATS):
        exchange.comm.Barrier()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return np.median(times[REPEATS // 4 :])


def city_steps(exchange, backend, count, side, kind, views):
    """Function that makes a step of two views of the city."""
    bounds = [count * rank // exchange.ranks for rank in (exchange.rank, exchange.rank + 1)]
    gaussians = gaussian_city.gaussians(count, side, start=bounds[0], stop=bounds[1])
    tree = build(gaussians.means, None, exchange.ranks, exchange)
    state = State.fresh(gaussians, None)
    state.move(backend.to_device)
    state.migrate(tree, exchange)
    layout = Layout(tree, exchange.rank, exchange.ranks, state.offsets)
    compositor = Overlap(backend, exchange, layout, [0, 0, 0])
    renderer = Renderer(backend, exchange, layout, compositor, 0.1, 1e-4)
    steps = make_steps(renderer, Optimizer(backend, Train(), side, 2), Train())
    cameras = gaussian_city.cameras(kind, views, side)
    views = [SimpleNamespace(camera=c, index=i) for i, c in enumerate(cameras)]
    photos = {v.index: np.full((v.camera.height, v.camera.width, 3), 99, np.uint8) for v in views}

    def step(turn):
        batch = [views[(2 * turn + k) % len(views)] for k in range(2)]
        steps.step(state, batch, photos, 3)

    return step


def photo_steps(exchange, backend, path, *overrides):
    """Function that makes a step of a training run."""
    settings = config.load(path, [*overrides, "train.batch=2", "mpi.share_gpu=true"])
    ranks = make_world(settings, exchange.comm)
    ranks.exchange, ranks.backend = exchange, backend
    data = job.read_data(settings, ranks)
    cache = job.make_cache(settings, ranks, data)
    folder = Path(exchange.comm.bcast(tempfile.mkdtemp()))
    trainer = job.prepare(settings, False, ranks, data, cache, folder)

    def step(turn):
        trainer._step(trainer.state.images_seen)

    return step


def show(exchange, seconds, step_calls):
    """A line for each kind of exchange, means over ranks and steps."""
    table = defaultdict(list)
    for what, sent, received, spent in step_calls:
        table[what].append((spent, alone(exchange, sent, received), sent.sum()))
    for what, rows in table.items():
        mine = np.array(rows).mean(axis=0)
        spent, bare, sent = np.mean(exchange.comm.allgather(mine), axis=0)
        if exchange.rank == 0:
            print(f"  {what:12s} {sent / 1e6:8.3f} MB a rank, in the step {spent * 1e3:7.3f} ms, "
                  f"alone {bare * 1e3:7.3f} ms, {spent / bare:5.2f} x", flush=True)
    waited, moved = sum(exchange.waited.values()), sum(exchange.seconds.values())
    share = exchange.comm.allgather((moved - waited, waited))
    if exchange.rank == 0:
        moved, waited = np.mean(share, axis=0) / STEPS
        print(f"  a step {seconds * 1e3:.2f} ms: exchanges {moved * 1e3:.2f} ms, "
              f"waiting for ranks {waited * 1e3:.2f} ms", flush=True)


def main(what, *arguments):
    from splaxel_mpi.backends.cuda import CudaBackend

    device.bind_early()
    comm = world.init()
    lines = device.bind(comm, share=True)
    backend = CudaBackend()
    if comm.rank == 0:
        print("\n".join(lines), flush=True)
    for name in transport.BEST_FIRST:
        kind = transport._find(name)
        reason = kind.unfit(comm, backend) or kind.untrusted(comm, backend)
        if comm.rank == 0:
            print(f"{name}: {reason or ' '.join((what, *arguments))}", flush=True)
        if reason:
            continue
        exchange = recording(kind)(comm, measure_wait=True)
        exchange.calls = []
        if what == "city":
            count, side, view, views = arguments
            step = city_steps(exchange, backend, int(float(count)), float(side), view, int(views))
        else:
            step = photo_steps(exchange, backend, *arguments)
        for turn in range(WARM):
            step(turn)
        exchange.calls.clear()
        for figures in (exchange.seconds, exchange.waited):
            figures.clear()
        comm.Barrier()
        start = time.perf_counter()
        for turn in range(STEPS):
            step(WARM + turn)
        backend.device.synchronize()
        show(exchange, (time.perf_counter() - start) / STEPS, list(exchange.calls))


if __name__ == "__main__":
    main(*sys.argv[1:])
