"""Which GPU a rank uses: chosen by its place on the node, checked by the GPUs' UUIDs."""

import importlib.util
import os
import socket
import uuid

from ..errors import UserError
from ..files import raise_together
from . import launcher
from .world import node_comm

SHARE = "or set mpi.share_gpu=true"


def visible():
    """Number of GPUs that this process sees; 0 without CuPy or a driver."""
    if importlib.util.find_spec("cupy") is None:
        return 0
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # a broken installation: choose_backend says what is wrong with it
        return 0


def use(index):
    """Make GPU `index` current, in this thread."""
    import cupy

    cupy.cuda.Device(index).use()


def identity(index):
    """(UUID as nvidia-smi shows it, model name) of a GPU."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    return f"GPU-{uuid.UUID(bytes=properties['uuid'])}", properties["name"].decode()


def peers(index):
    """Indices of the other visible GPUs whose memory a GPU reaches without the host."""
    import cupy

    reach = cupy.cuda.runtime.deviceCanAccessPeer
    return [other for other in range(visible()) if other != index and reach(index, other)]


def bind_early(environ=os.environ):
    """Make this rank's GPU current before MPI starts: a CUDA-aware library opens its resources
    on the device that is current then. Returns its index, None where the launcher gives no
    place on the node or no GPU is seen. bind checks the choice once MPI runs.
    """
    place = launcher.local_rank(environ)
    count = visible() if place is not None else 0
    if not count:
        return None
    index = place % count
    use(index)
    return index


def select(place, ranks, count, share):
    """Index of the GPU for the rank at `place` of `ranks` on a node, where it sees `count`.

    A rank that sees one takes it: the launcher may have given each its own. Raises UserError
    for more ranks than GPUs, unless they may be shared, and for none.
    """
    if count == 0:
        raise UserError("backend.name: cuda, but a rank sees no GPU: ask for one a rank (srun "
                        "--gpus-per-task=1), or set backend.name=host")
    if count > 1 and ranks > count and not share:
        raise UserError(f"{ranks} ranks on a node of {count} GPUs: start {count} ranks a node, "
                        + SHARE)
    return place % count


def bind(comm, share, environ=os.environ):
    """Make a GPU of its own current on every rank. Collective.

    comm: communicator of all ranks; share: several ranks of a node may use one GPU (setting
    mpi.share_gpu). The place on the node comes from the launcher, else from MPI. Returns on
    rank 0 a line for each rank that names its GPU, None elsewhere. Raises UserError on every
    rank for a node without enough GPUs and for two ranks on one GPU, unless shared.
    """
    node = node_comm(comm)
    try:
        mine, mistake = _bind_on_node(node, share, environ)
    finally:
        node.Free()
    raise_together(comm, mistake)
    found = comm.gather(mine)
    return found and [f"rank {rank}: {text}" for rank, text in enumerate(found)]


def _bind_on_node(node, share, environ):
    """(what is bound, None), or (None, the mistake) for all ranks of the node."""
    place = launcher.local_rank(environ)
    places = node.allgather(place)
    if None in places or len(set(places)) < node.size:
        place = node.rank  # the launcher says nothing, or two launchers started the job
    mistake = index = None
    try:
        index = select(place, node.size, visible(), share)
    except UserError as error:
        mistake = str(error)
    mistake = next(filter(None, node.allgather(mistake)), None)
    host = socket.gethostname()
    if mistake:
        return None, f"{host}: {mistake}"
    use(index)
    name, model = identity(index)
    names = node.allgather(name)
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice and not share:
        return None, (f"{host}: {names.count(twice)} ranks would share {twice}: start one rank a "
                      f"GPU, give each its own (srun --gpus-per-task=1), {SHARE}")
    return f"GPU {index} {model} {name} on {host}", None


def agree(comm, name, reason):
    """(name, reason) of the backend that all ranks can take. Collective.

    Cells of one view are composed by several ranks, so all compute in the same place: where
    one rank has no GPU, all take the host.
    """
    choices = comm.allgather((name, reason))
    for rank, (other, why) in enumerate(choices):
        if other != choices[0][0]:
            low = rank if other == "host" else 0
            return "host", f"rank {low} has to: {choices[low][1]}"
    return choices[0]
