"""Checkpoints: what is written comes back, on any rank count, or the file is refused."""

import os
import random
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

from splaxel_mpi.checkpoint.base import Checkpoint
from splaxel_mpi.checkpoint.resume import (
    checkpoint_path,
    latest,
    load,
    load_latest,
    prune,
)
from splaxel_mpi.checkpoint.save import save
from splaxel_mpi.checkpoint.seal import LENGTH, extents, put_seal
from splaxel_mpi.errors import UserError
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

PER_GAUSSIAN = ("gradient_norm", "gradient_count", "cell")
REPLICATED = (
    "images_seen step batch order seed extent sh_degree config dataset config_chain versions"
).split()


def chain_tree(cells):
    """A tree that cuts one cell after the other off the right along x."""
    nodes = cells - 1
    left = np.array([k + 1 if k + 1 < nodes else -1 for k in range(nodes)], np.int32)
    right = np.array([-1 - (nodes - k) for k in range(nodes)], np.int32)
    return Tree(np.zeros(nodes, np.int32), -np.arange(nodes, dtype=float), left, right)


def state_of(rank, count, cells=1, kind=np.float32, images=10, cell=None):
    """A made-up state of one rank; every value differs from rank to rank."""
    rng = np.random.default_rng([rank, count, images])
    parts = [
        {name: rng.normal(size=(count, width)).astype(kind) for name, width in GROUPS.items()}
        for _ in range(3)
    ]
    state = Checkpoint.fresh(
        Gaussians(**parts[0], ids=rng.permutation(count).astype(np.int64) + (rank << 40)),
        tree=chain_tree(cells),
        images_seen=images,
        step=images // 2,
        batch=2,
        order={"epoch": 3, "position": 17, "fraction": 0.125},
        seed=11,
        origin=np.array([1e6, -2.5, 1 / 3]),
        extent=12.75,
        background=np.array([0.0, 0.5, 1.0]),
        sh_degree=2,
        random_state=np.array([2**64 - 1, 5], np.uint64),
        config="train:\n  note: größer\n",
        dataset="9f3c",
        config_chain=["first: 1\n", ""],
        versions={"python": "3.11", "MPI library": "Some MPI v1"},
    )
    state.first, state.second = parts[1], parts[2]
    state.gradient_norm = rng.random(count).astype(kind)
    state.gradient_count = rng.integers(0, 2**40, count)
    state.cell = np.full(count, rank % cells if cell is None else cell, np.int32)
    state.schedule = {"order": np.arange(5) + images, "bounds": np.array([3, 8])}
    state.extra = {"masks": rng.integers(0, 256, 3 * rank + 1).astype(np.uint8)}
    return state


def assert_rows_equal(got, expected):
    """Bitwise equality of everything that belongs to Gaussians."""
    pairs = [(got.gaussians.ids, expected.gaussians.ids)]
    for name in GROUPS:
        pairs.append((getattr(got.gaussians, name), getattr(expected.gaussians, name)))
        pairs.append((got.first[name], expected.first[name]))
        pairs.append((got.second[name], expected.second[name]))
    pairs += [(getattr(got, name), getattr(expected, name)) for name in PER_GAUSSIAN]
    for a, b in pairs:
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_replicated_equal(got, expected):
    for name in REPLICATED:
        assert getattr(got, name) == getattr(expected, name), name
    for name in ("origin", "background", "random_state"):
        assert getattr(got, name).tobytes() == getattr(expected, name).tobytes()
    assert got.schedule.keys() == expected.schedule.keys()
    for name, array in expected.schedule.items():
        np.testing.assert_array_equal(got.schedule[name], array)
    for name in ("axis", "split", "left", "right"):
        assert np.array_equal(getattr(got.tree, name), getattr(expected.tree, name))


def together(parts):
    """One state from the states of all ranks, in rank order."""
    whole = parts[0]
    whole.gaussians = Gaussians.concatenate([part.gaussians for part in parts])
    for moments in ("first", "second"):
        joined = {n: np.concatenate([getattr(p, moments)[n] for p in parts]) for n in GROUPS}
        setattr(whole, moments, joined)
    for name in PER_GAUSSIAN:
        setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
    return whole


def data_sets(path):
    """Path in the file -> bytes, for all data sets but the time of writing."""
    import h5py

    found = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: found.update({name: item[()].tobytes()})
            if isinstance(item, h5py.Dataset) and item.ndim
            else None
        )
    return found


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_one_rank_reads_back_bitwise(tmp_path, kind, count):
    state = state_of(0, count, kind=kind)
    path = tmp_path / "sub" / "a.h5"
    saved = save(path, state)
    got = load(path)
    assert saved.bytes == path.stat().st_size
    assert os.listdir(path.parent) == ["a.h5"]
    assert_rows_equal(got, state)
    assert_replicated_equal(got, state)
    assert got.extra["masks"].tobytes() == state.extra["masks"].tobytes()
    assert got.ranks == 1 and got.rank_offsets.tolist() == [0, count]


