"""The images of a node: one decode, one budget, the same pixels for every rank."""

import threading
import time

import numpy as np
import pytest

from make_dataset import build, make
from splaxel_mpi.data.budget import default_budget
from splaxel_mpi.data.dataset import load
from splaxel_mpi.data.images import ImageCache, decode
from splaxel_mpi.errors import UserError
from splaxel_mpi.mpi.shared import SharedBuffer

ONE = 24 * 16 * 3  # bytes of an image of the default size, a multiple of the cache's 64


def views_of(folder, count=8, **settings):
    scene = make(folder, views=count, **settings)
    return scene, load(folder, holdout=0).views


def assert_pixels(scene, views, found):
    for view, pixels in found.items():
        np.testing.assert_array_equal(pixels, scene.pixels[views[view].name])


def test_cache_returns_what_decode_does(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 3 * ONE, threads=2)
    random = np.random.default_rng(1)
    batches = [random.choice(8, random.integers(1, 4), replace=False).tolist() for _ in range(50)]
    for number, batch in enumerate(batches):
        upcoming = [view for later in batches[number + 1 : number + 4] for view in later]
        found = cache.fetch(batch, upcoming)
        assert sorted(found) == sorted(batch)
        assert_pixels(scene, views, found)
    cache.close()


def test_cache_decodes_once_when_all_fits(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 8 * ONE)
    for _ in range(3):
        for view in range(8):
            assert_pixels(scene, views, cache.fetch([view], [(view + 1) % 8]))
    assert cache.decoded == 8
    cache.close()


def test_cache_drops_the_least_recently_used(tmp_path):
    scene, views = views_of(tmp_path)
    cache = ImageCache(views, None, 3 * ONE)
    for view in (0, 1, 2, 0, 3):  # 3 replaces 1
        cache.fetch([view])
    assert cache.decoded == 4
    cache.fetch([0, 2, 3])
    assert cache.decoded == 4
    cache.fetch([1])
    assert cache.decoded == 5
    cache.close()


def test_upcoming_views_are_decoded_while_the_caller_computes(tmp_path, monkeypatch):
    scene, views = views_of(tmp_path)
    done, main = threading.Event(), threading.get_ident()

    def spy(view):
        assert threading.get_ident() != main
        if view.index == 5:
            done.set()
        return decode(view)

    monkeypatch.setattr("splaxel_mpi.data.images.decode", spy)
    cache = ImageCache(views, None, 4 * ONE)
    cache.fetch([0], [4, 5])
    assert done.wait(10)  # before anybody asked for it
    assert_pixels(scene, views, cache.fetch([5]))
    cache.close()


def test_cache_of_mixed_sizes_never_fails_to_place_a_batch_that_fits(tmp_path):
    sizes = [(24, 16), (16, 24), (8, 8), (64, 8), (24, 24), (16, 4)]
    views, photos = [], []
    for number, size in enumerate(sizes):
        scene, found = views_of(tmp_path / str(number), 1, size=size, seed=number)
        views += found
        photos.append(scene.pixels[found[0].name])
    budget = 3 * 64 * 8 + 3 * 24 * 24  # the two largest
    cache = ImageCache(views, None, budget)
    random = np.random.default_rng(2)
    for _ in range(200):
        batch, used = [], 0
        for view in random.permutation(6).tolist():
            if used + photos[view].size <= budget:
                batch.append(view)
                used += photos[view].size
        found = cache.fetch(batch, random.permutation(6).tolist())
        for view in batch:
            np.testing.assert_array_equal(found[view], photos[view])
    cache.close()


def test_cache_too_small_names_the_setting(tmp_path):
    _, views = views_of(tmp_path)
    with pytest.raises(UserError, match="data.cache"):
        ImageCache(views, None, ONE - 1)
    cache = ImageCache(views, None, 2 * ONE)
    with pytest.raises(UserError, match="data.cache"):
        cache.fetch([0, 1, 2])
    assert list(cache.fetch([0, 1])) == [0, 1]
    cache.close()


