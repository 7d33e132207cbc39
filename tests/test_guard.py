"""Broken numbers, empty cells and ranks: no hang, no silent loss, no broken checkpoint."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from runs import last_checkpoint, shared_folder, state_of, train, train_on_root
from scenes import random_gaussians
from splaxel_mpi.checkpoint.resume import checkpoints, load
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.scene.rows import Rows
from splaxel_mpi.train import start
from splaxel_mpi.train.guard import Guard, broken_rows
from splaxel_mpi.train.loop import Trainer
from splaxel_mpi.train.render import Renderer
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import Steps

pytestmark = [pytest.mark.timeout(120)]

# selective: what is not drawn is not moved. Moments of the dense optimizer may turn a
# quaternion of no length into one before anybody looks.
QUICK = ["train.images=24", "train.optimizer=selective", "densify.method=none",
         "checkpoint.every=8", "log.every=8", "checkpoint.keep=9", "evaluate.pictures=0"]


EVENTS = ["evaluate.every=16", "checkpoint.keep=9", "checkpoint.every=12", "log.every=8"]
EXACT = ["backend.precision=float64", "render.stop=0", "train.images=32", "train.epsilon=1e-8",
         *EVENTS]
ALL = slice(None)


@pytest.fixture
def inject(monkeypatch):
    """Function (images, change, rank=0): change(trainer) once before the step that follows so
    many images, on one rank."""

    def plan(images, change, rank=0):
        step = Trainer._step

        def changed(self, before):
            if before == images and self.world.rank == rank:
                change(self)
            return step(self, before)

        monkeypatch.setattr(Trainer, "_step", changed)

    return plan


def put(name, value, rows=slice(3, 5)):
    """A change that writes a value into rows of a parameter group or a moment."""

    def change(trainer):
        kind, group = name.split("/") if "/" in name else ("", name)
        state = trainer.state
        arrays = getattr(state, kind) if kind else dict(state.gaussians.groups())
        arrays[group][rows] = value

    return change


BROKEN = [
    ("means", np.nan, "means not finite"),
    ("scales", np.inf, "scales not finite"),
    ("scales", 60.0, "scales beyond the range of numbers"),
    ("opacities", -np.inf, "opacities not finite"),
    ("sh0", np.nan, "sh0 not finite"),
    ("shN", np.inf, "shN not finite"),
    ("quats", np.nan, "quats not finite"),
    ("quats", 0.0, "quats without direction"),
    ("first/means", np.nan, "first moments of means not finite"),
    ("second/shN", np.inf, "second moments of shN not finite"),
]


@pytest.mark.parametrize("name, value, problem", BROKEN)
def test_broken_numbers_stop_the_run(city, tmp_path, alone, inject, name, value, problem):
    """Even those that nothing reads: who, what and when is told, what is stored stays good."""
    inject(12, put(name, value))
    with pytest.raises(UserError) as caught:
        train(city, tmp_path, alone, *QUICK)
    text = str(caught.value)
    assert "\n" not in text and problem in text
    assert "rank 0: " in text and "2 Gaussians (first id " in text and "image" in text
    (path,) = checkpoints(tmp_path / "small" / "checkpoints")
    assert path.endswith("08.h5")
    assert not broken_rows(restored(path)).problems
    assert not (tmp_path / "small" / "model.ply").exists()


@pytest.mark.parametrize("name, value, problem", BROKEN[::4])
def test_broken_gaussians_are_dropped(city, tmp_path, alone, inject, name, value, problem):
    ids = []
    change = put(name, value)

    def note(trainer):
        ids.extend(trainer.state.gaussians.ids[3:5].tolist())
        change(trainer)

    inject(12, note)
    run = train(city, tmp_path, alone, *QUICK, "train.on_nonfinite=prune")
    state = restored(last_checkpoint(run))
    assert len(state.gaussians) == 398 and not np.isin(ids, state.gaussians.ids).any()
    assert not broken_rows(state).problems
    log = (run / "log.txt").read_text()
    assert log.count("warning: rank 0: ") == 1 and problem in log
    assert "2 of 400 Gaussians dropped" in log


def restored(path):
    """State of a checkpoint of one rank."""
    stored = load(path)
    columns = stored.gaussians.columns()
    for kind in ("first", "second"):
        columns |= {f"{kind}/{name}": array for name, array in getattr(stored, kind).items()}
    return State(Rows(columns))


def test_a_broken_gradient_names_its_view_and_the_image_count(city, tmp_path, alone, monkeypatch):
    """At the third step of four views: the second view's gradient is broken."""
    calls, names = [], []
    whole = Renderer._rasterize_backward

    def broken(self, works, seeds):
        gradients = whole(self, works, seeds)
        for (gradient,) in gradients:
            calls.append(gradient)
            if len(calls) == 10:
                gradient[: len(gradient) // 2] = np.nan
        return gradients

    whole_watch = Guard.watch

    def watch(self, views, *rest):
        names.extend(view.name for view in views)
        return whole_watch(self, views, *rest)

    monkeypatch.setattr(Renderer, "_rasterize_backward", broken)
    monkeypatch.setattr(Guard, "watch", watch)
    with pytest.raises(UserError) as caught:
        train(city, tmp_path, alone, *QUICK)
    text = str(caught.value)
    assert "rank 0: the gradient and the update of " in text
    assert f"at image 12 (views {names[9]})" in text
    assert "Gaussians (first id " in text and "means not finite" in text


def test_flags_of_adam_name_step_and_group():
    backend = HostBackend(np.float32)
    guard = Guard(world_of(backend), "stop", SimpleNamespace(images_seen=0))
    arrays = [np.ones((5, 3), np.float32) for _ in range(4)]
    seen = np.array([1, 0, 1, 1, 1], np.uint8)
    views = [SimpleNamespace(name="a"), SimpleNamespace(name="b")]

    def step(images, loss=0.0):
        groups = [(*arrays, 0.1)] * len(GROUPS)
        backend.adam_groups(groups, seen, (0.9, 0.99), 1e-8, 3, 1.0, broken=guard.flags)
        guard.watch(views, images, [0.0, np.float32(0)])
        guard.hear(np.full((2, 3), loss))

    step(2)
    assert guard._notice() is None
    arrays[1][1] = np.nan  # of a row that is left alone
    step(4)
    assert guard._notice() is None
    arrays[1][4, 2] = 1e30  # its square is too large: the row would never move again
    step(6)
    step(8, np.nan)
    text = "the update of means, scales, quats, opacities, sh0, shN not finite at image 6"
    assert str(guard._notice()) == f"{text} (views a, b)"
    assert not guard.flags.any() and guard._notice() is None


def test_steps_in_trouble_are_looked_at_at_once(city, tmp_path, alone, inject, monkeypatch):
    """As steps that run ahead of their device tell it; otherwise the next look is at the end."""
    trainers = []

    def change(trainer):
        trainers.append(trainer)
        put("shN", np.nan)(trainer)

    def troubled(steps):
        return bool(steps.optimizer.broken.any())

    inject(12, change)
    monkeypatch.setattr(Steps, "troubled", property(troubled))
    with pytest.raises(UserError, match="the update of shN not finite at image 16 "):
        train(city, tmp_path, alone, *QUICK, "checkpoint.every=0", "train.optimizer=dense",
              "log.every=24")
    assert trainers[0].state.images_seen == 16


def test_losses_may_come_later_than_their_steps():
    guard = Guard(world_of(HostBackend(np.float32)), "stop", SimpleNamespace(images_seen=0))
    for k in range(4):
        guard.watch([SimpleNamespace(name=str(k))], k + 1, [])
    guard.hear(np.zeros((2, 3)))
    guard.hear(np.array([[0, np.nan, 0], [0, 0, 0]]))
    assert str(guard._notice()) == "the loss not finite at image 3 (views 2)"


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_adam_flags_any_value_of_any_thread(real, threads, place):
    for row in (0, 57, 99):
        groups = [[np.ones((100, width), real) for _ in range(4)] + [0.1] for width in (3, 7)]
        rules, flags = ((0.9, 0.99), 1e-8, 3, 1.0), np.zeros(2, np.int32)
        backend = HostBackend(real, threads)
        backend.adam_groups(groups, None, *rules, clear=place == 2, broken=flags)
        assert not flags.any()
        groups[1][place][row, 5] = np.inf
        backend.adam_groups(groups, None, *rules, clear=place == 2, broken=flags)
        assert flags.tolist() == [0, 1]


def world_of(backend):
    return SimpleNamespace(backend=backend, rank=0, is_root=True)


def test_broken_rows_are_those_and_no_others():
    state = State.fresh(random_gaussians(50, 1, np.float32), None)
    assert not broken_rows(state).rows.any()
    # large, and their sum overflows; opacities that a sigmoid rounds to 0 or 1
    state.gaussians.shN[:] = 3e38
    state.gaussians.opacities[:10] = [[300.0], [-300.0]] * 5
    state.gaussians.quats[7] = [1e-15, 0, 0, 0]
    found = broken_rows(state)
    assert not found.rows.any() and found.problems == []
    state.gaussians.quats[[4, 9]] = [[0, 0, 0, 0], [1e30, 0, 0, 0]]
    state.second["sh0"][11] = np.nan
    found = broken_rows(state)
    assert np.flatnonzero(found.rows).tolist() == [4, 9, 11]
    assert len(found.problems) == 2


def test_a_gaussian_at_a_camera_centre_stays_and_harms_nobody(city, tmp_path, alone, inject):
    def move(trainer):
        centers = np.array([view.camera.center for view in trainer.views])
        trainer.state.gaussians.means[: len(centers)] = centers

    inject(0, move)
    run = train(city, tmp_path, alone, *QUICK)
    state = restored(last_checkpoint(run))
    assert len(state.gaussians) == 400 and not broken_rows(state).problems


@pytest.mark.mpi(min_size=2)
def test_gaussians_at_camera_centres_harm_no_rank(comm, city, tmp_path_factory, inject):
    """On two ranks at once, in whatever cells the cameras stand: growth, migration and new boxes go
    on, and nothing is lost or broken."""
    folder = shared_folder(comm, tmp_path_factory)

    def move(trainer):
        centers = np.array([view.camera.center for view in trainer.views])
        means = trainer.state.gaussians.means
        means[: len(centers)] = centers[: len(means)]

    inject(4, move, 0)
    inject(4, move, comm.size - 1)
    run = train(city, folder, comm, *EVENTS, "densify.threshold=10", "densify.prune_opacity=0",
                "train.images=32")
    ids = state_of(last_checkpoint(run))["gaussians/ids"]
    np.testing.assert_array_equal(ids, np.arange(400))
    assert not broken_rows(restored(last_checkpoint(run))).problems
    comm.barrier()


def chain(splits):
    """Tree of cells along x, each node giving its left side one cell."""
    nodes = len(splits)
    right = np.append(np.arange(1, nodes), -1 - nodes).astype(np.int32)
    return Tree(np.zeros(nodes, np.int32), np.array(splits, float),
                -1 - np.arange(nodes, dtype=np.int32), right)


@pytest.fixture(scope="module")
def path_of_one(city, tmp_path_factory):
    """Folder of a run of one rank, which all follow."""
    from mpi4py import MPI

    folder = shared_folder(MPI.COMM_WORLD, tmp_path_factory)
    return train_on_root(city, folder, MPI.COMM_WORLD, *EXACT)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("check", [0, 16])
def test_all_gaussians_in_one_cell(
    comm, city, path_of_one, tmp_path_factory, monkeypatch, check
):
    """Ranks without a Gaussian go through growth, checkpoints, evaluation and repartitioning;
    the scene is that of one rank (1e-10: see test_ranks_follow_the_path_of_one)."""
    folder = shared_folder(comm, tmp_path_factory)
    with monkeypatch.context() as patch:
        patch.setattr(start, "first_tree",
                      lambda means, cells, *_: chain(1e6 + np.arange(cells - 1)))
        many = train(city, folder, comm, *EXACT, f"partition.check={check}")
    stored = load(many / "checkpoints" / "checkpoint_000000000012.h5", comm)
    assert (len(stored.gaussians) > 0) == (comm.rank == 0)
    found, expected = state_of(last_checkpoint(many)), state_of(last_checkpoint(path_of_one))
    np.testing.assert_array_equal(found["gaussians/ids"], expected["gaussians/ids"])
    for name in GROUPS:
        a, b = found[f"gaussians/{name}"], expected[f"gaussians/{name}"]
        assert np.abs(a - b).max() <= 1e-10 * np.abs(b).max(), name
    assert ("repartitioned" in (many / "log.txt").read_text()) == bool(check)
    comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("policy", ["stop", "prune"])
@pytest.mark.parametrize("name, value", [
    ("scales", np.nan), ("means", np.inf), ("quats", 0.0), ("second/shN", np.nan),
])
def test_ranks_hear_of_broken_numbers_on_one(
    comm, city, tmp_path_factory, inject, name, value, policy
):
    """Of the last rank's: all stop with one text, or all go on without."""
    folder, last = shared_folder(comm, tmp_path_factory), comm.size - 1
    inject(12, put(name, value), last)
    settings = [*QUICK, f"train.on_nonfinite={policy}"]
    text = f"rank {last}: (the update of shN not finite .*, )?2 Gaussians .first id "
    if policy == "stop":
        with pytest.raises(UserError) as caught:
            train(city, folder, comm, *settings)
        assert re.match(text, str(caught.value))
        assert len(set(comm.allgather(str(caught.value)))) == 1
        assert len(checkpoints(folder / "small" / "checkpoints")) == 1
    else:
        run = train(city, folder, comm, *settings)
        assert len(state_of(last_checkpoint(run))["gaussians/ids"]) == 398
        assert re.search(text, (run / "log.txt").read_text())
    comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", ["broken", "transparent"])
def test_a_rank_that_loses_its_last_gaussian(comm, city, tmp_path_factory, inject, way):
    """All of the last rank's Gaussians break, or fade and are pruned at growth. Evaluation and
    checkpoints go on, and the next check gives it others."""
    folder, last = shared_folder(comm, tmp_path_factory), comm.size - 1
    name, value = ("quats", 0.0) if way == "broken" else ("opacities", -20.0)
    inject(8, put(name, value, ALL), last)
    run = train(city, folder, comm, *EVENTS, "train.on_nonfinite=prune", "partition.check=32",
                "densify.threshold=10", "train.optimizer=selective")
    held = load(run / "checkpoints" / "checkpoint_000000000036.h5", comm)
    counts = comm.allgather(len(held.gaussians))
    assert min(counts) > 0 and max(counts) - min(counts) <= 2
    log = (run / "log.txt").read_text()
    assert ("Gaussians dropped" in log) == (way == "broken")
    assert "repartitioned after 32 images" in log
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_the_last_gaussian_of_all_ends_the_run(comm, city, tmp_path_factory, monkeypatch):
    folder = shared_folder(comm, tmp_path_factory)
    step = Trainer._step

    def broken(self, before):
        put("means", np.inf, ALL)(self)
        return step(self, before)

    monkeypatch.setattr(Trainer, "_step", broken)
    with pytest.raises(UserError, match="no Gaussian is left after image"):
        train(city, folder, comm, *QUICK, "train.on_nonfinite=prune")
    comm.barrier()