def test_rows_of_several_checksum_blocks_read_back(tmp_path):
    state = state_of(0, 70_000)
    save(tmp_path / "a.h5", state)
    assert_rows_equal(load(tmp_path / "a.h5"), state)


def test_any_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.h5"
    save(path, state_of(0, 50, cells=3))
    whole, draw = path.read_bytes(), random.Random(1)
    places = draw.sample(range(len(whole)), 100) + [0, len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError) as caught:
            load(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    path.write_bytes(whole)
    load(path)


def test_a_flipped_byte_in_rows_names_file_and_data_set(tmp_path):
    import h5py

    path = tmp_path / "a.h5"
    save(path, state_of(0, 50))
    with h5py.File(path, "r") as file:
        place = file["adam/second/quats"].id.get_offset() + 5
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(UserError, match=r"a\.h5.*adam/second/quats.*checksum"):
        load(path)


@pytest.mark.parametrize("keep", [0, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "a.h5"
    save(path, state_of(0, 500))
    size = path.stat().st_size
    os.truncate(path, int(keep if keep > 1 else keep * size))
    with pytest.raises(UserError, match=r"a\.h5"):
        load(path)


def edit(path, change):
    """Change a checkpoint and seal it again, as a forger would."""
    import h5py

    with h5py.File(path, "r+") as file:
        change(file)
        items = [file.get(name) for name in file["layout/contents"][()].decode().split("\n")]
        items = [item for item in items if item and f"checksums{item.name}" in file]
        rows = extents(items)
    put_seal(path, rows)


def replace(name, value):
    def change(file):
        del file[name]
        file[name] = value
        file[name].attrs["crc32"] = np.uint32(zlib.crc32(np.asarray(value).tobytes()))

    return change


HUGE = np.array([0, 2**60])
WRONG = {
    "version": (lambda f: f.attrs.modify("version", 99), "version 99"),
    "older": (lambda f: f.attrs.modify("version", 1), "run splaxel-mpi upgrade"),
    "incomplete": (lambda f: f.attrs.modify("complete", 0), "never completed"),
    "other format": (lambda f: f.attrs.modify("format", np.bytes_("x")), "not a splaxel_mpi"),
    "missing": (lambda f: f.__delitem__("gaussians/ids"), "gaussians/ids"),
    "short": (replace("gaussians/ids", np.arange(7)), "gaussians/ids"),
    "wide": (replace("adam/first/means", np.zeros((50, 4), np.float32)), "adam/first/means"),
    "type": (replace("gaussians/means", np.zeros((50, 3), np.int32)), "gaussians/means"),
    "huge": (replace("layout/rank_offsets", HUGE), "layout/cell_offsets"),
    "no cells": (replace("layout/cell_offsets", np.array([0])), "layout/cell_offsets"),
    "loop": (replace("tree/right", np.array([0, -2], np.int32)), "tree"),
    "cell": (replace("gaussians/cell", np.full(50, 3, np.int32)), "gaussians/cell"),
    "cut": (replace("tree/split", np.array([0.5, np.nan])), "tree: a cut"),
    "images": (replace("run/images_seen", np.int64(-5)), "run/images_seen is -5"),
    "step": (replace("run/step", np.int64(-1)), "run/step is -1"),
    "batch": (replace("run/batch", np.int64(0)), "run/batch is 0"),
    "seed": (replace("run/seed", np.int64(-1)), "run/seed is -1"),
    "degree": (replace("run/sh_degree", np.int64(4)), "run/sh_degree is 4"),
    "extent": (replace("run/extent", np.float64("nan")), "run/extent is nan"),
    "no extent": (replace("run/extent", np.float64("inf")), "run/extent is inf"),
    "origin": (replace("run/origin", np.array([0, np.nan, 0])), "run/origin"),
    "background": (replace("run/background", np.array([0, np.inf, 0])), "run/background"),
    "flat origin": (replace("run/origin", np.zeros(2)), "run/origin"),
    "many": (replace("run/step", np.arange(2)), "not a readable checkpoint"),
}


@pytest.mark.parametrize("case", WRONG)
def test_inconsistent_files_are_refused_in_one_line(tmp_path, case):
    change, text = WRONG[case]
    path = tmp_path / "a.h5"
    save(path, state_of(0, 50, cells=3))
    edit(path, change)
    with pytest.raises(UserError) as caught:
        load(path)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_huge_and_foreign_storage_is_refused_before_memory_is_taken(tmp_path):
    import h5py

    path, other = tmp_path / "a.h5", tmp_path / "other.h5"
    save(path, state_of(0, 0))
    save(other, state_of(0, 0))

    def inflate(file):
        del file["run/random_state"]
        file.create_dataset("run/random_state", (1 << 40,), np.uint64, chunks=(1 << 20,))

    def link(file):
        del file["gaussians/means"]
        file["gaussians/means"] = h5py.ExternalLink(str(other), "gaussians/means")

    edit(path, inflate)
    with pytest.raises(UserError, match="run/random_state"):
        load(path)
    save(path, state_of(0, 0))
    edit(path, link)
    with pytest.raises(UserError, match="gaussians/means"):
        load(path)


@pytest.mark.parametrize("content", [None, b"", b"hello" * 100])
def test_files_that_are_no_checkpoints_are_refused(tmp_path, content):
    path = tmp_path / "a.h5"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.h5"):
        load(path)


def test_latest_falls_back_with_a_warning_and_prune_keeps_sound_ones(tmp_path, caplog):
    for images in (10, 200, 3000):
        save(checkpoint_path(tmp_path, images), state_of(0, 20, images=images))
    newest = checkpoint_path(tmp_path, 3000)
    assert latest(tmp_path) == newest
    os.truncate(newest, 1000)
    (tmp_path / ".checkpoint_000000004000.h5.partial").write_bytes(b"left by a killed job")
    assert latest(tmp_path) == checkpoint_path(tmp_path, 200)
    path, state = load_latest(tmp_path)
    assert path == checkpoint_path(tmp_path, 200) and state.images_seen == 200
    assert newest in caplog.text
    prune(tmp_path, 1)
    names = {os.path.basename(checkpoint_path("", images)) for images in (200, 3000)}
    assert set(os.listdir(tmp_path)) == names


@pytest.mark.parametrize("part", [0.01, 0.5, 0.9, 0.9999])
def test_a_flipped_bit_sends_to_the_checkpoint_before(tmp_path, caplog, part):
    for images in (10, 20):
        save(checkpoint_path(tmp_path, images), state_of(0, 400, images=images))
    newest = checkpoint_path(tmp_path, 20)
    with open(newest, "r+b") as file:
        file.seek(int(part * os.path.getsize(newest)))
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 16]))
    path, state = load_latest(tmp_path)
    assert path == checkpoint_path(tmp_path, 10) and state.images_seen == 10
    assert newest in caplog.text


