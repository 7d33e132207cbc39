"""docs/file-formats.md explains every data set that a run writes, with its shape and type."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from runs import last_checkpoint, shared_folder, train

from splaxel_mpi.train.accounts import VIEW_KINDS
from splaxel_mpi.train.shares import NAMES, STAGES

pytestmark = [pytest.mark.timeout(300), pytest.mark.up_to_2]
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "file-formats.md"
GROUPS = "means", "scales", "quats", "opacities", "sh0", "shN"
# Three cells, an order that predicts and checks of the balance: as many names as there are.
MANY = ["partition.cells=3", "log.ranks=true", "train.order=balanced", "evaluate.every=24"]


def section(title):
    """Text of the document from a heading of the second level that begins so to the next."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return re.search(rf"^## {title}.*?(?=^## |\Z)", text, re.M | re.S)[0]


def table(text, heading):
    """Rows of the table whose first column is headed so: lists of cells."""
    lines = text.splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("| ").split(" | ")])
    return rows


def words(text):
    """What stands between backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def data_sets(path):
    """{path: (shape, dtype)} of an HDF5 file."""
    found = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: (item.shape, item.dtype)})
                        if isinstance(item, h5py.Dataset) else None)
    return found


def checkpoint_entries():
    """Pairs (pattern of a path, its cells of the table)."""
    for names, *cells in table(section("Checkpoint"), "data set"):
        for name in words(names):
            pattern = "".join(
                "(" + "|".join(GROUPS) + ")" if part == "<group>"
                else ".+" if part.startswith("<") else re.escape(part)
                for part in re.split(r"(<[^>]+>)", name)
            )
            yield pattern, cells


def type_fits(text, kind):
    """Whether a data type is one of those that the table names."""
    kinds = {"f": "f", "float": "f", "int": "iu", "text": "S"}
    return any(
        kind.kind in kinds[word] if word in kinds else kind == word
        for word in re.split(r" or |, ", text)
    )


def shape_fits(text, shape, sizes):
    """Whether a shape is what the table says, where that is a number or in sizes."""
    if text == "as the group":
        return True
    wanted = [part.strip() for part in text.strip("()").split(",") if part.strip()]
    if "..." in wanted:
        return len(shape) >= len(wanted) - 1
    known = {**sizes, **{str(number): number for number in shape}}
    return len(wanted) == len(shape) and all(
        known.get(want) == have if want.isdigit() or want in sizes else True
        for want, have in zip(wanted, shape)
    )


def check_checkpoint(path):
    found = data_sets(path)
    ranks, cells = (found[f"layout/{name}_offsets"][0][0] - 1 for name in ("rank", "cell"))
    sizes = {"N": found["gaussians/ids"][0][0], "P + 1": ranks + 1, "C + 1": cells + 1,
             "C - 1": cells - 1}
    entries, known = list(checkpoint_entries()), words(section("Checkpoint"))
    for name, (shape, kind) in found.items():
        cells = [cells for pattern, cells in entries if re.fullmatch(pattern, name)]
        assert cells, f"{name} is not documented"
        fits = [shape_fits(one[0], shape, sizes) and type_fits(one[1], kind) for one in cells]
        assert any(fits), f"{name} is {shape} {kind}, not {cells}"
        if name.startswith("extra/"):
            assert {name, name[len("extra/") :]} & known, f"{name} is not documented"


def metric_names():
    """(names of one number for the job, names of figures of ranks) that are documented."""
    text = section("Metrics")
    single = {name for row in table(text, "data set") for name in words(row[0])}
    ranks = {name for row in table(text, "name") for name in words(row[0])}
    shares = table(text, "share")
    ranks |= {f"shares/{name}" for row in shares for name in words(row[0])}
    stages = {name for row in shares for name in words(row[1])}
    stages |= {name for row in table(text, "name") if "seconds/" in row[0]
               for name in words(row[1])}
    kinds = {name for row in table(text, "kind") for name in words(row[0])}
    return single, ranks | {f"seconds/{s}" for s in stages} | {f"bytes/{k}" for k in kinds}


def check_metrics(path):
    single, ranks = metric_names()
    for name, (shape, kind) in data_sets(path).items():
        form = (1, np.int64 if name in ("images_seen", "step") else np.float64)
        if name not in single:
            base, what = name.rsplit("/", 1)
            assert base in ranks and what in ("min", "mean", "max", "full"), name
            form = (2 if what == "full" else 1, np.float64)
        assert (len(shape), kind) == form, name


def check(run):
    check_metrics(run / "metrics.h5")
    check_checkpoint(last_checkpoint(run))


def test_names_that_only_some_machines_write_are_documented():
    _, ranks = metric_names()
    assert {f"shares/{name}" for name in NAMES} <= ranks
    assert {f"seconds/{stage}" for stages in STAGES.values() for stage in stages} <= ranks
    assert {f"bytes/{kind}" for kind in VIEW_KINDS} <= ranks
    assert {"device/used", "device/pool", "device/free"} <= ranks


def test_the_check_finds_what_is_missing():
    entries = list(checkpoint_entries())
    assert not any(re.fullmatch(pattern, "gaussians/colour") for pattern, _ in entries)
    assert not any(re.fullmatch(pattern, "adam/first/colour") for pattern, _ in entries)
    assert not shape_fits("(N, 3)", (5, 4), {"N": 5}) and shape_fits("(N, 3)", (5, 3), {"N": 5})
    assert not shape_fits("(N,)", (4,), {"N": 5}) and not shape_fits("()", (1,), {})
    assert type_fits("int64 or uint64", np.dtype("uint64")) and type_fits("f", np.dtype("f4"))
    assert not type_fits("int32", np.dtype("int64")) and not type_fits("text", np.dtype("i4"))
    assert "seconds/dance" not in metric_names()[1]


def test_data_sets_of_one_rank_are_documented(city, tmp_path, alone):
    check(train(city, tmp_path, alone, *MANY))
    # the second one has a chain of configurations
    check(train(city, tmp_path, alone, *MANY, "train.images=56", resume=True))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("strategy", ["overlap", "owner", "gaussian"])
def test_data_sets_of_ranks_are_documented(comm, city, tmp_path_factory, strategy):
    folder = shared_folder(comm, tmp_path_factory)
    options = [] if strategy == "gaussian" else [*MANY, f"partition.cells={comm.size + 1}"]
    options += ["partition.check=16", "partition.imbalance=0.001", "train.images=32",
                "evaluate.every=24", "densify.method=none", f"exchange.strategy={strategy}"]
    run = train(city, folder, comm, *options)
    if comm.rank == 0:
        check(run)
    comm.barrier()
