"""Memory, bytes, disk and speed of a run from a survey of its cells, and why not to start it."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from ...scene.gaussians import GROUPS
from ...scene.rows import GROWTH
from ...train.budget import RESERVE_SHARE, STORE_SHARE, bytes_per_gaussian
from ..bench.cost_model import CostModel, Load
from ..bench.counting import OCCUPIED

# One NVIDIA H200, "Memory of a rank on a GPU" of docs/performance.md: bytes beside the rows that a
# view takes for each visible Gaussian and each pixel (street and aerial views, solved for both).
VIEW_GAUSSIAN, VIEW_PIXEL = 430, 43
# Bytes that a rank takes before it holds anything: of a GPU for CUDA and its libraries; of the
# host for Python, MPI and HDF5 (a 4-rank run of the city of 320 x 180: 140 MB).
CONTEXT = {"cuda": 600 << 20, "host": 140_000_000}
# Seconds of a Gaussian drawn, a pixel, a Gaussian stored and a view: whole training steps of one
# H200 ("GPU stages" there: 4 M street 1.798 ms, fox 0.536 ms), a pixel 0.3 of a drawn Gaussian as
# schedulers take it, culling of the stored ones at the speed of memory.
COSTS = (0.74e-9, 0.22e-9, 0.05e-9, 0.38e-3)
ORIGIN = ("times of steps on one NVIDIA H200 (docs/performance.md), {:.3g} GB/s a rank and {:.3g} "
          "us a message taken for granted, nothing hidden behind computing")
LATENCY = 20e-6  # seconds of a collective between nodes
HALF = 0.625  # bytes of a stream with colour in float16, of those in float32
MOST_RANKS = 4096  # that plan takes
SCHEDULED = 1 << 19  # views x ranks that a scheduler arranges within seconds


@dataclass
class Plan:
    """What is foretold of a run. Bytes and counts are of all ranks, unless they say "rank"."""

    ranks: int
    cells: int
    views: int
    points: int
    gaussians: int
    batch: int
    sampled_points: int
    counted_views: int
    balance: float  # fullest rank over the mean
    share_error: float  # relative, of a cell's share
    participants: float  # ranks that draw in a view
    visible: float  # Gaussians in a view
    view_bytes: float
    view_bytes_error: float  # standard error, relative
    step_bytes: float
    rank_gaussians: int  # of the fullest
    rank_store: int  # bytes of its rows, moments and gradients, room for more included
    rank_views: int  # bytes of the views under way and their streams
    rank_memory: int  # bytes, all together
    checkpoint: int  # bytes of one
    disk: int  # bytes of all that are kept at a time
    images_per_second: Optional[float]
    hours: Optional[float]
    communication: Optional[float]  # share of a step
    origin: str
    refusal: Optional[str] = None


def foretell(settings, sample, counts, views, gaussians, ranks, bandwidth, room):
    """Plan of a run.

    settings: config.Config; sample: survey.Sample with a cell for each rank; counts: list of
    survey.Seen; views: training views; gaussians: of the scene in the end; bandwidth: bytes a
    second of a rank; room: bytes of a rank for Gaussians.
    """
    growth = gaussians / len(sample.rows)
    strategy, batch = settings.exchange.strategy, settings.train.batch or ranks
    dealt = strategy == "gaussian"
    shares = np.full(ranks, 1 / ranks) if dealt else sample.shares
    moved = np.array([view_bytes(count, settings, growth) for count in counts])
    rank_gaussians = int(np.ceil(gaussians * shares.max()))
    each = bytes_per_gaussian(settings.backend.precision)
    start = gaussians if settings.densify.method == "none" else min(gaussians, sample.total)
    store = each * _capacity(int(np.ceil(start * shares.max())), rank_gaussians, room // each)
    busy = _busiest(counts, settings, moved, ranks)
    beside = _beside(settings, counts, busy, growth, ranks)
    checkpoint = gaussians * checkpoint_row(settings)
    speed = _speed(settings, counts, moved, busy, growth, gaussians, ranks, batch, bandwidth)
    active = [ranks if dealt else count.tiles[OCCUPIED].any(1).sum() for count in counts]
    return Plan(
        ranks, sample.tree.cells, views, sample.total, gaussians, batch, len(sample.rows),
        len(counts), float(shares.max() * ranks), 0.0 if dealt else sample.share_error,
        float(np.mean(active)), float(np.mean([count.visible.sum() for count in counts]) * growth),
        float(moved.mean()), _error(moved), float(moved.mean() * batch), rank_gaussians, store,
        beside, store + beside + context(settings), checkpoint,
        checkpoint * (settings.checkpoint.keep + 1),
        *speed, ORIGIN.format(bandwidth / 1e9, 1e6 * LATENCY),
    )


def store_room(settings, memory):
    """Bytes that Gaussians may take of a rank's memory, as train.budget.make_budget has it."""
    return settings.backend.memory or int(STORE_SHARE * (memory - context(settings)))


def _capacity(rows, wanted, limit):
    """Rows that a rank has room for once ``wanted`` are there, of ``rows`` at the start: it grows
    as scene.rows.Rows.reserve lets it."""
    capacity = rows
    while capacity < wanted:
        capacity = max(capacity + 1, int(GROWTH * capacity))
    return max(wanted, min(capacity, limit)) if capacity > rows else wanted


def context(settings):
    """Bytes that a rank takes before it holds anything."""
    return CONTEXT["host" if settings.backend.name == "host" else "cuda"]


