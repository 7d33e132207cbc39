"""Gaussians brought to their cells, without a change to the ones given."""

from splaxel_mpi.partition.migrate import regroup as regroup_rows
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians
from splaxel_mpi.scene.rows import Rows


def regroup(gaussians, extras, tree, exchange):
    """(gaussians, extras, offsets) of a rank after migration; extras: name -> (n, ...)."""
    columns = dict(gaussians.columns(), **extras)
    rows = Rows({name: array.copy() for name, array in columns.items()})
    offsets = regroup_rows(rows, tree, exchange)
    arrays = {name: rows[name] for name in [*GROUPS, "ids"]}
    return Gaussians(**arrays), {name: rows[name] for name in extras}, offsets
