"""`splaxel-mpi bench kernels`: every stage of a step, its floor, and the peer in the same run."""

import importlib

import numpy as np

from ...errors import UserError
from ...files import write_json
from . import base
from .floors import Counts, floors
from .halves import measure_halves
from .stages import Chain, time_stages

PEERS = ("none", "gsplat")
# what is timed as it is called; calls of a row follow each other at once
WHOLES = (("forward", "backward"), ("step_without_loss",), ("step",))
STEP = "train step"
LEAST_STEPS = 96  # of training on a GPU that are timed together, so that the end of them is little


def run(scenes, backend, comm, peer="none", half=0, report=None, command=None, say=print):
    """Measure scenes and print a table for each.

    scenes: of scenes.Scene, any iterable, one is held at a time; backend: Backend; comm: of this
    one process; peer: of PEERS; half: also the two halves of each scene, in chunks of so many
    views, 0: not; report: path of a JSON file or None; command: what the report says was asked
    for; say: takes a line of text.
    Returns the report. Raises UserError when the peer is not to be had.
    """
    peer = find_peer(peer)
    clock = base.make_clock(backend)
    machine = base.measure_machine(backend, clock)
    say(f"{backend.name}: {machine}")
    result = dict(base.report_head(machine, command), scenes=[])
    for scene in scenes:
        found = measure(scene, backend, clock, machine, comm)
        if half:
            found["half"] = measure_halves(scene, backend, clock, half)
        if peer:
            ours = rendered(scene, backend)
            release(backend)
            found["peer"] = peer.measure(scene, base.PASSES)
            found["peer"]["psnr"] = psnr(ours, peer.image(scene, scene.cameras[0]))
        for line in lines(found):
            say(line)
        result["scenes"].append(found)
        release(backend)
        if report:  # after each: a run that is killed leaves what it has
            write_json(report, result)
    return result


def find_peer(name):
    """The module that measures a peer, None for "none". Raises UserError where it is missing."""
    if name == "none":
        return None
    try:
        module = importlib.import_module(f".peer_{name}", __package__)
        module.require()
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"--peer {name}: {reason}; install {name} or leave the option out"
        ) from None
    return module


def release(backend):
    """Give cached device memory back, for the peer's allocator."""
    if backend.xp is not np:
        backend.xp.get_default_memory_pool().free_all_blocks()


def rendered(scene, backend):
    """The first view, (height, width, 3) on the host."""
    chain, camera = Chain(backend, scene.gaussians, scene.degree), scene.cameras[0]
    chain.look(camera), chain.forward(), chain.compose(), chain.lay_out()
    image = backend.to_host(chain.image)[:, : camera.height, : camera.width]
    return image.transpose(1, 2, 0)


def psnr(first, second):
    """Peak signal-to-noise ratio in dB of two images in [0, 1]."""
    error = np.mean((np.clip(first, 0, 1) - np.clip(second, 0, 1)) ** 2, dtype=np.float64)
    return float(-10 * np.log10(max(error, 1e-20)))


def measure(scene, backend, clock, machine, comm):
    """{what was measured} of a scene: medians over views in milliseconds."""
    chain = Chain(backend, scene.gaussians, scene.degree)
    samples, counts = time_stages(chain, scene.cameras, clock)
    wholes = time_wholes(chain, scene.cameras, clock)
    typical = Counts.median(counts)
    camera = scene.cameras[0]
    least = floors(typical, camera.tile_count, machine)
    del chain
    wholes.times.update(time_train_step(scene, backend, clock, comm).times)
    stages = {
        name: {"ms": ms, "floor_ms": least[name][0], "bound": least[name][1]}
        for name, ms in samples.medians().items()
    }
    return {
        "scene": scene.name,
        "views": len(scene.cameras),
        "width": camera.width,
        "height": camera.height,
        "counts": vars(typical),
        "stages": stages,
        "whole": wholes.medians(),
    }


def time_wholes(chain, cameras, clock):
    """Samples of forward, backward and whole steps, each from an idle machine, after
    time_stages; see Chain.whole."""
    samples = base.Samples()
    for turn in range(base.PASSES):
        for view, camera in enumerate(cameras):
            chain.look(camera)
            for names in WHOLES:
                times = clock.calls(*map(chain.whole, names))
                for name, milliseconds in zip(names, times) if turn else ():
                    samples.add(name, view, milliseconds)
    chain.check()
    return samples


