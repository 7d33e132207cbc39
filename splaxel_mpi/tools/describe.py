"""What is inside a file of a run, in words: splaxel-mpi info."""

import os

import numpy as np

from ..checkpoint.read import Reader
from ..checkpoint.schema import FORMAT
from ..checkpoint.upgrade import version_of
from ..errors import UserError
from ..evaluate.series import FORMAT as METRICS
from ..evaluate.series import read_series
from ..files import HDF5_DAMAGE, open_hdf5

# Column at which the values of a description start.
INDENT = 18
# What a run remembers of its past, in words.
PAST = {"bytes": "{:.6g} bytes sent", "psnr": "held-out PSNR {:.4g} dB before training",
        "seconds": "{:.6g} s"}


def describe(path):
    """Lines that say what a checkpoint or a metrics file holds.

    Of a checkpoint everything but the rows is verified. Raises UserError for a file that is
    missing, damaged, of another format or of another format version.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; name a checkpoint or a metrics file")
    kind = format_of(path)
    if kind == np.bytes_(METRICS):
        return [printable(line) for line in describe_metrics(path)]
    if kind == np.bytes_(FORMAT):
        return [printable(line) for line in describe_checkpoint(path)]
    raise UserError(f"{path}: neither a checkpoint nor a metrics file of splaxel_mpi")


def printable(line):
    """A line without what would steer a terminal: its text is from a file of anybody."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def format_of(path):
    """The format that an HDF5 file states, None where it states none or is no HDF5."""
    try:
        with open_hdf5(path) as file:
            return file.attrs.get("format")
    except HDF5_DAMAGE:
        return None


def configuration(path):
    """The configuration of the run that wrote a checkpoint, YAML text."""
    with Reader(path) as reader, reader.damage():
        return reader.fact("config/effective")


def describe_checkpoint(path):
    """Lines about a checkpoint."""
    with Reader(path) as reader, reader.damage():
        state = reader.replicated()
        kind = reader.data_set("gaussians/means").dtype
        size, version = reader.size(), version_of(path)
        sizes = group_sizes(reader)
    cells = np.diff(state["cell_offsets"])
    ranks = np.diff(state["rank_offsets"])
    chain, order = state["config_chain"], state["order"]
    origin = ", ".join(f"{value:.9g}" for value in state["origin"])
    facts = [
        ("checkpoint", f"format version {version}, {amount(size)}"),
        ("written", f"{state['created']} by {state['ranks']} rank(s)"),
        ("software", ", ".join(f"{k} {v}" for k, v in sorted(state["versions"].items()))),
        ("data set", state["dataset"]),
        ("trained", f"{state['images_seen']:,} images in {state['step']:,} steps, "
                    f"{state['batch']} views a step, seed {state['seed']}"),
        ("until then", ", ".join(PAST.get(name, f"{name} {{:.6g}}").format(value)
                                 for name, value in sorted(order.items()))),
        ("scene", f"{reader.count:,} Gaussians, {kind}, SH degree {state['sh_degree']}, "
                  f"extent {state['extent']:.6g}, origin {origin}"),
        ("cells", f"{len(cells)}, {spread(cells)} Gaussians"),
        ("ranks", f"{len(ranks)}, {spread(ranks)} Gaussians"),
        *((f"in {name}/", f"{count} data set(s), {amount(total)}")
          for name, (count, total) in sizes.items()),
        ("configurations", f"its own and {len(chain)} of earlier runs (--config shows its own)"),
        ("verified", "all but the rows (splaxel-mpi verify reads those too)"),
    ]
    return [f"{name:{INDENT}}{value}" for name, value in facts]


def group_sizes(reader):
    """Group -> (data sets, bytes), without the checksums."""
    found = {}
    for path in reader.contents:
        group = path.split("/")[0]
        count, total = found.get(group, (0, 0))
        found[group] = count + 1, total + reader.data_set(path).nbytes
    return found


def describe_metrics(path):
    """Lines about a metrics file."""
    series = read_series(path)
    images = series["images_seen"]
    reach = f"up to image {images.max():,}" if len(images) else "none yet"
    lines = [
        f"{'metrics':{INDENT}}{len(images):,} rows, {reach}, {amount(os.path.getsize(path))}",
        f"{'series':{INDENT}}{len(series)}",
    ]
    for name, array in sorted(series.items()):
        last = array[~np.isnan(array)] if array.ndim == 1 else array
        value = f"{last[-1]:.6g} (last)" if last.ndim == 1 and len(last) else f"{array.shape}"
        lines.append(f"  {name:{3 * INDENT - 2}}{value}")
    return lines


def spread(counts):
    """Smallest, mean and largest of some counts."""
    if not len(counts):
        return "none"
    return f"{counts.min():,} to {counts.max():,}, mean {counts.mean():,.0f}"


def amount(size):
    """Bytes for people."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
