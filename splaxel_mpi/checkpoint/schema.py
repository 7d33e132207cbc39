"""Names, shapes and checksums of a checkpoint; docs/file-formats.md lists every data set."""

import datetime
import zlib

import numpy as np

from splaxel_mpi.checkpoint.base import FORMAT_VERSION, Slab
from splaxel_mpi.checkpoint.seal import extents, put_seal
from splaxel_mpi.files import probe_space
from splaxel_mpi.scene.gaussians import GROUPS

FORMAT = "splaxel_mpi checkpoint"
# Rows under one checksum: at most 24 MB in float64, so that a rank which needs part of a
# block reads little in vain, and 10^9 Gaussians have only 15 000 checksums a data set.
BLOCK_ROWS = 1 << 16
# Data sets of 1 MiB and more start on a multiple of 1 MiB, the usual stripe of parallel file
# systems.
ALIGNMENT = 1 << 20
# A file in format 1.10 has a checksum on each piece of its own metadata; 1.8 has not.
LIBVER = ("v110", "v110")


def gaussian_rows(state):
    """Arrays with a row for each Gaussian of this rank: path in the file -> array.

    Raises ValueError where shapes or types disagree.
    """
    gaussians = state.gaussians
    count, kind = len(gaussians), gaussians.dtype
    rows = {}
    for name in GROUPS:
        rows[f"gaussians/{name}"] = getattr(gaussians, name)
        rows[f"adam/first/{name}"] = state.first[name]
        rows[f"adam/second/{name}"] = state.second[name]
    for path, array in rows.items():
        width = GROUPS[path.rsplit("/", 1)[1]]
        if array.shape != (count, width) or array.dtype != kind:
            raise ValueError(f"{path} is {array.shape} {array.dtype}, not {(count, width)} {kind}")
    rows["gaussians/ids"] = np.asarray(gaussians.ids, np.int64)
    rows["gaussians/cell"] = np.asarray(state.cell, np.int32)
    rows["densify/gradient_norm"] = state.gradient_norm
    rows["densify/gradient_count"] = state.gradient_count
    seen = np.zeros(count, np.int32) if state.seen_count is None else state.seen_count
    rows["densify/seen_count"] = np.asarray(seen, np.int32)
    for path, array in rows.items():
        if len(array) != count:
            raise ValueError(f"{path} has {len(array)} rows, not {count}")
    return rows


def slabs_of(state, comm):
    """Slabs of all data sets with rows, the same paths in the same order on every rank."""
    rows = gaussian_rows(state)
    for name in sorted(state.extra):
        rows[f"extra/{name}"] = state.extra[name]
    described = {path: (array.dtype.str, array.shape[1:]) for path, array in rows.items()}
    everywhere = comm.allgather((described, [len(array) for array in rows.values()]))
    for rank, (other, _) in enumerate(everywhere):
        if other != everywhere[0][0]:
            raise ValueError(f"ranks 0 and {rank} disagree on names, types or widths of arrays")
    counts = np.array([lengths for _, lengths in everywhere], np.int64).reshape(comm.size, -1)
    offsets = np.zeros((comm.size + 1, len(rows)), np.int64)
    np.cumsum(counts, axis=0, out=offsets[1:])
    return [
        Slab(path, np.ascontiguousarray(array), offsets[:, column].copy())
        for column, (path, array) in enumerate(rows.items())
    ]


def cell_layout(state, comm):
    """(cell offsets (cells + 1,) int64, whether the rows of the file are grouped by cell)."""
    cell = np.asarray(state.cell)
    ends = (int(cell[0]), int(cell[-1])) if len(cell) else ()
    ordered = bool(np.all(cell[1:] >= cell[:-1]))
    counts = np.bincount(cell, minlength=state.tree.cells)
    if len(counts) > state.tree.cells:
        raise ValueError(f"cell {len(counts) - 1} is not in a tree of {state.tree.cells}")
    everywhere = comm.allgather((counts, ordered, ends))
    border = [end for _, _, ends in everywhere for end in ends]
    grouped = all(ordered for _, ordered, _ in everywhere) and border == sorted(border)
    total = sum(counts for counts, _, _ in everywhere)
    return np.concatenate([[0], np.cumsum(total)]).astype(np.int64), grouped


def facts_of(state, slabs, comm):
    """What is the same on every rank: path in the file -> array or text."""
    cell_offsets, grouped = cell_layout(state, comm)
    facts = {
        "layout/rank_offsets": slabs[0].offsets,
        "layout/cell_offsets": cell_offsets,
        "layout/grouped_by_cell": np.uint8(grouped),
        "layout/block_rows": np.int64(BLOCK_ROWS),
        "tree/axis": np.asarray(state.tree.axis, np.int32),
        "tree/split": np.asarray(state.tree.split, np.float64),
        "tree/left": np.asarray(state.tree.left, np.int32),
        "tree/right": np.asarray(state.tree.right, np.int32),
        "run/images_seen": np.int64(state.images_seen),
        "run/step": np.int64(state.step),
        "run/batch": np.int64(state.batch),
        "run/seed": np.int64(state.seed),
        "run/origin": np.asarray(state.origin, np.float64),
        "run/extent": np.float64(state.extent),
        "run/background": np.asarray(state.background, np.float64),
        "run/sh_degree": np.int64(state.sh_degree),
        "run/random_state": np.atleast_1d(np.asarray(state.random_state)),
        "run/dataset": state.dataset,
        "run/created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "config/effective": state.config,
    }
    for slab in slabs:
        if slab.path.startswith("extra/"):
            facts[f"layout/{slab.path}"] = slab.offsets
    for number, text in enumerate(state.config_chain):
        facts[f"config/chain/{number:04d}"] = text
    for name, value in state.order.items():
        facts[f"order/{name}"] = np.float64(value) if isinstance(value, float) else np.int64(value)
    for name, array in state.schedule.items():
        facts[f"schedule/{name}"] = np.asarray(array, np.int64)
    for name, text in state.versions.items():
        facts[f"versions/{name}"] = str(text)
    # The reader goes by this list: a damaged group would otherwise look empty.
    facts["layout/contents"] = "\n".join([*facts, *(slab.path for slab in slabs)])
    return facts


