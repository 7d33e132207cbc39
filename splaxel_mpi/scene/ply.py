"""The PLY that 3DGS viewers open."""

import os

import numpy as np

from splaxel_mpi.errors import UserError
from splaxel_mpi.files import Alone, atomic_write, raise_together
from splaxel_mpi.scene.gaussians import Gaussians

# Coefficients beyond the first a channel in f_rest -> SH degree.
DEGREES = {0: 0, 3: 1, 8: 2, 15: 3}
REST = 15
POSITION = ("x", "y", "z")
# All float32 in this order: 62 properties, 248 bytes a Gaussian.
PROPERTIES = (
    *POSITION,
    *("nx", "ny", "nz"),
    *(f"f_dc_{k}" for k in range(3)),
    *(f"f_rest_{k}" for k in range(3 * REST)),
    "opacity",
    *(f"scale_{k}" for k in range(3)),
    *(f"rot_{k}" for k in range(4)),
)
# Bytes of one message to the root, which holds one of them at a time.
MESSAGE_BYTES = 32 << 20
# Apart from the tags of training traffic on the same communicator.
TAG = 7802
# A header has 62 short lines; more than this is not a header.
HEADER_BYTES = 1 << 16
TYPE_BYTES = {
    **dict.fromkeys(("char", "uchar", "int8", "uint8"), 1),
    **dict.fromkeys(("short", "ushort", "int16", "uint16"), 2),
    **dict.fromkeys(("int", "uint", "int32", "uint32", "float", "float32"), 4),
    **dict.fromkeys(("double", "float64"), 8),
}


def write_ply(path, gaussians, origin=(0, 0, 0), comm=None, root=0):
    """Write the Gaussians of all ranks as one 3DGS PLY; collective.

    Rows stand in rank order, each rank's in its own order. origin: (3,) float64, added to the
    positions, so that the file is in the frame of the input. Layout: binary little-endian, float32,
    x y z, nx ny nz (zeros), f_dc, f_rest (channel-major: 15 R, 15 G, 15 B), opacity (logit),
    scale (natural log), rot (w, x, y, z). Root writes; it holds at most 32 MiB of others' rows.
    The file appears whole or not at all. Raises UserError on all ranks when it cannot be
    written.
    """
    comm, error = comm or Alone(), None
    counts = comm.allgather(len(gaussians))
    if comm.rank == root:
        error = write_as_root(path, gaussians, origin, counts, comm)
    elif comm.bcast(None, root):
        for begin in range(0, len(gaussians), message_rows()):
            comm.Send(table(gaussians, begin, origin), dest=root, tag=TAG)
    raise_together(comm, error)


def write_as_root(path, gaussians, origin, counts, comm):
    """Root's side: tells the others whether it could open the file, then takes their rows.

    Returns a message where writing failed, or None.
    """
    opened = False
    try:
        with atomic_write(path) as file:
            opened = comm.bcast(True, comm.rank)
            write_all(file, gaussians, origin, counts, comm)
    except UserError as failure:
        if not opened:
            comm.bcast(False, comm.rank)
        return str(failure)
    return None


