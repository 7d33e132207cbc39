"""How many Gaussians fit, what is refused, and what happens when memory ends all the same."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
from exchanges import run_ranks

from chain import Run, self_exchange
from runs import last_checkpoint, state_of, train
from scenes import look_at, random_gaussians, random_photo
from splaxel_mpi.backends.host import HostBackend
from splaxel_mpi.backends.host_memory import HostMemory
from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.series import read_series
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS
from splaxel_mpi.settings import Train
from splaxel_mpi.train.budget import Budget, bytes_per_gaussian, fits, make_budget
from splaxel_mpi.train.loop import Trainer
from splaxel_mpi.train.pressure import relieve
from splaxel_mpi.train.state import State
from splaxel_mpi.train.step import Steps, forward_backward

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("real, size", [(np.float32, 965), (np.float64, 1913)])
def test_a_gaussian_takes_what_the_documents_say(real, size):
    """Parameters, two moments and gradients, and at most 15 % beside them."""
    state = State.fresh(random_gaussians(100, 0, real), None)
    state.gradients()
    assert state.nbytes == 100 * size and bytes_per_gaussian(real) == size
    assert size <= 1.15 * 59 * 4 * np.dtype(real).itemsize
    assert fits(10 * size + size - 1, real) == 10


# limits of the scene and of each rank, rows, wanted, what may be added
CASES = [
    (0, (0, 0, 0), (5, 6, 7), (1, 0, 30), 31),
    (25, (0, 0, 0), (5, 6, 7), (1, 0, 30), 7),
    (18, (0, 0, 0), (5, 6, 7), (1, 0, 30), 0),
    (0, (9, 9, 9), (5, 6, 7), (1, 2, 2), 5),  # all have room
    (0, (9, 9, 9), (5, 6, 7), (4, 3, 3), 2),  # even if rank 2 took everything
    (0, (9, 9, 7), (5, 6, 9), (4, 3, 0), 7),  # one over its limit that wants nothing
    (20, (9, 9, 7), (5, 6, 7), (4, 3, 1), 0),
]


@pytest.mark.parametrize("scene, ranks, rows, wanted, granted", CASES)
def test_whatever_is_chosen_fits_every_rank(caplog, scene, ranks, rows, wanted, granted):
    budgets = [Budget(scene, limit) for limit in ranks]

    def ask(exchange):
        k = exchange.rank
        return [budgets[k].allowed(exchange, rows[k], wanted[k]) for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        found = run_ranks(3, ask)
    assert found == [[granted] * 3] * 3
    texts = [record.getMessage() for record in caplog.records]
    # the first rank says a thing once
    assert len(texts) == len(set(texts)) and bool(texts) == (granted < sum(wanted))
    by_scene = f"the scene reached densify.limit = {scene}: "
    assert any(by_scene in text for text in texts) == bool(scene)
    by_rank = any("a rank's memory is full" in text for text in texts)
    assert by_rank == (granted < sum(wanted) and any(ranks))


def test_a_rank_that_cannot_hold_its_rows_is_named_on_all():
    def check(exchange):
        budget = Budget(rank=(50, 60, 0)[exchange.rank])
        budget.check(exchange, 50)
        with pytest.raises(UserError, match="rank 1 would hold 61 of 161 .* holds 60: use more"):
            budget.check(exchange, (50, 61, 50)[exchange.rank])
        return True

    assert all(run_ranks(3, check))


SHARE = int(0.7 * (90_000 - 10_000) / 2) // 965


@pytest.mark.parametrize("setting, rows", [(None, SHARE), (9700, 10)])
def test_ranks_of_a_node_share_what_is_free(setting, rows):
    def one(exchange):
        node = SimpleNamespace(size=2, allgather=lambda value: [value, 90_000])
        backend = HostBackend()
        backend.memory.available = lambda: 100_000
        budget = make_budget(setting, SimpleNamespace(backend=backend, node=node), 10_000, False)
        return budget.rank

    assert run_ranks(2, one) == [rows, rows]


def test_the_host_knows_what_is_free():
    assert 0 < HostMemory().available() < 1 << 50


def test_a_scene_that_does_not_fit_is_refused_at_the_start(city, tmp_path, alone):
    line = "rank 0 would hold 400 of 400 Gaussians, but its memory holds 103"
    with pytest.raises(UserError, match=line):
        train(city, tmp_path, alone, "backend.memory=100000")


def test_log_and_metrics_tell_what_memory_there_is(city, tmp_path, alone):
    run = train(city, tmp_path, alone, "train.images=8", "backend.memory=1M")
    assert "Gaussians: 400, at most 400 on a rank at 965 bytes each; 1,086 fit in its memory" in (
        run / "log.txt").read_text()
    series = read_series(run / "metrics.h5")
    assert np.nanmax(series["fits/max"]) == 1086
    assert np.nanmax(series["store/max"]) == 400 * 965


def run_of(views):
    """A scene, its state, and a function that adds up a batch of views."""
    gaussians = random_gaussians(60, 4)
    run = Run(gaussians, Tree.single(), self_exchange(), 1, 0, HostBackend(np.float64), 0.0)
    state = State.fresh(run.gaussians, run.renderer.layout.offsets)
    cameras = [look_at([3 + 0.2 * i, i - 2, 1], [0, 0, 0], 40 - i, 20 + i) for i in range(views)]
    chosen = [SimpleNamespace(camera=camera, index=i) for i, camera in enumerate(cameras)]
    photos = {i: random_photo(camera, i) for i, camera in enumerate(cameras)}

    def add(chunk):
        settings = SimpleNamespace(chunk=chunk, in_flight=2, ssim_weight=0.2)
        return forward_backward(run.renderer, state.gaussians, chosen, photos, 3, settings,
                                state.gradients())

    return run.renderer, state, add


def test_a_chunk_without_memory_is_taken_view_by_view(monkeypatch, caplog):
    """Memory for two views at a time, and a chunk of four: gradients, statistics and losses are
    those of views taken singly, to the bit."""
    pytest.importorskip("mpi4py")
    renderer, state, add = run_of(5)
    partials = []
    whole = renderer.backend.rasterize

    def scarce(*arguments):
        partials.append(1)
        if len(partials) > 2:
            partials.clear()
            raise MemoryError("no more")
        return whole(*arguments)

    back = renderer.back_propagating

    def free(*arguments):
        partials.clear()
        return back(*arguments)

    monkeypatch.setattr(renderer.backend, "rasterize", scarce)
    monkeypatch.setattr(renderer, "back_propagating", free)
    with caplog.at_level(logging.WARNING):
        shares = add(4)
    assert [record.getMessage() for record in caplog.records] == [
        "no memory for 4 views at a time: they are taken one by one"]
    single_renderer, single, add_single = run_of(5)
    np.testing.assert_array_equal(shares, add_single(1))
    for name in [*GROUPS, "seen", "norm", "count"]:
        mine, theirs = (getattr(one.gradients(), name) for one in (state, single))
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert renderer.take_counts() == single_renderer.take_counts()
    partials.extend([1, 1])
    with pytest.raises(MemoryError, match="no more"):
        add(1)


def test_arrays_follow_when_chunks_become_smaller():
    """A device's memory was full: from then on its arrays are not made for the chunks before."""
    asked, memory = [], SimpleNamespace(spent=True, reserve=1, renew=lambda: None)
    backend = SimpleNamespace(xp=None, memory=memory, forget_sizes=lambda: asked.append(1))
    trainer = SimpleNamespace(
        world=SimpleNamespace(backend=backend, exchange=SimpleNamespace(ranks=1)),
        state=SimpleNamespace(images_seen=4), steps=Steps(None, None, Train(chunk=4)),
    )
    relieve(trainer)
    assert asked and trainer.steps.settings.chunk == 1


