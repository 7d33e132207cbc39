"""Times the exchanges inside training steps: what a step loses to them, on and off train.in_flight.

    mpirun -n 2 python -m mpi4py tests/gpu/time_exchange.py city Gaussians side kind views batch
    mpirun -n 2 python -m mpi4py tests/gpu/time_exchange.py photos configs/photos.yaml KEY=VALUE...

For each transport that works here, or those of SPLAXEL_TRANSPORTS, and each of CASES (chunk,
in_flight): milliseconds a step, and by kind
- blocked: in which the rank (nccl: its stream) stood still for the exchange, without
- waiting: for ranks that had not begun;
- in flight: from when all ranks have begun until the data are there;
- hidden: the part of the latter in which the rank was not blocked;
- spared: blocked seconds that the same chunks one after the other lose and these do not;
- alone: the same messages once more without a step around them, median of 20.
The city is that of data/gaussian_city.py. On a machine without a GPU the host backend runs, with
the host transport. Where the host is slower than the device, nccl's stream stands still for want
of work, too: what is hidden then is so one after the other as well.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from splaxel_mpi import config
from splaxel_mpi.backends import choose_backend, make_backend
from splaxel_mpi.compose.overlap import Overlap
from splaxel_mpi.data import gaussian_city
from splaxel_mpi.mpi import device, transport, world
from splaxel_mpi.partition.kdtree import build
from splaxel_mpi.partition.layout import Layout
from splaxel_mpi.settings import BackendSection, Train
from splaxel_mpi.train import job
from splaxel_mpi.train.optimizer import Optimizer
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import make_steps
from splaxel_mpi.train.world import make_world

STEPS, WARM, REPEATS = 12, 4, 20
# (chunk, in_flight), each pair with the same chunks first one after the other
CASES = ((4, 1), (2, 1), (2, 2), (1, 1), (1, 2), (1, 3))


def recording(kind):
    """The transport, which also keeps what every exchange of pixels or splats was."""

    class Recording(kind):
        def start_alltoallv(self, what, data, counts, received=None):
            self.calls.append((what, data.dtype, data.itemsize * counts, received))
            return super().start_alltoallv(what, data, counts, received)

    return Recording


def alone(exchange, backend, calls):
    """{kind: seconds of its exchanges in these calls, with nothing around them}."""
    found = defaultdict(float)
    for what, dtype, sizes, received in calls:
        counts = sizes // dtype.itemsize
        data, times = backend.xp.zeros(int(counts.sum()), dtype), []
        for _ in range(REPEATS):
            exchange.comm.Barrier()
            start = time.perf_counter()
            exchange.alltoallv("alone", data, counts, received)
            settle(backend)
            times.append(time.perf_counter() - start)
        found[what] += np.median(times[REPEATS // 4 :])
    return found


def settle(backend):
    """Wait for the device."""
    if backend.xp is not np:
        backend.device.synchronize()


def city(comm, backend, count, side, kind, views, batch):
    """Function (exchange) -> (steps, function that makes a step of ``batch`` views)."""
    count, side, batch = int(float(count)), float(side), int(batch)
    bounds = [count * rank // comm.size for rank in (comm.rank, comm.rank + 1)]
    gaussians = gaussian_city.gaussians(count, side, start=bounds[0], stop=bounds[1])
    first = transport.make_exchange("staged", backend, comm)
    tree = build(gaussians.means, None, comm.size, first)
    state = State.fresh(gaussians, None)
    state.move(backend.to_device)
    state.migrate(tree, first)
    layout = Layout(tree, comm.rank, comm.size, state.offsets)
    cameras = gaussian_city.cameras(kind, int(views), side)
    views = [SimpleNamespace(camera=c, index=i) for i, c in enumerate(cameras)]
    photos = {v.index: np.full((v.camera.height, v.camera.width, 3), 99, np.uint8) for v in views}

    def make(exchange):
        compositor = Overlap(backend, exchange, layout, [0, 0, 0])
        renderer = Renderer(backend, exchange, layout, compositor, 0.1, 1e-4)
        steps = make_steps(renderer, Optimizer(backend, Train(), side, batch), Train())

        def step(turn):
            chosen = [views[(batch * turn + k) % len(views)] for k in range(batch)]
            steps.step(state, chosen, photos, 3)

        return steps, step

    return make


def photos(comm, backend, path, *overrides):
    """As city, of a training run."""
    def make(exchange):
        settings = config.load(path, [*overrides, "mpi.share_gpu=true"])
        ranks = make_world(settings, comm)
        ranks.exchange, ranks.backend = exchange, backend
        data = job.read_data(settings, ranks)
        cache = job.make_cache(settings, ranks, data)
        folder = Path(comm.bcast(tempfile.mkdtemp()))
        trainer = job.prepare(settings, False, ranks, data, cache, folder)
        return trainer.steps, lambda turn: trainer._step(trainer.state.images_seen)

    return make


def measure(exchange, backend, steps, step, case):
    """Means over ranks: seconds a step, and {kind: (blocked, waiting, in flight) a step}."""
    chunk, depth = case
    steps.settings = steps.settings.model_copy(update={"chunk": chunk, "in_flight": depth})
    for turn in range(WARM):
        step(turn)
    settle(backend)
    for figures in (exchange.seconds, exchange.waited, exchange.flight):
        figures.clear()
    exchange.comm.Barrier()
    start = time.perf_counter()
    for turn in range(STEPS):
        exchange.calls = []
        step(WARM + turn)
    settle(backend)
    spent = (time.perf_counter() - start) / STEPS
    found = {
        kind: np.array([exchange.seconds[kind] - exchange.waited[kind], exchange.waited[kind],
                        exchange.flight[kind]]) / STEPS
        for kind in sorted(exchange.flight)
    }
    everyone = exchange.comm.allgather((spent, found))
    mean = np.mean([spent for spent, _ in everyone])
    return mean, {k: np.mean([rows[k] for _, rows in everyone], axis=0) for k in found}


def show(case, spent, found, before, bare):
    """Lines on one case. before: found of the same chunks one after the other, None: these are."""
    total = sum(found.values())
    print(f"  chunk {case[0]}, in_flight {case[1]}: {spent * 1e3:.2f} ms a step, blocked "
          f"{total[0] / spent:.1%}, waiting {total[1] / spent:.1%}", flush=True)
    rows = dict(found, together=total)
    before = before and dict(before, together=sum(before.values()))
    for kind, (blocked, waiting, flight) in rows.items():
        hidden = f", hidden {1 - blocked / flight:.0%}" if flight else ""
        hidden += f", spared {1 - blocked / before[kind][0]:.0%}" if before else ""
        one = f", alone {bare[kind] * 1e3:.3f}" if kind in bare else ""
        print(f"    {kind:12s} blocked {blocked * 1e3:.3f} ms, waiting {waiting * 1e3:.3f}, "
              f"in flight {flight * 1e3:.3f}{one}{hidden}", flush=True)


def transports(backend, comm):
    """Names of those that work here."""
    if backend.xp is np:
        return ["host"]
    names = os.environ.get("SPLAXEL_TRANSPORTS", ",".join(transport.BEST_FIRST)).split(",")
    found = []
    for name in names:
        kind = transport._find(name)
        reason = kind.unfit(comm, backend) or kind.untrusted(comm, backend)
        if reason and comm.rank == 0:
            print(f"{name}: {reason}", flush=True)
        found += [] if reason else [name]
    return found


def main(what, *arguments):
    device.bind_early()
    comm, settings = world.init(), BackendSection()
    name, _ = choose_backend(settings)
    if name == "cuda":
        device.bind(comm, share=True)
    backend = make_backend(name, settings, world.cores_per_rank(comm))
    make = dict(city=city, photos=photos)[what](comm, backend, *arguments)
    for name in transports(backend, comm):
        exchange = recording(transport._find(name))(comm, measure_wait=True)
        exchange.calls, one_by_one = [], {}
        steps, step = make(exchange)
        if comm.rank == 0:
            print(f"{name}: {' '.join((what, *arguments))}", flush=True)
        for case in CASES:
            spent, found = measure(exchange, backend, steps, step, case)
            bare = alone(exchange, backend, list(exchange.calls)) if case[1] == 1 else {}
            if case[1] == 1:
                one_by_one[case[0]] = found
            if comm.rank == 0:
                show(case, spent, found, one_by_one.get(case[0]) if case[1] > 1 else None, bare)


if __name__ == "__main__":
    main(*sys.argv[1:])