def time_train_step(scene, backend, clock, comm):
    """Samples of the step of training itself on one rank and one cell, all its bookkeeping
    included; learning rates too small to change anything. Means over steps that follow each
    other: where they do not wait for the device, the host's work hides behind it."""
    from ... import config
    from ...mpi.transport import exchange_alone
    from ...partition.tree import Tree
    from ...train.job import make_renderer
    from ...train.one_rank import OneRank
    from ...train.optimizer import Optimizer
    from ...train.state import State
    from ...train.step import make_steps
    from ...train.world import World
    from ...data.base import View

    settings = config.parse("", "defaults", ["data.path=."])  # no data set is read
    rates = settings.train.rates
    tiny = rates.model_copy(update=dict.fromkeys(type(rates).model_fields, 1e-12))
    training = settings.train.model_copy(update={"rates": tiny, "batch": 1})
    world = World(comm, comm, exchange_alone(backend), backend)
    count = len(scene.gaussians)
    state = State.fresh(scene.gaussians.map(backend.to_device), np.array([0, count]))
    renderer = make_renderer(settings, world, Tree.single(), state, None)
    optimizer = Optimizer(backend, training, 1.0, 1)
    steps, samples = make_steps(renderer, optimizer, training), base.Samples()
    photo = {}
    for camera in scene.cameras:
        size = camera.height, camera.width, 3
        photo[size] = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    if isinstance(steps, OneRank):
        photo = {size: backend.to_device(pixels) for size, pixels in photo.items()}
    views = [View(index, str(index), None, camera) for index, camera in enumerate(scene.cameras)]

    def train():
        for view in views * rounds:
            pixels = photo[view.camera.height, view.camera.width, 3]
            steps.step(state, [view], {view.index: pixels}, scene.degree)
        steps.settle()

    rounds = 1 if backend.xp is np else -(-LEAST_STEPS // len(views))
    train()
    for _ in range(base.PASSES):
        samples.add(STEP, 0, clock.calls(train)[0] / (len(views) * rounds))
    return samples


def lines(found):
    """A measurement as text."""
    counts = found["counts"]
    yield ""
    yield (f"{found['scene']}: {found['views']} views of {found['width']} x {found['height']}, "
           "medians in ms")
    yield (f"visible {counts['visible']:,}, drawn {counts['drawn']:,}, pairs of splat and tile "
           f"{counts['instances']:,}, tiles held {counts['held']:,}, pairs of splat and pixel "
           f"{counts['pairs']:,}")
    rows = [
        (name, base.shown(row["ms"]), base.shown(row["floor_ms"]), row["bound"],
         base.shown(row["ms"] / row["floor_ms"], 1) if row["floor_ms"] else "-")
        for name, row in found["stages"].items()
    ]
    yield from base.table(rows, ("stage", "time", "floor", "bound by", "distance to floor"))
    whole = found["whole"]
    yield from base.table(
        [(name.replace("_", " "), base.shown(ms)) for name, ms in whole.items()],
        ("as called, host included", "time"),
    )
    if "half" in found:
        yield ("a rank with half of the scene against one with the whole, chunk after chunk, sums "
               "over the views, no ghosts; masked: at the next visits, without tiles that are "
               "dark in front of the cell")
        yield from base.table(
            [(name, base.shown(row["whole_ms"]),
              *(base.shown(share, 2) for kind in ("drawn", "masked")
                for share in (*row[kind], np.mean(row[kind]))))
             for name, row in found["half"].items()],
            ("stage", "whole", "cell 0", "cell 1", "mean", "masked: cell 0", "cell 1", "mean"),
        )
    if "peer" in found:
        yield from peer_lines(whole, found["peer"])


def peer_lines(whole, peer):
    """The peer's figures beside ours, and how many times ours they are."""
    ours = {
        "forward": whole["forward"],
        "backward": whole["backward"],
        "forward + backward": whole["forward"] + whole["backward"],
        "step": whole["step"],
        "step without loss": whole["step_without_loss"],
    }
    rows = []
    for mode, figures in peer["modes"].items():
        for name, theirs in figures.items():
            rows.append((f"{mode}: {name}", base.shown(theirs), base.shown(ours[name]),
                         base.shown(theirs / ours[name], 2)))
    yield (f"{peer['name']} {peer['version']}, same views, same run; the two images of the first "
           f"view agree to {peer['psnr']:.1f} dB")
    yield from base.table(rows, (peer["name"], "theirs", "ours", "ratio"))