def message_rows():
    """Rows of one message."""
    return max(1, MESSAGE_BYTES // (4 * len(PROPERTIES)))


def write_all(file, gaussians, origin, counts, comm):
    """Write the header, then the rows of rank after rank.

    After a failure it goes on receiving, else the senders would wait forever.
    """
    error = put(file, header(sum(counts)).encode("ascii"), None)
    for rank, count in enumerate(counts):
        for begin in range(0, count, message_rows()):
            if rank == comm.rank:
                part = table(gaussians, begin, origin)
            else:
                rows = min(message_rows(), count - begin)
                part = np.empty((rows, len(PROPERTIES)), "<f4")
                comm.Recv(part, source=rank, tag=TAG)
            error = put(file, part.data, error)
    if error:
        raise error


def put(file, data, error):
    """Write unless there was an error; returns the error there is now."""
    if error is None:
        try:
            file.write(data)
        except OSError as failure:
            return failure
    return error


def header(count):
    """Header of a file with count Gaussians."""
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    lines += [f"property float {name}" for name in PROPERTIES]
    return "\n".join(lines + ["end_header", ""])


def table(gaussians, begin, origin):
    """One message of rows from ``begin`` on as the file stores them, (rows, 62) float32."""
    rows = slice(begin, begin + message_rows())
    means = gaussians.means[rows]
    if np.any(origin):  # else -0 would turn into 0
        means = means.astype(np.float64) + np.asarray(origin, np.float64)
    rest = gaussians.shN[rows].reshape(len(means), REST, 3).swapaxes(1, 2)
    columns = [
        means,
        np.zeros((len(means), 3)),
        gaussians.sh0[rows],
        rest.reshape(len(means), 3 * REST),
        gaussians.opacities[rows],
        gaussians.scales[rows],
        gaussians.quats[rows],
    ]
    out = np.empty((len(means), len(PROPERTIES)), "<f4")
    return np.concatenate(columns, axis=1, out=out, casting="same_kind")


def read_ply(path, origin=(0, 0, 0), dtype=np.float32):
    """Read a 3DGS PLY: (Gaussians, SH degree 0..3 by the f_rest properties it has).

    origin: (3,) float64, taken from the positions. Properties are looked up by name; normals and
    further properties may be there or not; missing bands are zero. ids count from 0 in the order
    of the file. Raises UserError for a file that is missing, not a PLY, shorter than its header
    says, without a property that is needed, or with values that are not finite or rotations of no
    length.
    """
    import plyfile

    path = os.fspath(path)
    check_size(path)
    try:
        vertex = plyfile.PlyData.read(path)["vertex"].data
    except (plyfile.PlyParseError, KeyError, ValueError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"{path}: not a readable PLY ({reason}); export it again") from error
    names = vertex.dtype.names or ()
    rest = sum(name.startswith("f_rest_") for name in names)
    needed = [name for name in PROPERTIES if not name.startswith(("f_rest_", "n"))]
    missing = [name for name in needed + [f"f_rest_{k}" for k in range(rest)] if name not in names]
    if missing:
        raise UserError(f"{path}: has no property {missing[0]}; give a 3D Gaussian Splatting PLY")
    if rest % 3 or rest // 3 not in DEGREES:
        raise UserError(f"{path}: has {rest} f_rest properties; 0, 9, 24 or 45 are known")
    return from_table(path, vertex, rest // 3, origin, dtype), DEGREES[rest // 3]


def from_table(path, vertex, coefficients, origin, dtype):
    """Gaussians from a structured array of vertices."""
    out = Gaussians.empty(len(vertex), dtype)
    out.ids[:] = np.arange(len(vertex))

    def column(name):
        values = np.asarray(vertex[name], np.float64)
        # Also false for NaN, infinities, and doubles that the type of the model cannot hold.
        wrong = len(values) - np.count_nonzero(np.abs(values) <= np.finfo(dtype).max)
        if wrong:
            raise UserError(f"{path}: {wrong} values of {name} are not finite; clean the model")
        return values

    for axis, name in enumerate(POSITION):
        values = column(name)
        out.means[:, axis] = values - origin[axis] if origin[axis] else values
    for channel in range(3):
        out.sh0[:, channel] = column(f"f_dc_{channel}")
        for k in range(coefficients):
            out.shN[:, 3 * k + channel] = column(f"f_rest_{coefficients * channel + k}")
    out.opacities[:, 0] = column("opacity")
    for k in range(3):
        out.scales[:, k] = column(f"scale_{k}")
    for k in range(4):
        out.quats[:, k] = column(f"rot_{k}")
    with np.errstate(over="ignore"):
        length = np.einsum("ij,ij->i", out.quats, out.quats)
    wrong = len(length) - np.count_nonzero((length > 0) & (length < np.inf))
    if wrong:  # they could not be drawn
        raise UserError(f"{path}: {wrong} rotations (rot_0 to rot_3) have no direction; clean "
                        "the model")
    return out


def check_size(path):
    """Compare the counts in the header with the size of the file, before memory is taken."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            start = file.read(HEADER_BYTES)
    except OSError as error:
        reason = error.strerror
        raise UserError(f"{path}: cannot be read: {reason}; name an existing PLY") from error
    end = start.find(b"end_header")
    if not start.startswith(b"ply") or end < 0:
        raise UserError(f"{path}: not a PLY; give a 3D Gaussian Splatting PLY")
    least = end + len("end_header\n")
    try:
        least += least_bytes(start[:end].decode("ascii").split("\n"))
    except (ValueError, IndexError, KeyError) as error:
        raise UserError(f"{path}: its PLY header is damaged; export it again") from error
    if least > size:
        raise UserError(
            f"{path}: has {size} bytes, its header promises at least {least}; copy it again"
        )


def least_bytes(lines):
    """Fewest bytes that the elements of a header can take."""
    words = [line.split() for line in lines]
    text = any(line[:2] == ["format", "ascii"] for line in words)
    total = count = 0
    for line in words:
        if line[:1] == ["element"]:
            count = int(line[2])
            if count < 0:
                raise ValueError("negative count")
        elif line[:1] == ["property"]:
            kind = line[2] if line[1] == "list" else line[1]
            total += count * (2 if text else TYPE_BYTES[kind])  # text: a digit and a space
    return total
