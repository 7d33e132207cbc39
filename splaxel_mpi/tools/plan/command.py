"""The command `splaxel-mpi plan`."""

import json
import shutil
from dataclasses import asdict

import click

from ...errors import UserError
from ..numbers import Count

MOST_RANKS = 4096  # forecast.MOST_RANKS, which help does not import
MOST_GAUSSIANS = 10**12  # setting_types.MOST, which help does not import


def _bytes(context, option, text):
    """Bytes of text such as 80G, at least one."""
    from ...setting_types import byte_count

    try:
        found = byte_count(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not found:
        raise click.BadParameter("expected at least a byte")
    return found


@click.command()
@click.argument("config")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--ranks", type=click.IntRange(1, MOST_RANKS), required=True,
              help="Ranks of the run.")
@click.option("--gpu-memory", "memory", callback=_bytes, default="80G",
              help="Memory of a rank's GPU; with backend.name=host, of the node for each rank.")
@click.option("--gaussians", type=Count(MOST_GAUSSIANS), metavar="N",
              help="Gaussians of the scene in the end, such as 100M [default: densify.limit, else "
              "as many as points].")
@click.option("--bandwidth", callback=_bytes, default="20G",
              help="Bytes a second that a rank sends.")
@click.option("--json", "as_json", is_flag=True, show_default=False, help="Print JSON.")
def plan(config, overrides, ranks, memory, gaussians, bandwidth, as_json):
    """Foretell a run of CONFIG: cells, bytes, memory, disk and speed.

    From cameras and points alone, with no look at photographs and no GPU, for any rank count.
    Exit status 2, with one line that says what to change, where the run would fail or
    leave ranks without work.

    \b
    Examples:
      splaxel-mpi plan configs/city.yaml --ranks 4
      splaxel-mpi plan mine.yaml --ranks 1024 --gpu-memory 80G --gaussians 100M
    """
    from ... import config as files

    settings = files.load(config, overrides)
    made = make(settings, ranks, memory, gaussians, bandwidth)
    if as_json:
        click.echo(json.dumps(asdict(made), indent=1))
    else:
        for line in lines(made):
            click.echo(line)
    if made.refusal:
        raise UserError(f"do not start this run: {made.refusal}")


def make(settings, ranks, memory, gaussians=None, bandwidth=20 << 30):
    """forecast.Plan of a configuration.

    settings: config.Config; memory: bytes of a rank; gaussians: of the scene in the end, None:
    densify.limit or the points; bandwidth: bytes a second of a rank. Raises UserError for a data
    set that cannot be read.
    """
    from ...data.dataset import load
    from ...mpi import world
    from ..doctor.storage import existing
    from . import forecast, survey

    world.init()
    data = load(settings.data.path, settings.data.format, settings.data.scale,
                settings.data.holdout, settings.data.images, photographs=False)
    cells = settings.partition.cells or ranks
    wanted = gaussians or settings.densify.limit or len(data.points)
    sample = survey.Sample(data.points, settings, min(cells, ranks))
    counter = survey.Survey(sample, settings)
    cameras = survey.chosen_views([data.views[k].camera for k in data.train], sample.tree.cells)
    counts = [counter.count(camera) for camera in cameras]
    made = forecast.foretell(settings, sample, counts, len(data.train), wanted, ranks, bandwidth,
                             forecast.store_room(settings, memory))
    free = shutil.disk_usage(existing(settings.run.folder)).free
    made.refusal = forecast.refusal(made, settings, memory, free)
    return made


def lines(made):
    """A Plan in words."""
    yield (f"{made.views} training views, {made.points} points, {made.gaussians} Gaussians in the "
           f"end; {made.sampled_points} points and {made.counted_views} views were looked at")
    yield (f"cells: {made.cells} on {made.ranks} ranks, the fullest has {made.balance:.2f} times "
           f"the mean (+- {made.share_error:.1%} by sampling)")
    yield (f"a view: {made.participants:.1f} ranks draw it, {made.visible:.0f} Gaussians, "
           f"{made.view_bytes / 1e6:.3g} MB sent (+- {made.view_bytes_error:.0%}), masks not "
           "counted")
    yield f"a step of {made.batch} views: {made.step_bytes / 1e6:.4g} MB"
    yield (f"memory of the fullest rank: {made.rank_memory / 1e9:.3g} GB; "
           f"{made.rank_store / 1e9:.3g} for {made.rank_gaussians} Gaussians, "
           f"{made.rank_views / 1e9:.3g} for views under way")
    yield (f"disk: {made.checkpoint / 1e9:.3g} GB a checkpoint, {made.disk / 1e9:.3g} at a time")
    if made.images_per_second:
        yield (f"speed: {made.images_per_second:.4g} images/s, {made.hours:.3g} hours, "
               f"{made.communication:.0%} of it sending; from {made.origin}")
    else:
        yield "speed: not known for the host backend"
