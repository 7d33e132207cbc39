"""The training loop: step after step, with what happens now and then in between."""

import time
from contextlib import contextmanager

from ..evaluate.heldout import evaluate
from ..partition.balance import rebalance
from ..partition.layout import Layout
from ..schedule.events import crossed
from ..schedule.predictor import observed
from .pressure import give_up, relieve

# Images between looks at whether Gaussians have left the content boxes: boxes predict, so a few
# steps with one outside cost nothing, and a step moves far less than the margin.
BOX_EVERY = 100


class Trainer:
    """One rank's side of a run.

    world: World; config: Config; views: list of View; train, test: indices into views; cache:
    ImageCache; photos: what training fetches photographs from, that cache or one on the device;
    state, tree: where training stands; boxes: ContentBoxes of its cells; renderer, optimizer,
    densifier (None: a fixed set of Gaussians), scheduler: the choices made; steps: of
    step.make_steps; guard: Guard; recorder: Recorder; save: saving.Saver, which writes
    checkpoints; stop: stopping.Stop, None for a run that nothing ends early.
    """

    def __init__(self, world, config, views, train, test, cache, batch):
        self.world, self.config = world, config
        self.views, self.train, self.test = views, train, test
        self.cache, self.photos, self.batch = cache, cache, batch
        self.state = self.tree = self.boxes = None
        self.renderer = self.optimizer = self.densifier = self.scheduler = None
        self.steps = self.guard = self.recorder = self.save = self.stop = None
        self.stored = None  # image count of the last checkpoint

    @property
    def degree(self):
        """SH bands in use: one more every train.sh_every images."""
        every = self.config.train.sh_every
        grown = self.state.images_seen // every if every else self.config.scene.sh_degree
        return min(self.config.scene.sh_degree, grown)

    def run(self):
        """Train until train.images images have been seen, or ranks agree to stop. Collective.
        Raises UserError where memory ends; what was trained until then is stored if that is
        possible."""
        if self.densifier:
            self.densifier.follow(self.state, self.world.exchange)
        while self.state.images_seen < self.config.train.images:
            before, step = self.state.images_seen, self.state.step
            try:
                self._step(before)
                self.save.poll()
                relieve(self)
                step = self.state.step
                self._events(before, self.state.images_seen)
            except MemoryError as error:
                give_up(self, error, self.state.step == step)
            with self.renderer.timers("agreement"):
                if self.stop and self.stop.step_ended():
                    break
        self.settle()

    def settle(self):
        """Wait for the steps under way, before anything but a step touches the state."""
        shares = self.steps.settle()
        self.recorder.add([], shares)
        self.guard.hear(shares)

    def _step(self, before):
        """One batch; the last one of a run may be smaller."""
        total = self.config.train.images
        size = min(self.batch, total - before)
        self.scheduler.begin(before)
        indices = self.scheduler.batch(before, size)
        upcoming = self.scheduler.batch(before + size, min(self.batch, total - before - size))
        with self.renderer.timers("photographs"):
            photos = self.photos.fetch(sorted(set(indices)), sorted(set(upcoming)))
        views = [self.views[i] for i in indices]
        chunks = self.scheduler.chunks(before, size)
        with self._timed():
            shares = self.steps.step(self.state, views, photos, self.degree, chunks)
        self.recorder.add(views, shares)
        self.recorder.accounts.counts.end_batch(chunks or [self.config.train.chunk] * size)
        with self.renderer.timers("guard"):
            self.guard.watch(views, self.state.images_seen, self.renderer.take_gradient_sums())
            self.guard.hear(shares)

    def observe(self, view, work):
        """Tell the scheduler and the accounts what this rank drew in a view,
        compose.base.ViewWork."""
        self.scheduler.observe(view.index, *observed(work))
        self.recorder.accounts.counts.add(view, work)

    @contextmanager
    def _timed(self):
        """Tell the scheduler what this rank computed in a with block, where it asks for it: a
        device is waited for."""
        if not self.config.schedule.measured:
            yield
            return
        began = self.computed()
        yield
        self.scheduler.timed(self.computed() - began)

    def computed(self):
        """Seconds of stages less those inside collectives, for differences."""
        return self.renderer.timers.computed()

    def _events(self, before, after):
        """What lies between two image counts."""
        config, last = self.config, after >= self.config.train.images
        grow = self.densifier and self.densifier.due(before, after, config.train.images)
        check = crossed(before, after, config.partition.check) and not last
        report = crossed(before, after, config.log.every) or last
        boxes = self.tree.cells > 1 and crossed(before, after, BOX_EVERY)
        look = grow or boxes or check or last or self.guard.due(self.state.step)
        look = look or self.steps.troubled
        if look or report:
            self.check_numbers(look)
        if grow:
            self.densify(before, after)
        elif boxes:
            self.update_boxes(self.boxes.refresh)
        if check:
            self.check_balance()
        if report:
            figures = dict(position_rate=self.optimizer.rate("means", after))
            figures.update(self.scheduler.figures(after))
            self.recorder.report(self.state, self.renderer, figures)
            if last or self.recorder.images >= len(self.train):
                self.recorder.check_visible(self.state)
        self.recorder.tick(after)
        if crossed(before, after, config.evaluate.every) and not last:
            self.recorder.quality(self.evaluate(), after)
        if crossed(before, after, config.checkpoint.every) and not last:
            self.store(wait=False)

    def store(self, wait=True):
        """Write a checkpoint; nothing that is not finite gets into one. Collective. wait: see
        Saver; whatever ends the run waits."""
        start = time.monotonic()
        with self.recorder.accounts.apart("checkpoint"):
            self.check_numbers(look=True)
            # a resumed run makes its boxes here, so the unbroken one does
            self.update_boxes(self.boxes.update)
            self.save(self, wait)
        self.stored = self.state.images_seen
        if self.stop:
            self.stop.wrote(time.monotonic() - start)
            self.stop.paused()

    def check_numbers(self, look):
        """Let ranks agree that all numbers are finite, see Guard.settle. Collective."""
        self.settle()
        with self.renderer.timers("guard"):
            dropped = self.guard.settle(self.state, look)
            if dropped:
                self._follow_rows()
        if dropped:
            self.set_layout()
            self._clear_masks()  # numbers that are not finite look dark

    def densify(self, before, after):
        """Change the set of Gaussians and send each to the cell of its mean. Collective."""
        self.settle()
        with self.renderer.timers("densify"):
            exchange, total = self.world.exchange, self.config.train.images
            done = self.densifier.apply(self.state, before, after, total, exchange)
            self._follow_rows()
        self.set_layout()
        total = self.recorder.densified(done, self.state)
        if any(total[name] for name in self.densifier.opens):
            self._clear_masks()

    def _clear_masks(self):
        """Draw all tiles again: there may be light where there was none. On all ranks alike."""
        if self.renderer.saturation:
            self.renderer.saturation.clear()

    def _follow_rows(self):
        """After Gaussians came or went: count them and send each to the cell of its mean."""
        if self.densifier:
            self.densifier.follow(self.state, self.world.exchange)
        self.state.migrate(self.tree, self.world.exchange)

    def update_boxes(self, method):
        """Bring the content boxes up to date, by their method update or refresh. Collective. A
        single cell takes part in every view: its box of the start will do."""
        if self.tree.cells > 1:
            self.settle()
            with self.renderer.timers("content boxes"):
                state = self.state
                method(state.gaussians, state.offsets, self.tree, self.world.exchange)

    def check_balance(self):
        """Build a new tree and redistribute where ranks have become too unequal. Collective."""
        self.settle()
        with self.renderer.timers("balance"):
            settings, exchange = self.config.partition, self.world.exchange
            self.tree, done = rebalance(self.state, self.tree, settings, exchange)
        if done:
            self.set_layout()
            self.scheduler.repartitioned(self.state.images_seen)
            self.recorder.repartitioned(done, self.state)

    def set_layout(self):
        """Tell all that depends on the cells which there are and where their rows lie now."""
        world = self.world
        layout = Layout(self.tree, world.rank, world.ranks, self.state.offsets)
        self.renderer.set_layout(layout)
        if self.stop:
            self.stop.expect(self.state.nbytes * world.ranks)
        self.update_boxes(self.boxes.update)

    def evaluate(self, folder=None):
        """Held-out Quality, or None without held-out views, or where ranks agree to stop.
        Collective."""
        if not self.test:
            return None
        self.settle()
        with self.recorder.accounts.apart("evaluate"):
            quality = evaluate(
                self.renderer,
                self.state.gaussians,
                [self.views[i] for i in self.test],
                self.cache,
                self.degree,
                self.config.train.chunk,
                folder,
                self.config.evaluate.pictures if folder is not None else 0,
                self.stop.agreed if self.stop else None,
            )
        if self.stop:
            self.stop.paused()
        return quality