def test_prune_keeps_the_first_of_each_stretch(tmp_path):
    kept = []
    for images in range(10, 100, 10):
        save(checkpoint_path(tmp_path, images), state_of(0, 3, images=images))
        prune(tmp_path, 2, every=25)
        kept.append([int(name[11:23]) for name in sorted(os.listdir(tmp_path))])
    assert kept[-1] == [30, 50, 80, 90] and kept[3] == [30, 40] and kept[1] == [10, 20]


def test_bytes_after_the_rows_and_a_lost_seal_are_found(tmp_path):
    path = tmp_path / "a.h5"
    size = save(path, state_of(0, 20)).bytes
    with open(path, "ab") as file:
        file.write(b"\0")
    with pytest.raises(UserError, match="seal"):
        load(path)
    os.truncate(path, size - LENGTH)
    with pytest.raises(UserError, match="seal"):
        load(path)


def test_an_empty_folder_has_no_latest_and_a_ruined_one_is_not_silent(tmp_path):
    assert latest(tmp_path) is None and load_latest(tmp_path / "none") == (None, None)
    with open(checkpoint_path(tmp_path, 1), "wb") as file:
        file.write(b"x" * 5000)
    assert latest(tmp_path) is None
    with pytest.raises(UserError, match="none of its 1"):
        load_latest(tmp_path)


def test_a_writer_that_cannot_be_had_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="'fast'.*unknown"):
        save(tmp_path / "a.h5", state_of(0, 1), writer="fast")


CHILD = """
import resource, sys
from test_checkpoint import save, state_of, UserError
path, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
while True:
    try:
        save(path, state_of(0, 20_000, images=99))
    except UserError as error:
        sys.exit(str(error))
"""


def child(path, limit):
    here = os.path.dirname(os.path.abspath(__file__))
    paths = os.pathsep.join([here, os.path.dirname(here)])
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI"))}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(limit)],
        env=dict(environment, PYTHONPATH=paths),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path, state = tmp_path / "a.h5", state_of(0, 100)
    save(path, state)
    writer = child(path, 2_000_000)
    _, errors = writer.communicate(timeout=60)
    assert writer.returncode == 1
    assert len(errors.splitlines()) == 1 and "a.h5: cannot be written" in errors
    assert os.listdir(tmp_path) == ["a.h5"]
    assert_rows_equal(load(path), state)


@pytest.mark.timeout(60)
def test_a_kill_while_writing_leaves_a_whole_file(tmp_path):
    path = tmp_path / "a.h5"
    save(path, state_of(0, 100))
    for attempt in range(3):
        writer = child(path, 0)
        writer.stdout.readline()
        time.sleep(0.05 + 0.11 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        got = load(path)
        expected = state_of(0, 20_000 if got.images_seen == 99 else 100, images=got.images_seen)
        assert_rows_equal(got, expected)
