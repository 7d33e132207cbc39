"""The main job: photographs in, one trained scene out (splaxel-mpi train)."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from .. import log
from ..checkpoint.resume import checkpoints
from ..compose import make_compositor
from ..compose.boundary import make_boundary
from ..compose.gaussian import GaussianExchange
from ..data.dataset import load
from ..data.device_images import DeviceImages, node_budget
from ..data.images import ImageCache, default_budget
from ..densify import make_densifier
from ..evaluate.series import Series
from ..evaluate.summary import write_summary
from ..files import write_text
from ..mpi.signals import StopSignals
from ..mpi.watchdog import Watchdog
from ..mpi.world import on_root
from ..partition.content import ContentBoxes
from ..partition.layout import Layout
from ..progress import Progress
from ..scene.initialise import scene_extent
from ..scene.ply import write_ply
from ..schedule import make_scheduler
from ..schedule.costs import CostFit
from ..schedule.predictor import WorkPredictor
from ..visibility.counts import ViewCounts
from ..visibility.saturation import make_saturation
from .accounts import Accounts
from .budget import make_budget
from .folder import open_folder
from .forecast import cells_of_views
from .guard import Guard
from .loop import Trainer
from .one_rank import OneRank
from .optimizer import Optimizer
from .record import Recorder
from .render import Renderer
from .render_strips import StripRenderer
from .saving import Saver
from .start import from_checkpoint, from_points
from .step import make_steps
from .stopping import Stop
from .warm_up import warm_up
from .world import make_world

logger = logging.getLogger(__name__)
IF_ANY = "if any"  # resume where there is something to resume from
ROUNDED = (
    "model.ply holds float32 positions in steps of %.3g at these coordinates; checkpoints hold "
    "them exactly, less run/origin %s"
)


def run(config, resume, comm, deadline=None):
    """Train as the configuration says and write everything that comes out. Collective.

    config: config.Config; resume: continue from the newest checkpoint of the run, IF_ANY: where
    it has one; comm: the communicator of all ranks; deadline: moment of time.monotonic() by which
    it is to end, None for none. Returns None, or why it stopped before its end, by a signal
    or the deadline: it can be resumed then. Raises UserError for what a user can mend.
    """
    log.setup(None, comm.rank, comm.size)
    if resume == IF_ANY:
        resume = has_checkpoint(config, comm)
    with StopSignals() as signals:
        stop = Stop(comm, signals, deadline)
        _run(config, resume, comm, stop)
        stop.close()
    return stop.reason


def has_checkpoint(config, comm):
    """Whether the run of a configuration has a checkpoint, by name alone. Collective."""
    folder = Path(config.run.folder) / config.run.name / "checkpoints"
    return on_root(comm, lambda: bool(checkpoints(folder)))


def _run(config, resume, comm, stop):
    """Prepare, train until the end or until ranks agree to stop, write what comes out."""
    world = make_world(config, comm)
    warm_up(config, world, make_renderer)
    data = read_data(config, world)
    cache = make_cache(config, world, data)
    with open_folder(config, resume, world) as (folder, aside):
        log.setup(folder / "log.txt", world.rank, world.ranks)
        if aside:
            logger.info("the earlier run of this name is now %s", aside)
        trainer = prepare(config, resume, world, data, cache, folder)
        logger.info(_opening(trainer, data, folder))
        trainer.stop = stop
        trainer.steps.before_update = stop.begin
        stop.expect(trainer.state.nbytes * world.ranks)
        with Watchdog(config.mpi.timeout, comm, trainer.renderer.timers):
            _train(trainer, data, folder)


def _train(trainer, data, folder):
    """Everything from the first evaluation on."""
    seen, images = trainer.state.images_seen, trainer.config.train.images
    if not seen:
        trainer.recorder.start_from(trainer.evaluate())
    else:
        logger.info("resumed after %d of %d images", seen, images)
    if seen >= images:
        logger.info("nothing is left to train; train.images can be raised")
    trainer.run()
    if not trainer.stop.reason:
        finish(trainer, data, folder)
    if trainer.stop.reason:
        _leave(trainer)
    _close(trainer)


def _leave(trainer):
    """A checkpoint of a run that stops here, and a word on it. Collective."""
    if trainer.stored != trainer.state.images_seen:
        trainer.store()
    trainer.save.close()
    trainer.recorder.close()
    logger.info("stopped after %d of %d images, since %s; go on with --resume",
                trainer.state.images_seen, trainer.config.train.images, trainer.stop.reason)


def _close(trainer):
    """Give the photographs' memory back. Collective."""
    if trainer.photos is not trainer.cache:
        trainer.photos.close()
    trainer.cache.close()


