"""The training loop: step after step, with what happens now and then in between."""

from ..evaluate.heldout import evaluate
from ..partition.layout import Layout
from ..schedule.events import crossed
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
    step.make_steps; recorder: Recorder; save: function (trainer) that writes a checkpoint.
    """

    def __init__(self, world, config, views, train, test, cache, batch):
        self.world, self.config = world, config
        self.views, self.train, self.test = views, train, test
        self.cache, self.photos, self.batch = cache, cache, batch
        self.state = self.tree = self.boxes = None
        self.renderer = self.optimizer = self.densifier = self.scheduler = None
        self.steps = self.recorder = self.save = None

    @property
    def degree(self):
        """SH bands in use: one more every train.sh_every images."""
        every = self.config.train.sh_every
        grown = self.state.images_seen // every if every else self.config.scene.sh_degree
        return min(self.config.scene.sh_degree, grown)

    def run(self):
        """Train until train.images images have been seen. Collective. Raises UserError where
        memory ends; what was trained until then is stored if that is possible."""
        if self.densifier:
            self.densifier.follow(self.state, self.world.exchange)
        while self.state.images_seen < self.config.train.images:
            before, step = self.state.images_seen, self.state.step
            try:
                self._step(before)
                relieve(self)
                step = self.state.step
                self._events(before, self.state.images_seen)
            except MemoryError as error:
                give_up(self, error, self.state.step == step)
        self.settle()

    def settle(self):
        """Wait for the steps under way, before anything but a step touches the state."""
        self.recorder.add([], self.steps.settle())

    def _step(self, before):
        """One batch; the last one of a run may be smaller."""
        total = self.config.train.images
        size = min(self.batch, total - before)
        indices = self.scheduler.batch(before, size)
        upcoming = self.scheduler.batch(before + size, min(self.batch, total - before - size))
        with self.renderer.timers("photographs"):
            photos = self.photos.fetch(sorted(set(indices)), sorted(set(upcoming)))
        views = [self.views[i] for i in indices]
        shares = self.steps.step(self.state, views, photos, self.degree)
        self.recorder.add(views, shares)

    def _events(self, before, after):
        """What lies between two image counts."""
        config, last = self.config, after >= self.config.train.images
        if self.densifier and self.densifier.due(before, after, config.train.images):
            self.densify(before, after)
        elif crossed(before, after, BOX_EVERY):
            self.update_boxes(self.boxes.refresh)
        if crossed(before, after, config.log.every) or last:
            self.settle()
            rate = self.optimizer.rate("means", after)
            self.recorder.report(self.state, self.renderer, {"position_rate": rate})
            if last or self.recorder.images >= len(self.train):
                self.recorder.check_visible(self.state)
        self.recorder.tick(after)
        if crossed(before, after, config.evaluate.every) and not last:
            self.recorder.quality(self.evaluate(), after)
        if crossed(before, after, config.checkpoint.every) and not last:
            self.settle()
            self.recorder.check_finite(self.state)
            # a resumed run makes its boxes here, so the unbroken one does
            self.update_boxes(self.boxes.update)
            self.save(self)

    def densify(self, before, after):
        """Change the set of Gaussians and send each to the cell of its mean. Collective."""
        self.settle()
        with self.renderer.timers("densify"):
            exchange, total = self.world.exchange, self.config.train.images
            done = self.densifier.apply(self.state, before, after, total, exchange)
            self.densifier.follow(self.state, exchange)
            self.state.migrate(self.tree, exchange)
        self.set_layout()
        self.update_boxes(self.boxes.update)
        total = self.recorder.densified(done, self.state)
        if self.renderer.saturation and any(total[name] for name in self.densifier.opens):
            self.renderer.saturation.clear()

    def update_boxes(self, method):
        """Bring the content boxes up to date, by their method update or refresh. Collective. A
        single cell takes part in every view: its box of the start will do."""
        if self.tree.cells > 1:
            self.settle()
            with self.renderer.timers("content boxes"):
                state = self.state
                method(state.gaussians, state.offsets, self.tree, self.world.exchange)

    def set_layout(self):
        """Tell the renderer where the rows of each cell lie now."""
        world = self.world
        layout = Layout(self.tree, world.rank, world.ranks, self.state.offsets)
        self.renderer.set_layout(layout)

    def evaluate(self, folder=None):
        """Held-out Quality, or None without held-out views. Collective."""
        if not self.test:
            return None
        self.settle()
        return evaluate(
            self.renderer,
            self.state.gaussians,
            [self.views[i] for i in self.test],
            self.cache,
            self.degree,
            self.config.train.chunk,
            folder,
            self.config.evaluate.pictures if folder is not None else 0,
        )
