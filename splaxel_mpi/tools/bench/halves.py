"""What ranks need that hold half of a scene each, beside one that holds all of it."""

import numpy as np

from ...mpi.transport import exchange_alone
from ...partition.assign import cells_of
from ...partition.kdtree import build
from ...partition.order import visibility_order
from ...settings import Saturation
from .stages import Chain, time_stages

STAGES = ("project", "lists", "rasterize", "rasterize back", "project back", "adam, selective")


class HostArrays:
    """What an exchange of host arrays asks of a backend."""

    xp = np


def measure_halves(scene, backend, clock):
    """{stage: whole_ms, and shares of it that the two cells take, drawn and masked}.

    The scene is cut into two cells by the k-d tree; sums over the views. drawn: as at the first
    visit of a view; masked: as at later ones, where the cell that stands behind leaves the tiles
    that are dark in front of it. Ghosts are left out. All wait for the device where ranks that
    exchange do.
    """
    tree = build(scene.gaussians.means, None, 2, exchange_alone(HostArrays))
    cells = cells_of(tree, scene.gaussians.means)
    whole = _times(Chain(backend, scene.gaussians, scene.degree, free=False), scene, clock)
    chains = [
        Chain(backend, scene.gaussians.take(cells == cell), scene.degree, box)
        for cell, box in enumerate(tree.boxes())
    ]
    masks = _masks(chains, scene.cameras, tree)
    drawn = [_times(chain, scene, clock) for chain in chains]
    masked = [_times(chain, scene, clock, mask) for chain, mask in zip(chains, masks)]
    rows = {}
    for name in (*STAGES, "sum"):
        pick = (lambda times: sum(times.values())) if name == "sum" else (lambda t: t[name])
        rows[name] = {"whole_ms": pick(whole)}
        for kind, halves in (("drawn", drawn), ("masked", masked)):
            rows[name][kind] = [pick(half) / pick(whole) for half in halves]
    return rows


def _masks(chains, cameras, tree):
    """For each chain the masks of all views, see Chain.look."""
    masks = [[None] * len(cameras) for _ in chains]
    for view, camera in enumerate(cameras):
        front, behind = visibility_order(tree, camera.center).tolist()
        masks[behind][view] = 1 - _dark(chains[front], camera)
    return masks


def _dark(chain, camera):
    """(tile_count,) uint8, 1 where what the chain draws lets less than the threshold through."""
    chain.look(camera), chain.forward()
    backend, tiles = chain.backend, chain.lists.tiles
    slots = chain.xp.arange(len(tiles), dtype=np.int32)[:, None]
    passed = backend.residuals(chain.partial.pixels, slots, tiles, camera)
    dark = np.zeros(camera.tile_count, np.uint8)
    dark[backend.to_host(tiles)] = backend.to_host(passed)[:, 1] < Saturation().threshold
    return dark


def _times(chain, scene, clock, masks=None):
    """{stage: milliseconds summed over views}."""
    samples, _ = time_stages(chain, scene.cameras, clock, STAGES, masks)
    return {name: samples.total(name) for name in STAGES}