def view_bytes(count, settings, growth):
    """Bytes that all ranks send for a view, before any mask.

    growth: Gaussians of the run for each that was counted. They are then smaller, so that
    surfaces stay covered: pixels stay, and those that reach over a face, ghosts, grow with its
    outline, by the root.
    """
    strategy = settings.exchange.strategy
    if strategy == "gaussian":
        return count.gaussian_bytes * growth
    found = count.bytes(strategy, OCCUPIED)
    if settings.exchange.precision == "float16":
        found["streams"], found["streams back"] = (
            HALF * found[kind] for kind in ("streams", "streams back"))
    for kind in ("ghosts", "ghosts back"):
        found[kind] *= np.sqrt(growth) if settings.boundary == "exact" else 0
    return sum(found.values())


def checkpoint_row(settings):
    """Bytes of a Gaussian in a checkpoint: parameters and two moments; id, cell, densification
    statistics (see docs/file-formats.md)."""
    real = np.dtype(settings.backend.precision).itemsize
    return 3 * sum(GROUPS.values()) * real + 8 + 4 + real + 4 + 4


def _beside(settings, counts, busy, growth, ranks):
    """Bytes that the views under way take on the rank that they load most. busy: _busiest."""
    at_a_time = settings.train.chunk * (settings.train.in_flight if ranks > 1 else 1)
    at_a_time = min(at_a_time, settings.train.batch or ranks)
    needed = []
    for count, streams in zip(counts, busy):
        visible = count.visible.sum() / ranks * np.ones(1)
        pixels = np.full(1, count.camera.width * count.camera.height / ranks)
        if settings.exchange.strategy == "gaussian":
            streams = np.zeros(1)
        else:
            visible = count.visible + count.ghosts[OCCUPIED]
            pixels = count.pixels(OCCUPIED)
        needed.append((VIEW_GAUSSIAN * growth * visible + VIEW_PIXEL * pixels
                       + 2 * streams).max())
    return int(at_a_time * max(needed))


def _busiest(counts, settings, moved, ranks):
    """(views, ranks) bytes that each sends or receives, before any mask. moved: (views,) bytes
    of all ranks."""
    if settings.exchange.strategy == "gaussian":
        return np.repeat(moved[:, None] / ranks, ranks, axis=1)
    return np.array([count.busiest(settings.exchange.strategy, OCCUPIED) for count in counts],
                    float)


def _speed(settings, counts, moved, busy, growth, gaussians, ranks, batch, bandwidth):
    """(images a second, hours, share of communication), None for each on the host backend, for
    which no costs are stored."""
    if settings.backend.name == "host":
        return None, None, None
    even = np.ones((1, ranks)) / ranks
    if settings.exchange.strategy == "gaussian":
        drawn = np.array([count.visible.sum() for count in counts])[:, None] * even
        pixels = np.array([count.camera.width * count.camera.height for count in counts])
        pixels = pixels[:, None] * even
    else:
        work = np.array([count.work(OCCUPIED) for count in counts], float)
        drawn, pixels = work[:, 0], work[:, 1]
    # a batch may have more views than were counted
    rows = np.arange(max(batch, len(counts))) % len(counts)
    if len(rows) * ranks > SCHEDULED:
        # in order those that were counted take as long, for each, as when they come again
        rows, batch = np.arange(len(counts)), min(batch, len(counts))
        settings = settings.model_copy(
            update={"train": settings.train.model_copy(update={"order": "fixed"})})
    load = Load(growth * drawn[rows], pixels[rows], gaussians / ranks, busy[rows], moved[rows])
    found = CostModel(np.array(COSTS), bandwidth, LATENCY).predict(load, settings, batch)
    rate = found["images_per_second"]
    return rate, settings.train.images / rate / 3600, found["communication"]


def _error(values):
    """Standard error of the mean, relative."""
    if len(values) < 2 or not values.mean():
        return 0.0
    return float(values.std(ddof=1) / np.sqrt(len(values)) / values.mean())


def refusal(plan, settings, memory, free):
    """One line: why not to start the run and what to change; None where nothing speaks against it.

    memory: bytes of a rank's GPU, or of the host for a rank; free: bytes of disk for the run,
    None where they are not known.
    """
    if plan.cells < plan.ranks and settings.exchange.strategy != "gaussian":
        return (f"{plan.ranks - plan.cells} of {plan.ranks} ranks would have no cell: set "
                "partition.cells=0, or start fewer ranks")
    if plan.gaussians < plan.ranks:
        return (f"{plan.gaussians} Gaussians are too few for {plan.ranks} ranks: start "
                f"{plan.gaussians} ranks at most")
    room = store_room(settings, memory)
    held = plan.rank_gaussians * bytes_per_gaussian(settings.backend.precision)
    if held > room:
        wanted = int(np.ceil(plan.ranks * held / max(room, 1)))
        advice = f"use {wanted} ranks or more, or lower densify.limit"
        if room <= 0 or wanted > MOST_RANKS:
            advice = "give ranks more memory, or lower densify.limit"
        return (f"the fullest rank would hold {plan.rank_gaussians} Gaussians, "
                f"{held / 1e9:.3g} GB, but {max(room, 0) / 1e9:.3g} GB of its memory are for "
                f"them: {advice}")
    usable = int((1 - RESERVE_SHARE) * memory)
    if plan.rank_memory > usable:
        return (f"a rank would need {plan.rank_memory / 1e9:.3g} GB of {usable / 1e9:.3g}, "
                f"{plan.rank_views / 1e9:.3g} GB of them for views: lower train.chunk or "
                "train.in_flight, raise data.scale, or use more ranks")
    if free is not None and plan.disk > free:
        return (f"checkpoints would take {plan.disk / 1e9:.3g} GB, but the disk has "
                f"{free / 1e9:.3g}: lower checkpoint.keep, or set run.folder to another place")
    return None
