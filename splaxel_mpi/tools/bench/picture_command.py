"""The command `splaxel-mpi bench pictures`."""

import os

import click

from ...errors import UserError
from ..numbers import Number
from .options import GAUSSIANS, Size


@click.command()
@click.argument("config", required=False)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", metavar="DIR", required=True, help="Folder for the PNGs.")
@click.option("--model", metavar="FILE", help="A trained scene, .ply or .h5, seen by the cameras "
              "of data.path; without it CONFIG's newest checkpoint.")
@click.option("--view", "names", metavar="NAME", multiple=True,
              help="Name of a view of the data set; give it again for another one.")
@click.option("--gaussians", type=GAUSSIANS, default="100k",
              help="Gaussians of the city, where neither CONFIG nor --model is given.")
@click.option("--side", type=Number(148, 100_000), default=222.0,
              help="Side of the city in metres.")
@click.option("--views", "kind", type=click.Choice(["street", "aerial", "mixed"]),
              default="mixed", help="Kind of the city's views.")
@click.option("--size", type=Size(), default="640x360", help="Pixels of the city's views.")
@click.option("--count", type=click.IntRange(1, 1000), default=4, help="Views.")
@click.option("--width", type=click.IntRange(64, 16384), default=640,
              help="Most pixels of a panel across; larger images are reduced.")
def pictures(config, overrides, out, model, names, gaussians, side, kind, size, count, width):
    """Draw what every rank draws of a view, skips and exchanges (paper, figure 24).

    DIR gets a PNG of each view: the image that all ranks compose, then every rank's partial image,
    its cells alone. Grey is skipped: outside of the predicted region, without content, or
    saturated, each in a shade of its own. Green goes to other ranks, blue comes from them. And
    contact.png, a row for each view. Any settings, such as exchange.strategy=owner,
    partition.cells=8 or saturation.threshold=0.01. Ranks may be more than cores.

    \b
    Examples:
      mpirun -n 4 splaxel-mpi bench pictures --out look --views street
      mpirun -n 4 splaxel-mpi bench pictures configs/city.yaml exchange.strategy=owner --out look
      mpirun -n 4 splaxel-mpi bench pictures --model model.ply data.path=scenes/city --out look
    """
    from ... import config as settings
    from ...mpi import device, world
    from . import pictures as tool

    if config is not None and "=" in config and not os.path.exists(config):
        config, overrides = None, (config, *overrides)
    trained = config is not None or model is not None
    if names and not trained:
        raise UserError("bench pictures: --view needs CONFIG or --model")
    if not trained:
        overrides = ("data.path=.", *overrides)  # a setting without default; nothing is read
    device.bind_early()
    comm = world.init()

    def read():
        if config is None:
            return settings.parse("", "bench pictures", overrides).to_yaml()
        return settings.load(config, overrides).to_yaml()

    found = settings.parse(world.on_root(comm, read), "bench pictures")
    source = tool.city(gaussians, side, kind, count, size)
    if trained:
        source = tool.trained(model, count, names)
    tool.run(found, source, out, width, comm, click.echo)
