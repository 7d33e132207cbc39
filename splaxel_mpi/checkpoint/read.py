"""Reading a checkpoint that may be damaged: everything is checked before it is used."""

import contextlib
import os

import numpy as np

from splaxel_mpi.checkpoint.base import FORMAT_VERSION, Checkpoint
from splaxel_mpi.checkpoint.schema import FORMAT, block_starts, checksum
from splaxel_mpi.checkpoint.seal import check_seal, extents, has_rows
from splaxel_mpi.errors import UserError
from splaxel_mpi.files import HDF5_DAMAGE, open_hdf5
from splaxel_mpi.partition.tree import Tree
from splaxel_mpi.scene.gaussians import GROUPS, Gaussians

SEEN = "densify/seen_count"  # missing from some files of version 1
LARGEST = 2**63 - 1
# least and largest of whole numbers that a run has
RUN_NUMBERS = {
    "images_seen": (0, LARGEST),
    "step": (0, LARGEST),
    "batch": (1, LARGEST),
    "seed": (0, LARGEST),
    "sh_degree": (0, 3),
}


class Reader:
    """An open checkpoint. The constructor checks all but the rows: that it is complete, of
    this format, that shapes agree and lie inside the file, and the seal. Use as a context
    manager.

    version: the format version to read. sealed: whether the seal is checked, which reads every
    byte that is not in rows; one rank of a job does it. Raises UserError, one line with the
    file's name.
    """

    def __init__(self, path, version=FORMAT_VERSION, sealed=True):
        self.path, self.version = os.fspath(path), version
        if not os.path.isfile(self.path):
            raise UserError(f"{self.path}: no such checkpoint; name an existing file")
        with self.damage():
            self.file = open_hdf5(self.path)
        try:
            with self.damage():
                self.check_format()
                self.check_layout()
                self.run = self.read_run()
                if sealed and version > 1:
                    self.check_seal()
        except BaseException:
            self.file.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    @contextlib.contextmanager
    def damage(self):
        """Turn h5py's many exceptions into one line."""
        try:
            yield
        except HDF5_DAMAGE as error:
            reason = str(error).strip().split("\n")[0]
            raise self.broken(f"not a readable checkpoint ({reason})") from error

    def broken(self, what):
        """The error that says what is wrong with this file."""
        return UserError(f"{self.path}: {what}; resume from an earlier checkpoint")

    def check_format(self):
        """Refuse other files, other versions and unfinished ones."""
        attributes = self.file.attrs
        if attributes.get("format") != np.bytes_(FORMAT):
            raise UserError(f"{self.path}: not a splaxel_mpi checkpoint")
        version = int(attributes["version"])
        if version != self.version:
            older = version in range(1, FORMAT_VERSION)
            remedy = f"run splaxel-mpi upgrade {self.path}" if older else "use a newer program"
            raise UserError(
                f"{self.path}: format version {version}, this program reads {self.version}; "
                f"{remedy}"
            )
        if not attributes["complete"]:
            raise self.broken("was never completed")

    def check_layout(self):
        """Read the facts that describe the layout and compare all shapes with them."""
        self.contents = self.fact("layout/contents").split("\n")
        self.tree = self.read_tree()
        self.rank_offsets = self.read_offsets("layout/rank_offsets")
        self.cell_offsets = self.read_offsets("layout/cell_offsets")
        self.ranks, self.count = len(self.rank_offsets) - 1, int(self.rank_offsets[-1])
        if len(self.cell_offsets) != self.tree.cells + 1 or self.cell_offsets[-1] != self.count:
            raise self.broken("layout/cell_offsets does not fit the tree and the Gaussians")
        self.grouped = bool(self.fact("layout/grouped_by_cell"))
        self.block_rows = int(self.fact("layout/block_rows"))
        if self.block_rows < 1:
            raise self.broken("layout/block_rows is below 1")
        kind = self.data_set("gaussians/means").dtype
        for name, width in GROUPS.items():
            for folder in ("gaussians", "adam/first", "adam/second"):
                self.check_rows(f"{folder}/{name}", (width,), kind, "f")
        self.check_rows("gaussians/ids", (), np.dtype(np.int64), "i")
        self.check_rows("gaussians/cell", (), np.dtype(np.int32), "i")
        self.check_rows("densify/gradient_norm", (), None, "f")
        self.check_rows("densify/gradient_count", (), None, "iu")
        if SEEN in self.contents or self.version > 1:
            self.check_rows(SEEN, (), np.dtype(np.int32), "i")

    def row_paths(self):
        """Paths of all data sets with rows, in the order of the file's list."""
        return [path for path in self.contents if has_rows(path)]

    def check_seal(self):
        """Compare all bytes outside of the rows with the seal."""
        try:
            check_seal(self.path, extents([self.data_set(path) for path in self.row_paths()]))
        except UserError as error:
            raise self.broken(str(error)) from error

    def check_rows(self, path, tail, kind, kinds):
        """Compare a data set's shape and type with what the layout says."""
        item = self.data_set(path)
        shape = (self.count,) + tail
        if item.shape != shape or item.dtype.kind not in kinds or (kind and item.dtype != kind):
            raise self.broken(
                f"{path} is {item.dtype} {item.shape}, not {kind or kinds} {shape}"
            )

    def data_set(self, path):
        """A data set that lies, plain and whole, in this very file.

        Links into other files, external storage and compressed data are refused: their size
        in memory is not bounded by this file's size.
        """
        import h5py

        item = self.file.get(path)
        if not isinstance(item, h5py.Dataset) or item.file.filename != self.file.filename:
            raise self.broken(f"has no data set {path}")
        layout = item.id.get_create_plist()
        plain = layout.get_layout() == h5py.h5d.CONTIGUOUS and not layout.get_external_count()
        if not plain or item.dtype.kind not in "iufS" or item.nbytes > self.size():
            raise self.broken(f"{path} is stored in a way that no checkpoint is")
        return item

    def size(self):
        """Bytes of the file."""
        return os.path.getsize(self.path)

    def fact(self, path):
        """A small data set: an array of its own type, or text."""
        item = self.data_set(path)
        value = np.asarray(item[()])
        text = value.dtype.kind == "S"
        if text and value.ndim:
            raise self.broken(f"{path} is not one text")
        plain = value.item() if text else value
        if checksum(plain) != int(item.attrs["crc32"]):
            raise self.broken(f"data set {path} does not match its checksum")
        return plain.decode("utf-8") if text else value

    def facts(self, folder):
        """Name -> value of all small data sets of a group."""
        return {name: self.fact(f"{folder}/{name}") for name in self.names(folder)}

    def names(self, folder):
        """Names of a group's data sets; by the list in the file, whose checksum is known."""
        start = folder + "/"
        return [path[len(start) :] for path in self.contents if path.startswith(start)]

    def read_offsets(self, path):
        """First rows and the end, checked to rise from 0."""
        offsets = self.fact(path)
        rising = offsets.ndim == 1 and len(offsets) > 1 and offsets[0] == 0
        if not rising or offsets.dtype != np.int64 or (np.diff(offsets) < 0).any():
            raise self.broken(f"{path} does not rise from 0")
        return offsets

    def read_tree(self):
        """The tree, checked to be one: every node and cell reached once, cells left to right."""
        tree = Tree(*(self.fact(f"tree/{name}") for name in ("axis", "split", "left", "right")))
        nodes = len(tree.axis)
        sizes = {array.shape for array in (tree.axis, tree.split, tree.left, tree.right)}
        if sizes != {(nodes,)} or not np.isin(tree.axis, (0, 1, 2)).all():
            raise self.broken("tree: shapes or axes are wrong")
        if not np.isfinite(tree.split).all():
            raise self.broken("tree: a cut is not finite")
        seen, cells, stack = set(), [], [0 if nodes else -1]
        while stack:
            child = int(stack.pop())
            if child < 0:
                cells.append(-1 - child)
            elif child < nodes and child not in seen:
                seen.add(child)
                stack += [tree.right[child], tree.left[child]]
            else:
                raise self.broken(f"tree: node {child} is reached twice or does not exist")
        if len(seen) != nodes or cells != list(range(nodes + 1)):
            raise self.broken("tree: cells are not numbered left to right")
        return tree

    def read_run(self):
        """Figures of the run, name -> value, checked to be such that training can go on."""
        run = self.facts("run")
        for name, (least, most) in RUN_NUMBERS.items():
            run[name] = int(run[name])
            if not least <= run[name] <= most:
                raise self.broken(f"run/{name} is {run[name]}")
        for name in ("origin", "background"):
            if run[name].shape != (3,) or not np.isfinite(run[name]).all():
                raise self.broken(f"run/{name} is not three numbers")
        run["extent"] = float(run["extent"])
        if not 0 <= run["extent"] < np.inf:
            raise self.broken(f"run/extent is {run['extent']}")
        return run

    def blocks(self, path, start, stop, offsets):
        """Pairs (first row, rows) of the checksum blocks that rows start...stop of a data set
        touch, each verified."""
        item = self.data_set(path)
        bounds = block_starts(offsets, self.block_rows)
        checksums = self.data_set(f"checksums/{path}")[()]
        if checksums.shape != (len(bounds) - 1,):
            raise self.broken(f"checksums/{path} has {len(checksums)} values")
        first = np.searchsorted(bounds, start, "right") - 1
        for block in range(first, len(checksums) if stop > start else first):
            low, high = int(bounds[block]), int(bounds[block + 1])
            if low >= stop:
                break
            part = item[low:high]
            if checksum(part) != int(checksums[block]):
                raise self.broken(f"data set {path} does not match its checksum")
            yield low, part

    def rows(self, path, start, stop, offsets):
        """Rows start...stop of a data set, every checksum block that they touch verified."""
        item = self.data_set(path)
        out = np.empty((stop - start,) + item.shape[1:], item.dtype.newbyteorder("="))
        for low, part in self.blocks(path, start, stop, offsets):
            a, b = max(low, start), min(low + len(part), stop)
            out[a - start : b - start] = part[a - low : b - low]
        return out

    def verify(self, paths=None, rank=0, size=1):
        """Verify what the constructor leaves: this rank's share, of ``size``, of the blocks of
        data sets with rows (None: all of them). Little memory. Raises UserError."""
        with self.damage():
            for path in self.row_paths() if paths is None else paths:
                offsets = self.offsets_of(path)
                total = int(offsets[-1])
                start, stop = (total * r // size for r in (rank, rank + 1))
                for _ in self.blocks(path, start, stop, offsets):
                    pass

    def offsets_of(self, path):
        """First rows of the writing ranks in a data set with rows, and their sum."""
        if not path.startswith("extra/"):
            return self.rank_offsets
        offsets = self.read_offsets(f"layout/{path}")
        shape = self.data_set(path).shape
        if len(offsets) != self.ranks + 1 or not shape or shape[0] != offsets[-1]:
            raise self.broken(f"{path} does not fit its offsets")
        return offsets

    def share(self, rank, size):
        """(start, stop) of the rows for a rank of a run with ``size`` ranks; see ``load``."""
        if size == self.ranks:
            return int(self.rank_offsets[rank]), int(self.rank_offsets[rank + 1])
        cells = self.tree.cells
        if self.grouped and cells >= size:
            # Cell c goes to rank floor(c size / cells): first cell ceil(rank cells / size).
            edges = [-(-r * cells // size) for r in (rank, rank + 1)]
            return tuple(int(self.cell_offsets[edge]) for edge in edges)
        return self.count * rank // size, self.count * (rank + 1) // size

    def state(self, rank, size):
        """The ``Checkpoint`` for one rank of ``size``; reads and verifies its rows."""
        with self.damage():
            start, stop = self.share(rank, size)

            def part(path):
                return self.rows(path, start, stop, self.rank_offsets)

            def groups(folder):
                return {name: part(f"{folder}/{name}") for name in GROUPS}

            cell = part("gaussians/cell")
            if len(cell) and not 0 <= cell.min() <= cell.max() < self.tree.cells:
                raise self.broken("gaussians/cell names cells that the tree has not")
            return Checkpoint(
                gaussians=Gaussians(**groups("gaussians"), ids=part("gaussians/ids")),
                first=groups("adam/first"),
                second=groups("adam/second"),
                gradient_norm=part("densify/gradient_norm"),
                gradient_count=part("densify/gradient_count"),
                seen_count=part(SEEN),
                cell=cell,
                extra=self.extra(rank, size),
                **self.replicated(),
            )

    def extra(self, rank, size):
        """The arrays that only this rank of the same rank count can use; {} for another one,
        after a look at their checksums: whatever is damaged shall be known."""
        names = self.names("extra")
        if size != self.ranks:
            self.verify([f"extra/{name}" for name in names], rank, size)
            return {}
        found = {}
        for name in names:
            offsets = self.offsets_of(f"extra/{name}")
            start, stop = int(offsets[rank]), int(offsets[rank + 1])
            found[name] = self.rows(f"extra/{name}", start, stop, offsets)
        return found

    def replicated(self):
        """Fields of ``Checkpoint`` that are the same on every rank."""
        chain = self.facts("config/chain")
        return dict(
            self.run,
            tree=self.tree,
            order={name: value.item() for name, value in self.facts("order").items()},
            config=self.fact("config/effective"),
            config_chain=[chain[name] for name in sorted(chain)],
            versions=self.facts("versions"),
            schedule=self.facts("schedule"),
            ranks=self.ranks,
            rank_offsets=self.rank_offsets,
            cell_offsets=self.cell_offsets,
        )
