"""From facts to findings: what is so, whether it matters, and what to do."""

from dataclasses import dataclass

GOOD, ADVICE, STOP = "ok", "advice", "STOP"
LOW_DISK = 1 << 30  # bytes; checkpoints of even a small scene take some hundred MB


@dataclass
class Finding:
    """One line of the report. level: ok, advice (training starts), STOP (it would not)."""

    name: str
    level: str
    text: str
    action: str = ""

    def line(self):
        """As it is printed."""
        action = f" -> {self.action}" if self.action else ""
        return f"{self.level:6} {self.name}: {self.text}{action}"


def by_node(ranks):
    """Facts of the ranks of each node: {host: list}."""
    out = {}
    for one in ranks:
        out.setdefault(one.host, []).append(one)
    return out


def judge(ranks, settings, storage, seen):
    """Findings on everything but MPI and the data set.

    ranks: facts.Facts of all ranks, in order; settings: config.Config; storage:
    storage.Storage; seen: for each rank, whether it sees a file that rank 0 put into the folder.
    """
    return [
        software(ranks), *placement(ranks), *threads(ranks, settings), backend(ranks),
        *gpus(ranks, settings), hdf5(ranks), *folder(storage, seen), kernels(ranks),
    ]


def software(ranks):
    """All ranks must run the same."""
    first = ranks[0].software
    text = ", ".join(f"{name} {version}" for name, version in first.items())
    for number, one in enumerate(ranks):
        if one.software != first:
            other = ", ".join(f"{n} {v}" for n, v in one.software.items() if first.get(n) != v)
            return Finding("software", STOP, f"rank 0 has {text}, but rank {number} on {one.host} "
                           f"has {other}", "use one environment on all nodes")
    return Finding("software", GOOD, text)


def placement(ranks):
    """Ranks of each node and the cores that they may use."""
    found = []
    nodes = by_node(ranks)
    counts = {host: len(here) for host, here in nodes.items()}
    text = ", ".join(f"{count} on {host}" for host, count in counts.items())
    if len(set(counts.values())) > 1:
        found.append(Finding("placement", ADVICE, f"ranks are spread unevenly: {text}",
                             "start the same number on every node (srun --ntasks-per-node): the "
                             "fullest node is the slowest"))
    order = [one.host for one in ranks]
    if sum(a != b for a, b in zip(order, order[1:])) > len(nodes) - 1:
        found.append(Finding("placement", ADVICE, "neighbouring ranks are on different nodes",
                             "place them by blocks (srun --distribution=block, mpirun --map-by "
                             "slot): neighbouring cells exchange most"))
    for host, here in nodes.items():
        cores = set().union(*(one.cores for one in here))
        if len(cores) < len(here) and len(cores) < here[0].node_cores:
            found.append(Finding(
                "placement", ADVICE, f"{len(here)} ranks on {host} may use only {len(cores)} of "
                f"its {here[0].node_cores} cores", "unbind them (mpirun --bind-to none) or ask "
                "for cores (srun --cpus-per-task)"))
    return found or [Finding("placement", GOOD, f"ranks: {text}")]


def threads(ranks, settings):
    """Threads against cores, node by node."""
    found = []
    for host, here in by_node(ranks).items():
        cores, wanted = len(set().union(*(o.cores for o in here))), sum(o.threads for o in here)
        if wanted > cores:
            found.append(Finding(
                "threads", ADVICE, f"oversubscribed: {len(here)} ranks on {host} start {wanted} "
                f"threads on {cores} cores",
                "set backend.threads=0" if settings.backend.threads and cores >= len(here)
                else "start fewer ranks a node"))
        for name in here[0].variables:
            text = here[0].variables[name]
            count = int(text) if text.isdecimal() else 1
            if count * len(here) > cores:
                found.append(Finding(
                    "threads", ADVICE, f"{name}={text} lets libraries of {len(here)} ranks on "
                    f"{host} start {count * len(here)} threads on {cores} cores",
                    f"set {name}={max(1, cores // len(here))}"))
    counts = sorted({one.threads for one in ranks})
    return found or [Finding("threads", GOOD, f"a rank: {' to '.join(map(str, counts))}")]


def backend(ranks):
    """Where ranks compute."""
    for number, one in enumerate(ranks):
        if one.mistake:
            return Finding("backend", STOP, f"rank {number} on {one.host}: {one.mistake}")
        if one.backend == "host" and one.extension:
            return Finding("backend", STOP, f"rank {number} on {one.host}: {one.extension}")
    names = {one.backend for one in ranks}
    if len(names) > 1:
        where = next(number for number, one in enumerate(ranks) if one.backend == "host")
        return Finding("backend", ADVICE, f"all ranks would take the host, because rank {where} "
                       f"on {ranks[where].host} has to: {ranks[where].reason}",
                       "give every rank a GPU")
    return Finding("backend", GOOD, f"{ranks[0].backend} ({ranks[0].reason})")


