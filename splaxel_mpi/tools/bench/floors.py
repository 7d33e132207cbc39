"""The least time of each stage: bytes that must move, instructions that must issue.

Bytes count each array once, float32, without what caches give twice: N Gaussians of a cell, n of
them visible, d of these drawn somewhere, I instances (pairs of splat and tile) on H held tiles, P
pixels.
"""

from dataclasses import dataclass

import numpy as np

from ...backends.base import SPLAT, SPLAT_GRADIENT
from ...scene.gaussians import GROUPS

REAL = 4
PIXELS = 256
PARAMETERS = sum(GROUPS.values())  # 59
ROW = REAL * SPLAT
IDS = 4 + 8  # row and id of a splat
SEEN = 1
STATISTICS = 2 * (4 + 4)  # norm and count, read and written
# Lane instructions of the inner loops, compiled for sm_90, for one pair of pixel and splat in
# patches of 8 x 8 pixels: alpha and blending; and their gradient with its share of the sums
# over the warp.
FORWARD_INSTRUCTIONS, BACKWARD_INSTRUCTIONS = 35, 71
# SSIM's two separable passes over five moments, and the gradient's over three, of one value
LOSS_INSTRUCTIONS = 200
RADIX_BITS = 8  # of one pass of a radix sort
DEPTH_PAIR, TILE_PAIR = 8, 6  # bytes of (depth, splat) and of (tile, splat)


@dataclass(frozen=True)
class Counts:
    """What a view made the stages do."""

    gaussians: int
    visible: int
    drawn: int  # visible ones with a gradient
    instances: int
    held: int
    pixels: int
    pairs: int  # of pixel and splat whose alpha was computed

    @staticmethod
    def median(counts):
        """Counts of the median of each over views."""
        names = Counts.__dataclass_fields__
        return Counts(**{n: int(np.median([getattr(c, n) for c in counts])) for n in names})


def stage_bytes(c, tile_count):
    """{stage: bytes}. c: Counts; tile_count: of the image."""
    tile_passes = -(-max(1, (tile_count - 1).bit_length()) // RADIX_BITS)
    drawn = c.visible * ROW + c.instances * 4
    row = 4 + REAL * SPLAT_GRADIENT + SEEN + STATISTICS
    adam = REAL * PARAMETERS * 7  # parameter, gradient, two moments; three of them written
    return {
        # all means and scales; of visible rows the rest, read, and what they become
        "project": c.gaussians * REAL * 6 + c.visible * (REAL * (PARAMETERS - 6) + ROW + 8 + IDS),
        "lists": c.visible * (ROW + 4 * 2 * DEPTH_PAIR)
        + c.instances * TILE_PAIR * (1 + 2 * tile_passes) + c.held * 12,
        "rasterize": drawn + c.held * PIXELS * (4 * REAL + 4),
        "compose": c.held * PIXELS * 2 * 4 * REAL,
        "loss": c.pixels * 3 * (2 * REAL + 1),
        "compose back": c.held * PIXELS * REAL * (4 + 3 + 4),
        "rasterize back": drawn + c.held * PIXELS * (5 * REAL + 4)
        + c.visible * 2 * REAL * SPLAT_GRADIENT,
        "zero gradients": c.gaussians * REAL * PARAMETERS,
        # parameters read, gradients added to, of rows that have one
        "project back": c.visible * row + c.drawn * (ROW + REAL * PARAMETERS * 3),
        "adam, selective": c.gaussians * SEEN + c.visible * adam,
        "adam, dense": c.gaussians * adam,
        "project back + adam": c.visible * (row + REAL * PARAMETERS * 6) + c.drawn * ROW,
    }


def stage_instructions(c):
    """{stage: lane instructions} of the stages that compute more than they move."""
    return {
        "rasterize": c.pairs * FORWARD_INSTRUCTIONS,
        "rasterize back": c.pairs * BACKWARD_INSTRUCTIONS,
        "loss": c.pixels * 3 * LOSS_INSTRUCTIONS,
    }


def floors(counts, tile_count, machine):
    """{stage: (milliseconds, "bytes" or "issue")}, whichever is longer on the Machine."""
    out = {}
    for stage, moved in stage_bytes(counts, tile_count).items():
        out[stage] = 1e3 * moved / machine.bandwidth, "bytes"
    for stage, issued in stage_instructions(counts).items():
        least = 1e3 * issued / machine.issue if machine.issue else 0
        if least > out[stage][0]:
            out[stage] = least, "issue"
    return out