def read_data(config, world):
    """Cameras and split on every rank, points on the root only. Collective."""
    points = None

    def read():
        nonlocal points
        found = load(
            config.data.path,
            format=config.data.format,
            scale=config.data.scale,
            holdout=config.data.holdout,
            images=config.data.images,
        )
        points = found.points
        centers = np.array([found.views[i].camera.center for i in found.train])
        return dict(
            views=found.views,
            train=found.train,
            test=found.test,
            origin=found.origin,
            content_id=found.content_id,
            extent=scene_extent(centers, found.points.positions),
        )

    return SimpleNamespace(**on_root(world.comm, read), points=points)


def make_cache(config, world, data):
    """Image cache of the node. Collective."""
    # each rank sees the free memory of another moment, but all must keep the same images
    budget = config.data.cache or min(world.node.allgather(default_budget()))
    return ImageCache(data.views, world.node, budget)


def prepare(config, resume, world, data, cache, folder):
    """A Trainer ready to run: fresh, or where the newest checkpoint stands. Collective."""
    chain, stored = [], None
    budget = make_budget(config.backend.memory, world, cache.capacity, config.mpi.share_gpu)
    budget.scene = config.densify.limit
    if resume:
        place = folder / "checkpoints"
        state, tree, stored = from_checkpoint(place, config, world, data.content_id, budget)
        chain = [*stored.config_chain, stored.config]
    else:
        state, tree = from_points(data.points, config, world, budget)
    logger.info(budget.describe(world.exchange, len(state.rows), world.backend.real))
    state.move(world.backend.to_device)
    boxes = ContentBoxes(config.partition.margin)
    boxes.update(state.gaussians, state.offsets, tree, world.exchange)
    if world.is_root and not tree.dealt:
        cameras = [data.views[i].camera for i in data.train]
        logger.info(cells_of_views(boxes, cameras, config.render.near))
    batch = stored.batch if stored and not config.train.batch else config.train.batch
    trainer = Trainer(
        world, config, data.views, data.train, data.test, cache, batch or world.ranks
    )
    trainer.state, trainer.tree, trainer.boxes = state, tree, boxes
    trainer.renderer = make_renderer(config, world, tree, state, boxes)
    if stored and trainer.renderer.saturation:
        _restore_masks(trainer, stored)
    trainer.guard = guard = Guard(world, config.train.on_nonfinite, state)
    trainer.optimizer = Optimizer(
        world.backend, config.train, data.extent, trainer.batch, guard.flags
    )
    trainer.densifier = _densifier(config, world, data.extent)
    trainer.steps = make_steps(
        trainer.renderer, trainer.optimizer, config.train, trainer.densifier,
        trainer.observe,
    )
    if world.backend.name == "cuda":
        trainer.photos = DeviceImages(cache, world.backend, node_budget(world.backend, world.node))
    if isinstance(trainer.steps, OneRank):
        guard.every = guard.SELDOM
    trainer.recorder = _recorder(trainer, folder, stored)
    trainer.scheduler = _scheduler(trainer, stored)
    facts = dict(
        seed=config.run.seed,
        origin=data.origin,
        extent=data.extent,
        dataset=data.content_id,
        config=config.to_yaml(),
        config_chain=chain,
    )
    trainer.save = Saver(folder / "checkpoints", config.checkpoint, facts, world.comm)
    if world.is_root:
        write_text(folder / "config.yaml", config.to_yaml())
    return trainer


def _restore_masks(trainer, stored):
    """Masks of a checkpoint, where they hold for these cells and ranks."""
    cameras, renderer = [view.camera for view in trainer.views], trainer.renderer
    if not renderer.saturation.restore(stored.extra, renderer.layout, cameras):
        logger.info(
            "the checkpoint has no masks for these ranks, cells and saturation.threshold: "
            "all tiles are drawn at first"
        )


def _densifier(config, world, extent):
    """The densifier of the settings, with a word on what it overrides."""
    densifier = make_densifier(config.densify, extent, config.run.seed, world.backend)
    if densifier and densifier.needs_dense and config.train.optimizer != "dense":
        logger.info("densify.method %s moves every Gaussian in every step: train.optimizer %s is "
                    "taken as dense", densifier.name, config.train.optimizer)
    if densifier and densifier.growth(0, config.train.images - 1, config.train.images) is None:
        logger.info("the scene will not grow: no event lies between densify.start, %d images, and "
                    "the end of growth", densifier.settings.start)
    return densifier