def gpus(ranks, settings):
    """A GPU for each rank, and which reach each other."""
    if any(one.backend != "cuda" for one in ranks):
        return []
    found = []
    for number, one in enumerate(ranks):
        if one.gpu is None:
            return [Finding("GPUs", STOP, f"rank {number} on {one.host} sees none",
                            "ask for one a rank (srun --gpus-per-task=1)")]
    for host, here in by_node(ranks).items():
        names = [one.gpu.uuid for one in here]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            share = settings.mpi.share_gpu
            found.append(Finding(
                "GPUs", ADVICE if share else STOP,
                f"{names.count(twice)} ranks on {host} are on {twice}",
                "start one rank a GPU" + ("" if share else ", or set mpi.share_gpu=true")))
        elif len(here) > 1 and here[0].gpu.visible == 1:
            found.append(Finding(
                "GPUs", ADVICE, f"each rank on {host} sees its own GPU alone, so it cannot reach "
                "others directly", "use --gpus-per-node with --gpu-bind=none"))
        elif len(here) > 1 and any(len(one.gpu.peers) < len(here) - 1 for one in here):
            found.append(Finding(
                "GPUs", ADVICE, f"not all GPUs on {host} reach each other: data go through the "
                "host", "put ranks on GPUs that share links (nvidia-smi topo -m)"))
    lines = "; ".join(f"rank {number}: {one.gpu.model} {one.gpu.uuid}, peers "
                      f"{one.gpu.peers}" for number, one in enumerate(ranks))
    return [*found, Finding("GPUs", GOOD, lines)]


def hdf5(ranks):
    """Whether checkpoints can be written, and by whom."""
    for number, one in enumerate(ranks):
        if one.hdf5["error"]:
            return Finding("HDF5", STOP, f"rank {number} on {one.host} cannot use h5py: "
                           f"{one.hdf5['error']}", "install h5py for this Python and MPI")
    version = ranks[0].hdf5["version"]
    if len(ranks) > 1 and not all(one.hdf5["parallel"] for one in ranks):
        return Finding("HDF5", ADVICE, f"{version} without MPI: rank 0 writes checkpoints for all",
                       "install h5py built with MPI (HDF5_MPI=ON) to let all write at once")
    kind = "with MPI" if ranks[0].hdf5["parallel"] else "without MPI (one rank needs none)"
    return Finding("HDF5", GOOD, f"{version} {kind}")


def folder(storage, seen):
    """The folder of runs."""
    where = f"{storage.folder} on {storage.kind}"
    if storage.refused:
        return [Finding("run folder", STOP, f"{where} cannot be written: {storage.refused}",
                        "set run.folder to another place")]
    found = []
    if storage.busy:
        found.append(Finding("run folder", STOP, f"{where}: another job is writing this run",
                             "wait for it, end it, or set run.name to another name"))
    if not all(seen):
        found.append(Finding("run folder", STOP, f"{where}: rank {seen.index(False)} does not see "
                             "what rank 0 writes", "set run.folder to a place that all nodes "
                             "share"))
    if storage.locks:
        found.append(Finding("locking", ADVICE, f"{where} cannot lock files ({storage.locks}): "
                             "HDF5 may refuse to open them, and two jobs may mix in one run",
                             "set HDF5_USE_FILE_LOCKING=FALSE, and give each job its run.name"))
    else:
        found.append(Finding("locking", GOOD, f"{where} locks files"))
    if storage.free < LOW_DISK:
        found.append(Finding("run folder", ADVICE, f"{where} has {storage.free / 1e6:.0f} MB left",
                             "free some, or set run.folder to another place"))
    else:
        found.append(Finding("run folder", GOOD, f"{where}, {storage.free / 1e9:.0f} GB free"))
    return found


def kernels(ranks):
    """Where compiled kernels are kept."""
    name, one = "kernel cache", ranks[0]
    if one.backend != "cuda":
        return Finding(name, GOOD, "not needed on the host: kernels are in the package")
    if one.cache is None:
        return Finding(name, ADVICE, "kept in memory alone: every start compiles",
                       "unset CUPY_CACHE_IN_MEMORY, or build ahead (splaxel-mpi kernels build)")
    bad = next((other for other in ranks if not other.cache_writable), None)
    if bad:
        return Finding(name, ADVICE, f"{bad.cache} cannot be written on {bad.host}: every start "
                       "compiles", "set CUPY_CACHE_DIR to a folder of the node, or build ahead "
                       "(splaxel-mpi kernels build)")
    return Finding(name, GOOD, f"{one.cache} on {one.cache_kind}")