def test_damaged_image_is_told_on_fetch_and_spares_the_others(tmp_path):
    scene, views = views_of(tmp_path)
    damage(views[2].image_path)
    cache = ImageCache(views, None, 4 * ONE)
    cache.fetch([0], [1, 2])
    assert_pixels(scene, views, cache.fetch([1], [2]))
    for _ in range(2):
        with pytest.raises(UserError, match="0002.png"):
            cache.fetch([2, 3])
    assert_pixels(scene, views, cache.fetch([3, 4]))
    cache.close()


def damage(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_budget_follows_cgroup_and_slurm(tmp_path):
    def budget(**environ):
        return default_budget(shared=False, environ=environ, root=tmp_path)

    whole = budget()
    assert whole > 0
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job/step\n4:memory:/slurm/job_7\n")
    job = tmp_path / "sys/fs/cgroup/job"
    (job / "step").mkdir(parents=True)
    (job / "step" / "memory.max").write_text("max\n")
    assert budget() == whole
    (job / "memory.max").write_text(str(400 << 20))
    assert budget() == 100 << 20
    old = tmp_path / "sys/fs/cgroup/memory/slurm/job_7"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text(str(200 << 20))
    assert budget() == 50 << 20
    assert budget(SLURM_MEM_PER_NODE="100") == 25 << 20
    assert budget(SLURM_MEM_PER_CPU="20", SLURM_CPUS_ON_NODE="2") == 10 << 20
    assert budget(SLURM_MEM_PER_NODE="0") == 50 << 20  # SLURM: all memory of the node


# ---- the cache of several ranks


@pytest.fixture
def world():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    yield comm
    comm.Free()


def shared_views(world, folder):
    """The same files for all ranks, written by rank 0."""
    folder = world.bcast(folder)
    if world.rank == 0:
        make(folder)
    world.Barrier()
    return build(), load(folder, holdout=0).views


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_ranks_of_a_node_share_one_decode(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    cache = ImageCache(views, world, 8 * ONE)
    for _ in range(3):
        for view in range(0, 8, 2):
            found = cache.fetch([view, view + 1], [(view + 2) % 8, (view + 3) % 8])
            assert_pixels(scene, views, found)
    assert world.allreduce(cache.decoded) == 8
    cache.close()


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_ranks_agree_under_a_small_budget(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    cache = ImageCache(views, world, 3 * ONE)
    random = np.random.default_rng(3)  # the same batches on all ranks
    batches = [random.choice(8, random.integers(1, 4), replace=False).tolist() for _ in range(60)]
    for number, batch in enumerate(batches):
        ahead = random.permutation(8).tolist()  # often not what comes
        found = cache.fetch(batch, ahead)
        if world.rank == number % world.size:
            time.sleep(0.002)  # a slow reader must not see the next batch's pixels
        assert_pixels(scene, views, found)
    cache.close()


@pytest.mark.mpi
@pytest.mark.timeout(120)
def test_a_damaged_image_is_told_to_all_ranks(tmp_path, world):
    scene, views = shared_views(world, tmp_path)
    if world.rank == 0:
        damage(views[5].image_path)
    world.Barrier()
    cache = ImageCache(views, world, 8 * ONE)
    cache.fetch([0], [5])
    with pytest.raises(UserError, match="0005.png"):
        cache.fetch([4, 5])
    assert_pixels(scene, views, cache.fetch([4, 6]))
    cache.close()


@pytest.mark.mpi(min_size=2)
@pytest.mark.timeout(120)
def test_more_shared_memory_than_the_node_has_is_refused(world):
    """Writing beyond it would end the process with SIGBUS and no message."""
    with pytest.raises(UserError, match="lower data.cache"):
        SharedBuffer(world, 1 << 60)
