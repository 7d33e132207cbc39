"""The PLY: layout that viewers expect, round trips, files that are refused."""

import os
import shutil
import tempfile

import numpy as np
import plyfile
import pytest

from splaxel_mpi.errors import UserError
from splaxel_mpi.scene import ply
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians
from splaxel_mpi.scene.ply import read_ply, write_ply


def model(count, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    groups = {n: rng.normal(size=(count, w)).astype(dtype) for n, w in GROUPS.items()}
    if count:
        groups["means"][0] = -0.0
    return Gaussians(**groups, ids=np.arange(count))


def assert_bitwise(got, expected):
    for name in GROUPS:
        assert getattr(got, name).tobytes() == getattr(expected, name).tobytes(), name


@pytest.mark.parametrize("count", [0, 1, 777])
def test_float32_round_trip_is_bitwise(tmp_path, count):
    expected = model(count)
    write_ply(tmp_path / "a.ply", expected)
    got, degree = read_ply(tmp_path / "a.ply")
    assert degree == 3 and got.ids.tolist() == list(range(count))
    assert_bitwise(got, expected)
    assert os.listdir(tmp_path) == ["a.ply"]


def test_layout_is_what_viewers_expect(tmp_path):
    expected = model(5)
    write_ply(tmp_path / "a.ply", expected, origin=(10.0, 0.0, -3.0))
    content = (tmp_path / "a.ply").read_bytes()
    head, body = content.split(b"end_header\n")
    assert head.startswith(b"ply\nformat binary_little_endian 1.0\nelement vertex 5\n")
    assert len(body) == 5 * 248
    names = [line.split()[2] for line in head.decode().split("\n") if line.startswith("property")]
    assert names[:7] == ["x", "y", "z", "nx", "ny", "nz", "f_dc_0"] and names[-1] == "rot_3"
    rows = np.frombuffer(body, "<f4").reshape(5, 62)
    moved = expected.means[:, 0].astype(np.float64) + 10
    assert np.array_equal(rows[:, 0], moved.astype(np.float32))
    assert not rows[:, 3:6].any()
    # Second green coefficient of band 1 and up: f_rest_(15 + 1) here, shN[3 * 1 + 1] with us.
    assert np.array_equal(rows[:, names.index("f_rest_16")], expected.shN[:, 4])
    assert np.array_equal(rows[:, names.index("opacity")], expected.opacities[:, 0])


def test_an_origin_comes_off_again_to_float32_rounding(tmp_path):
    expected, origin = model(50), np.array([1e5, -2e4, 0.5])
    write_ply(tmp_path / "a.ply", expected, origin)
    got, _ = read_ply(tmp_path / "a.ply", origin)
    # The file holds float32 at 1e5: half a unit in the last place is 2^-24 of it.
    assert np.abs(got.means - expected.means).max() <= 1.1e5 * 2.0**-24 * 1.01
    assert got.sh0.tobytes() == expected.sh0.tobytes()


def test_float64_models_are_rounded_once(tmp_path):
    expected = model(9, dtype=np.float64)
    write_ply(tmp_path / "a.ply", expected)
    got, _ = read_ply(tmp_path / "a.ply", dtype=np.float64)
    assert got.dtype == np.float64
    assert np.array_equal(got.shN, expected.shN.astype(np.float32).astype(np.float64))


def foreign(path, coefficients, text=False, big=False, normals=False, drop=(), double=False):
    """A PLY as other tools write it, through plyfile."""
    names = ["opacity", "x", "y", "z", "extra", *(["nx", "ny", "nz"] if normals else [])]
    names += [f"f_dc_{k}" for k in range(3)] + [f"f_rest_{k}" for k in range(3 * coefficients)]
    names += [f"scale_{k}" for k in range(3)] + [f"rot_{k}" for k in range(4)]
    names = [name for name in names if name not in drop]
    rows = np.zeros(4, [(name, "f8" if double else "f4") for name in names])
    for k, name in enumerate(names):
        rows[name] = k + np.arange(4) / 4
    element = plyfile.PlyElement.describe(rows, "vertex")
    plyfile.PlyData([element], text=text, byte_order=">" if big else "<").write(str(path))
    return rows


@pytest.mark.parametrize("degree, coefficients", [(0, 0), (1, 3), (2, 8), (3, 15)])
@pytest.mark.parametrize("form", [{}, {"text": True}, {"big": True}, {"double": True}])
def test_files_of_other_tools_are_read_by_name(tmp_path, degree, coefficients, form):
    rows = foreign(tmp_path / "a.ply", coefficients, **form)
    got, found = read_ply(tmp_path / "a.ply")
    assert found == degree
    assert np.array_equal(got.means[:, 1], rows["y"].astype(np.float32))
    assert np.array_equal(got.quats[:, 0], rows["rot_0"].astype(np.float32))
    assert not got.shN[:, 3 * coefficients :].any()
    for channel in range(3 if coefficients else 0):
        last = rows[f"f_rest_{coefficients * (channel + 1) - 1}"].astype(np.float32)
        assert np.array_equal(got.shN[:, 3 * (coefficients - 1) + channel], last)


def damaged(path, case):
    """Write a wrong file; returns what the message must say."""
    write_ply(path, model(6))
    content = path.read_bytes()
    if case == "truncated":
        path.write_bytes(content[:-10])
        return "its header promises"
    if case == "count":
        path.write_bytes(content.replace(b"vertex 6", b"vertex 99999999999999"))
        return "its header promises"
    if case == "negative":
        path.write_bytes(content.replace(b"vertex 6", b"vertex -6"))
        return "header is damaged"
    if case == "type":
        path.write_bytes(content.replace(b"float opacity", b"thing opacity"))
        return "header is damaged"
    if case == "text":
        start = content.replace(b"binary_little_endian", b"ascii").split(b"end_header")[0]
        path.write_bytes(start.replace(b"vertex 6", b"vertex 1000000000000") + b"end_header\n1 2")
        return "its header promises"
    if case == "missing":
        foreign(path, 15, drop=["scale_1"])
        return "no property scale_1"
    if case == "rest":
        foreign(path, 5)
        return "15 f_rest"
    if case == "nan":
        wrong = model(6)
        wrong.scales[2, 1] = np.nan
        write_ply(path, wrong)
        return "1 values of scale_1 are not finite"
    if case == "no_rotation":
        wrong = model(6)
        wrong.quats[[1, 4]] = 0
        write_ply(path, wrong)
        return "2 rotations (rot_0 to rot_3) have no direction"
    if case == "other":
        path.write_bytes(b"solid cube" * 50)
        return "not a PLY"
    path.unlink()
    return "No such file"


CASES = "truncated count negative type text missing rest nan no_rotation other absent".split()


@pytest.mark.parametrize("case", CASES)
def test_wrong_files_are_refused_in_one_line(tmp_path, case):
    text = damaged(tmp_path / "a.ply", case)
    with pytest.raises(UserError) as caught:
        read_ply(tmp_path / "a.ply")
    assert text in str(caught.value) and "a.ply" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_ply(tmp_path / "a.ply", model(3))
    before = (tmp_path / "a.ply").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ply, "table", full)
    with pytest.raises(UserError, match="No space left"):
        write_ply(tmp_path / "a.ply", model(5))
    assert (tmp_path / "a.ply").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.ply"]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("counts", ["all", "one empty", "none"])
def test_all_ranks_write_one_file_in_rank_order(comm, monkeypatch, counts):
    monkeypatch.setattr(ply, "MESSAGE_BYTES", 248 * 7)  # several messages a rank
    count = {"all": 10 + 9 * comm.rank, "one empty": 20 * (comm.rank != 1), "none": 0}[counts]
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    mine = model(count, seed=comm.rank)
    write_ply(os.path.join(folder, "a.ply"), mine, comm=comm, root=comm.size - 1)
    got, _ = read_ply(os.path.join(folder, "a.ply"))
    assert_bitwise(got, Gaussians.concatenate(comm.allgather(mine)))
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)


@pytest.mark.mpi(min_size=2)
def test_a_file_that_cannot_be_written_is_told_on_all_ranks(comm, tmp_path):
    # tmp_path is each rank's own; the root's does not have the folder.
    with pytest.raises(UserError, match="cannot be written"):
        write_ply(tmp_path / "no folder" / "a.ply", model(2000), comm=comm)
