"""`splaxel-mpi bench ghosts` and `bench boundaries` on small scenes."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from runs import SHORT

from splaxel_mpi import config, log
from splaxel_mpi.cli import cli

pytestmark = pytest.mark.timeout(300)


def test_ghosts_are_those_of_the_renderer(tmp_path):
    """Counts of the command, in blocks of rows and without drawing, against those of training."""
    pytest.importorskip("mpi4py")
    from chain import Run, self_exchange

    from splaxel_mpi.backends.host import HostBackend
    from splaxel_mpi.data.gaussian_city import cameras, gaussians
    from splaxel_mpi.partition.kdtree import build
    from splaxel_mpi.visibility.demand import whole_image

    file = tmp_path / "ghosts.json"
    options = ["bench", "ghosts", "--gaussians", "6k", "--side", "150", "--cells", "5"]
    done = CliRunner().invoke(cli, [*options, "--count", "2", "--json", str(file)])
    assert done.exit_code == 0, done.output
    content, exchange = gaussians(6000, 150.0, bands=0), self_exchange()
    tree = build(content.means, None, 5, exchange)
    run = Run(content, tree, exchange, 1, 0, HostBackend(np.float32), 0.0)
    run.renderer.near = 0.2
    for kind in json.loads(file.read_text())["kinds"]:
        for camera in cameras(kind["kind"], 2, 150.0):
            run.renderer.draw(run.gaussians, [camera], 0, [whole_image(0)])
        visible, ghosts = run.renderer.take_counts()
        assert kind["visible"] == visible / 2 and kind["ghosts"] == ghosts / visible > 0
        assert kind["worst"] >= kind["ghosts"] and 0 < kind["bytes"] < 1
        assert f"{kind['ghosts']:.2%}" in done.output


def test_each_setting_is_trained(city, tmp_path, alone):
    from splaxel_mpi.tools.bench import boundaries

    lines = []
    base = f"data:\n  path: {city}\nrun:\n  name: small\n  folder: {tmp_path}\n"
    settings = config.parse(base, "test", [*SHORT, "train.images=16", "partition.cells=3"])
    try:
        rows = boundaries.run(settings, alone, lines.append)
    finally:
        log.close()
    assert [row["boundary"] for row in rows] == ["exact", "filter", "none"]
    assert [row["ghost_share"] > 0 for row in rows] == [True, False, False]
    assert rows[0]["psnr"] == rows[0]["psnr_exact"]
    for row, line in zip(rows, lines[1:]):
        assert 5 < row["psnr"] < 30 and 5 < row["psnr_exact"] < 30
        assert row["psnr_exact"] != row["psnr"] or row["boundary"] == "exact"
        assert line.split()[:2] == [row["boundary"], f"{row['psnr']:.2f}"]
        assert (tmp_path / f"small-{row['boundary']}" / "model.ply").exists()