def test_a_run_without_memory_ends_with_all_it_trained(city, tmp_path, alone, monkeypatch):
    """Memory ends in the third batch, whose views are taken one by one in vain: the state after
    the second is stored, and going on from it gives the unbroken run to the bit."""
    options = "train.images=12", "train.batch=2", "checkpoint.every=0", "densify.start=6"
    unbroken = train(city, tmp_path / "unbroken", alone, *options)
    draw, run, drawn = HostBackend.rasterize, Trainer.run, []

    def scarce(self, *arguments):
        drawn.append(1)
        if len(drawn) > 4:
            raise MemoryError("no more\nof it")
        return draw(self, *arguments)

    def run_scarce(self):
        monkeypatch.setattr(HostBackend, "rasterize", scarce)  # the first evaluation is over
        run(self)

    monkeypatch.setattr(Trainer, "run", run_scarce)
    with pytest.raises(UserError) as caught:
        train(city, tmp_path / "broken", alone, *options)
    text = str(caught.value)
    assert "\n" not in text and "out of memory after image 4 (no more of it)" in text
    assert "this rank holds 400 Gaussians" in text and "image 4 is stored" in text
    monkeypatch.undo()
    resumed = train(city, tmp_path / "broken", alone, *options, resume=True)
    first, second = (state_of(last_checkpoint(run)) for run in (unbroken, resumed))
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)