def _scheduler(trainer, stored):
    """Scheduler of the settings, where a checkpoint (None: the beginning) left it."""
    config, world, settings = trainer.config, trainer.world, trainer.config.schedule

    def content():
        trainer.settle()
        return trainer.state.gaussians, trainer.boxes

    predictor = WorkPredictor(
        trainer.views, world.exchange, lambda: trainer.renderer.layout, content, world.backend,
        config.render.near, settings.pixel_cost, CostFit() if settings.measured else None,
    )
    scheduler = make_scheduler(
        config.train.order, trainer.train, config.run.seed, trainer.batch, settings.window,
        config.train.chunk, predictor,
    )
    if stored:
        scheduler.restore(stored.schedule, stored.extra, stored.images_seen)
    return scheduler


def make_renderer(config, world, tree, state, boxes):
    """The rendering stages for a tree, the rows of a state and their ContentBoxes."""
    layout = Layout(tree, world.rank, world.ranks, state.offsets)
    if config.exchange.strategy == GaussianExchange.name:
        return StripRenderer(
            world.backend, world.exchange, layout, config.exchange, config.scene.background,
            config.render.near, config.render.stop,
        )
    compositor = make_compositor(
        config.exchange, world.backend, world.exchange, layout, config.scene.background
    )
    near, stop = config.render.near, config.render.stop
    boundary = make_boundary(config.boundary, boxes, near)
    saturation = make_saturation(config.saturation, tree.cells, stop)
    return Renderer(
        world.backend, world.exchange, layout, compositor, near, stop, boundary, saturation
    )


def _recorder(trainer, folder, stored):
    """Recorder that continues the files of a resumed run."""
    config, world, state = trainer.config, trainer.world, trainer.state
    renderer, near = trainer.renderer, config.render.near
    counts = ViewCounts(trainer.views, lambda: renderer.layout, trainer.boxes, near)
    accounts = Accounts(renderer, counts, world.node)
    resumed = state.images_seen if stored else None
    series = Series(folder / "metrics.h5", world.rank, resumed)
    progress = Progress(
        config.train.images, state.images_seen, is_rank0=world.is_root, every=config.log.every
    )
    recorder = Recorder(world, series, progress, accounts, config)
    if stored:
        recorder.restore(stored.order)
    return recorder


def _opening(trainer, data, folder):
    """One line that says what is about to be trained."""
    world = trainer.world
    return (
        f"{len(data.train)} training and {len(data.test)} held-out views, "
        f"cells: {trainer.tree.cells}, ranks: {world.ranks}, batch: {trainer.batch}, "
        f"{world.backend.real}, threads of a rank: {world.backend.threads}, results in {folder}"
    )


def finish(trainer, data, folder):
    """Last checkpoint, held-out quality, pictures, the PLY and the summary. Collective. Ranks
    may agree to stop while the quality is measured: then only the checkpoint is there."""
    world, recorder = trainer.world, trainer.recorder
    seconds = recorder.seconds
    if trainer.renderer.saturation and recorder.images:
        logger.info(trainer.renderer.saturation.describe(world.exchange))
    moved = recorder.total_bytes()
    trainer.store()
    trainer.save.close()
    quality = trainer.evaluate(folder / "pictures")
    if trainer.stop.reason:
        return
    recorder.quality(quality, trainer.state.images_seen)
    recorder.close()
    gaussians = trainer.state.gaussians.map(world.backend.to_host)
    write_ply(folder / "model.ply", gaussians, data.origin, world.comm)
    if data.origin.any():
        logger.info(ROUNDED, np.spacing(np.float32(np.abs(data.origin).max())), data.origin)
    count = np.array([len(trainer.state.gaussians)], np.int64)
    count = int(world.exchange.allreduce("figures", count)[0])
    if world.is_root:
        write_summary(
            folder / "summary.json",
            psnr=quality.psnr if quality else None,
            psnr_initial=recorder.initial_psnr if quality else None,
            ssim=quality.ssim if quality else None,
            gaussians=count,
            images_seen=trainer.state.images_seen,
            ranks=world.ranks,
            seconds=seconds,
            images_per_second=trainer.state.images_seen / max(seconds, 1e-9),
            bytes_exchanged=moved,
            origin=data.origin,
        )
        logger.info("results are in %s: model.ply, summary.json, pictures/, metrics.h5", folder)
