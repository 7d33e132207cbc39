"""Images a second on GPUs that were not at hand, modelled; nothing of it is measured.

    python benchmarks/modelled.py --gaussians 10e6 --side 1600

Work and bytes of every rank are counted on this CPU (tools/bench/counting.py), the scheduler
arranges the epoch, and each rank takes times fitted to steps of one NVIDIA H200 (STEPS). Links are
those given; nothing is hidden behind computing. The host's part of a view, which no rank can be
faster than, is given too.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from splaxel_mpi.backends import make_backend  # noqa: E402
from splaxel_mpi.data.gaussian_city import cameras  # noqa: E402
from splaxel_mpi.mpi import world  # noqa: E402
from splaxel_mpi.mpi.transport import exchange_alone  # noqa: E402
from splaxel_mpi.partition.kdtree import build  # noqa: E402
from splaxel_mpi.settings import BackendSection  # noqa: E402
from splaxel_mpi.tools.bench.base import table  # noqa: E402
from splaxel_mpi.tools.bench.city_run import make_config  # noqa: E402
from splaxel_mpi.tools.bench.cost_model import CostModel, alone, load_of  # noqa: E402
from splaxel_mpi.tools.bench.counting import CellCity, Counter  # noqa: E402
from splaxel_mpi.tools.bench.scaling import VARIANTS  # noqa: E402

# Steps of one rank, "GPU stages" of docs/performance.md: Gaussians drawn, pixels of its tiles,
# Gaussians stored, milliseconds a view
STEPS = {
    "4 M, street": (1.05e6, 1920 * 1088, 4e6, 1.820),
    "10 M, street": (2.58e6, 1920 * 1088, 10e6, 3.285),
    "4 M, aerial": (0.15e6, 1920 * 1088, 4e6, 0.978),
    "10 M, aerial": (0.15e6, 1920 * 1088, 10e6, 1.107),
    "1 M, street": (0.26e6, 1920 * 1088, 1e6, 1.045),
    "fox": (0.12e6, 464 * 800, 0.179e6, 0.562),
    "caliterra": (0.10e6, 800 * 608, 0.537e6, 0.520),
    # of tests/gpu/scaling.sh, with other views; Gaussians drawn: means of 16 views
    "40 M, street": (10.17e6, 1920 * 1088, 40e6, 12.478),
    "40 M, aerial": (0.58e6, 1920 * 1088, 40e6, 2.156),
}
HEADER = ("views", "GPUs", "variant", "GB/s, us", "images/s", "x one GPU", "communication",
          "MB a view", "balance", "not above, by the host")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gaussians", type=float, default=10e6)
    parser.add_argument("--side", type=float, default=1600.0)
    parser.add_argument("--count", type=int, default=16, help="views of each kind")
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--gpus", type=int, nargs="+", default=(4, 8))
    parser.add_argument("--links", nargs="+", default=("100,40", "2.5,90"),
                        help="GB/s of a rank and microseconds of a message")
    parser.add_argument("--host", type=float, default=3.2, help="milliseconds a view")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    world.init()
    costs = fitted()
    rows = [row for kind in ("street", "aerial") for row in modelled(given, costs, kind)]
    print("\n".join(table(rows, HEADER)))


def fitted():
    """Seconds of a Gaussian drawn, a pixel, a Gaussian stored and a view; says how STEPS fit."""
    steps = np.array([(*row[:3], 1.0, 1e-3 * row[3]) for row in STEPS.values()])
    relative = steps / steps[:, 4:]  # errors count as shares of a step
    scale = relative[:, :4].max(0)
    costs = nnls(relative[:, :4] / scale, relative[:, 4])[0] / scale
    names = "a Gaussian drawn", "a pixel", "a Gaussian stored", "a view"
    print("seconds of", ", ".join(f"{name}: {cost:.3g}" for name, cost in zip(names, costs)))
    for name, step, guess in zip(STEPS, steps, steps[:, :4] @ costs):
        print(f"{name}: measured {1e3 * step[4]:.3f} ms, fitted {1e3 * guess:.3f} "
              f"({guess / step[4] - 1:+.1%})")
    return costs


def modelled(given, costs, kind):
    """Rows of a kind of views."""
    counts = count(given, kind)
    total = int(given.gaussians)
    model = CostModel(costs, 1.0, 0.0)
    one = alone(next(iter(counts.values())), total)
    base = model.predict(one, make_config([], VARIANTS["ours"], 1))["images_per_second"]
    yield (kind, 1, "ours", "-", f"{base:.0f}", "1.00", "-", "-", "-", "-")
    for name, variant in VARIANTS.items():
        for link in given.links:
            bandwidth, latency = map(float, link.split(","))
            model = CostModel(costs, 1e9 * bandwidth, 1e-6 * latency)
            for gpus, found in counts.items():
                config = make_config([], variant, gpus)
                row = model.predict(load_of(found, config, total), config)
                rate = row["images_per_second"]
                yield (kind, gpus, name, f"{bandwidth:g}, {latency:g}", f"{rate:.0f}",
                       f"{rate / base:.2f}", f"{row['communication']:.0%}",
                       f"{row['total_bytes'] / 1e6:.2f}", f"{row['balance']:.2f}",
                       f"{1e3 / given.host:.0f}")


def count(given, kind):
    """{GPUs: list of ViewCount}."""
    backend = make_backend("host", BackendSection(name="host"), given.threads)
    exchange = exchange_alone(backend)
    city = CellCity(int(given.gaussians), given.side, exchange, given.threads)
    out = {}
    for gpus in given.gpus:
        tree = build(city.rows["means"], None, gpus, exchange)
        city.migrate(tree, exchange)
        counter = Counter(city, tree, backend, exchange)
        views = cameras(kind, given.count, given.side, 1, *given.size)
        out[gpus] = [counter.count(camera) for camera in views]
    return out


if __name__ == "__main__":
    main()