def block_starts(offsets, step):
    """First rows of the checksum blocks, and the end: each rank's slab cut every step rows."""
    starts = [np.arange(a, b, step, np.int64) for a, b in zip(offsets[:-1], offsets[1:])]
    return np.concatenate(starts + [offsets[-1:]])


def block_checksums(rows, step=BLOCK_ROWS):
    """CRC-32 of each block of step rows of a C-contiguous array, as a list of ints."""
    return [checksum(rows[start : start + step]) for start in range(0, len(rows), step)]


def all_checksums(slabs):
    """Path -> checksums of this rank's blocks."""
    return {slab.path: block_checksums(slab.rows) for slab in slabs}


def checksum(value):
    """CRC-32 of an array's bytes (little-endian, C order) or of bytes."""
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(-1)
        value = value.view(np.uint8)
    return zlib.crc32(value)


def create(path, facts, slabs):
    """Lay out a new file on one rank: all facts written, space reserved for all rows.

    Space is reserved at once and never filled, so every writer finds the same byte offsets.
    Whatever is small is written now: later steps only change bytes in place, because HDF5 1.10
    crashes when it closes a file whose metadata no longer finds room on the disk.
    """
    import h5py

    probe_space(path, bytes_needed(facts, slabs))

    with h5py.File(
        path, "w", libver=LIBVER, alignment_threshold=ALIGNMENT, alignment_interval=ALIGNMENT
    ) as file:
        file.attrs["format"] = np.bytes_(FORMAT)
        file.attrs["version"] = np.int64(FORMAT_VERSION)
        file.attrs["complete"] = np.uint8(0)
        for name, fact in facts.items():
            put_fact(file, name, fact)
        for slab in slabs:
            shape = (int(slab.offsets[-1]),) + slab.rows.shape[1:]
            reserve(file, slab.path, shape, slab.rows.dtype)
            blocks = len(block_starts(slab.offsets, BLOCK_ROWS)) - 1
            file[f"checksums/{slab.path}"] = np.zeros(blocks, np.uint32)


def bytes_needed(facts, slabs):
    """Upper bound of the file's size."""
    small = sum(
        len(fact.encode()) if isinstance(fact, str) else fact.nbytes for fact in facts.values()
    )
    # 1 KiB of metadata for each data set is more than HDF5 takes.
    metadata = 1024 * (len(facts) + 2 * len(slabs))
    rows = 0
    for slab in slabs:
        blocks = len(block_starts(slab.offsets, BLOCK_ROWS)) - 1
        row = slab.rows.dtype.itemsize * int(np.prod(slab.rows.shape[1:]))
        size = int(slab.offsets[-1]) * row
        rows += size + 4 * blocks + (ALIGNMENT if size >= ALIGNMENT else 0)
    return small + metadata + rows


def put_fact(file, name, fact):
    """A small data set with its checksum as attribute; text has a fixed length."""
    import h5py

    if isinstance(fact, str):
        encoded = fact.encode("utf-8")
        kind = h5py.string_dtype("utf-8", max(1, len(encoded)))
        item = file.create_dataset(name, data=encoded, dtype=kind)
        item.attrs["crc32"] = np.uint32(checksum(encoded))
        return
    item = file.create_dataset(name, data=fact)
    item.attrs["crc32"] = np.uint32(checksum(np.asarray(fact)))


def reserve(file, path, shape, kind):
    """A contiguous data set whose bytes are allocated now and not written."""
    from h5py import h5d, h5p, h5s, h5t

    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_layout(h5d.CONTIGUOUS)
    layout.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5d.FILL_TIME_NEVER)
    link = h5p.create(h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    h5d.create(
        file.id,
        path.encode(),
        h5t.py_create(kind.newbyteorder("<")),
        h5s.create_simple(shape),
        dcpl=layout,
        lcpl=link,
    )


def seal(path, checksums):
    """Fill in the checksums of all rows (path -> list in block order), mark the file complete
    and append its seal."""
    import h5py

    with h5py.File(path, "r+", libver=LIBVER) as file:
        for name, values in checksums.items():
            if values:
                file[f"checksums/{name}"][...] = np.array(values, np.uint32)
        file.attrs["complete"] = np.uint8(1)
        rows = extents([file[name] for name in checksums])
    put_seal(path, rows)
