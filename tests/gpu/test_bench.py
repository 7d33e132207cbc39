"""`splaxel-mpi bench` on a GPU: kernels and what their floors count, scaling, counted bytes."""

import json

import numpy as np
import pytest
import splats as make
from test_bench import STAGES, run

from splaxel_mpi.backends.cuda import CudaBackend
from splaxel_mpi.mpi import world

from .parity import on_device

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]


def test_bench_on_the_gpu(tmp_path):
    done = run("--backend", "cuda", "--gaussians", "50k", "--side", "200", "--count", "3",
               "--half", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["backend"] == "cuda" and found["machine"] in done.stdout
    # a copy reads and writes some hundred GB a second at least, on any GPU
    assert found["bytes_per_second"] > 1e11 and found["lane_instructions_per_second"] > 1e12
    (scene,) = found["scenes"]
    assert list(scene["stages"]) == [*STAGES, "project back + adam"]
    for name, stage in scene["stages"].items():
        assert stage["ms"] > 0.8 * stage["floor_ms"] > 0, name
    assert scene["whole"]["step"] > scene["whole"]["step_without_loss"] > 0


@pytest.mark.parametrize("most", [0, 10**9])  # tiles walked as heavy ones, and as light ones
def test_evaluated_pairs(most):
    """Splats that cover everything are evaluated at every pixel of every tile."""
    camera, backend = make.make_camera(64, 48), CudaBackend()
    backend.most = most
    count = 2100
    rows = [(32, 24, 900, 900, 0, 0.005, 1 + k) for k in range(count)]
    splats = on_device(make.make_splats(rows, np.float32))
    lists = backend.tile_lists(splats, camera)
    partial = backend.rasterize(splats, lists, camera, 0.0)
    assert backend.evaluated_pairs(lists, partial) == count * 64 * 48


def test_pairs_of_nothing():
    camera, backend = make.make_camera(32, 32), CudaBackend()
    splats = on_device(make.make_splats([(-500, 0, 1, 1, 0, 0.5, 1)], np.float32))
    lists = backend.tile_lists(splats, camera)
    assert backend.evaluated_pairs(lists, backend.rasterize(splats, lists, camera, 0.0)) == 0


def test_scaling_on_one_gpu(tmp_path):
    done = run("--gaussians", "50k", "--side", "200", "--count", "4", "--size", "320x180",
               "--model", "8", "backend.name=cuda", "--json", tmp_path / "scaling.json",
               command="scaling")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "scaling.json").read_text())
    assert [(row["variant"], row["ranks"], row["source"]) for row in report["rows"]] == 2 * [
        (variant, ranks, source) for variant in ("ours", "paper", "gaussian")
        for ranks, source in ((1, "measured"), (8, "modelled"))
    ]
    for row in report["rows"]:
        assert row["images_per_second"] > 0 and row.get("backend", "cuda") == "cuda"


def test_fit_on_one_gpu(tmp_path):
    done = run("--gaussians", "200k", "--side", "200", "--count", "2", "--size", "320x180",
               "--share", "0.01", "backend.name=cuda", "--json", tmp_path / "fit.json",
               command="fit")
    assert done.returncode == 0, done.stderr
    first, most = json.loads((tmp_path / "fit.json").read_text())["rows"]
    assert (first["result"], most["result"]) == ("fits", "fits")
    assert first["gaussians"] == 200_000 < most["gaussians"]
    # one rank that updates view by view stores no gradients: 965 less 59 floats and a byte
    assert most["rows"] == pytest.approx(965 - 4 * 59 - 1, rel=1e-3)
    assert most["peak"] > most["rows"] and most["free"] > 1e9


def test_counts_are_those_of_the_host():
    """Bytes of a view by kind: tiles at which rounding decides are few."""
    world.init()
    from splaxel_mpi.backends.host import HostBackend
    from splaxel_mpi.data.gaussian_city import cameras
    from splaxel_mpi.mpi.transport import exchange_alone
    from splaxel_mpi.partition.kdtree import build
    from splaxel_mpi.tools.bench.counting import STRATEGIES, CellCity, Counter

    found = []
    for backend in (HostBackend(np.float32, 2), CudaBackend()):
        exchange = exchange_alone(backend)
        city = CellCity(50_000, 150.0, exchange, 2)
        city.rows.map(backend.to_device)
        tree = build(city.rows["means"], None, 4, exchange)
        city.migrate(tree, exchange)
        counter = Counter(city, tree, backend, exchange)
        found.append(counter.count(cameras("street", 1, 150.0, 1, 320, 180)[0]))
    host, device = found
    assert abs(host.visible - device.visible).max() <= 2
    for name in STRATEGIES:
        for stage in host.ghosts:
            kinds, others = host.bytes(name, stage), device.bytes(name, stage)
            for kind, amount in kinds.items():
                assert abs(others[kind] - amount) <= 0.02 * amount + 4096, (name, stage, kind)
