"""Runs the tests alike on one process and under mpirun.

Under mpirun the ranks leave every test together, rank 0 alone reports, and all agree on the exit
status. A rank that fails while the others wait inside the test's collectives ends the job.
"""

import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAUNCHED = any(key in os.environ for key in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))
# Seconds that a failed rank waits for the others to leave the test: what a slow rank may lag.
PATIENCE = 5.0

if LAUNCHED:
    from mpi4py import MPI

    WORLD = MPI.COMM_WORLD
    # Our own messages must never meet those of the tests.
    SYNC = WORLD.Dup()
    RANK, SIZE = WORLD.rank, WORLD.size
else:
    RANK, SIZE = 0, 1

failures = []


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Gives each rank its own temporary folder, and rank 0 alone the JUnit report."""
    if SIZE == 1:
        return
    shared = WORLD.bcast(tempfile.mkdtemp(prefix="splaxel-test-") if RANK == 0 else None)
    config.option.basetemp = os.path.join(shared, f"rank{RANK}")
    if RANK:
        config.option.xmlpath = None


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    """Silences the report of every rank but 0."""
    if RANK:
        # pytest has no public way to send its report elsewhere.
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w", encoding="utf-8")


def pytest_ignore_collect(collection_path, config):
    """Every rank would import every file: those without a test for ranks are left alone."""
    if config.getoption("only_mpi", False) and collection_path.suffix == ".py":
        return "mark.mpi" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(items):
    """Slow tests come last, but among several workers first: in the end one alone would be busy.
    GPU tests are skipped where there is none."""
    first = "PYTEST_XDIST_WORKER" in os.environ
    items.sort(key=lambda item: (item.get_closest_marker("slow") is not None) != first)
    for item in items:
        if item.get_closest_marker("gpu") and not gpu_count():
            item.add_marker(pytest.mark.skip(reason="no GPU that CuPy can use"))


@functools.lru_cache(maxsize=None)
def gpu_count():
    """GPUs that CuPy sees; 0 without CuPy or without a driver."""
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount()
    except Exception:  # each CuPy release has its own error for a missing driver
        return 0


def pytest_runtest_logreport(report):
    """Remembers a failure, and shows at once those that rank 0 cannot see."""
    if SIZE == 1 or not report.failed:
        return
    failures.append((RANK, report.nodeid, report.when, report.longreprtext))
    if RANK:
        tell(f"FAILED {report.nodeid}\n{report.longreprtext}")


def pytest_runtest_logfinish(nodeid):
    """All ranks leave a test together: else the collectives of two tests would meet."""
    if SIZE == 1:
        return
    failed_here = any(name == nodeid for _, name, _, _ in failures)
    arrival, start = SYNC.Ibarrier(), time.monotonic()
    while not arrival.Test():
        time.sleep(0.002)
        if failed_here and time.monotonic() - start > PATIENCE:
            tell(f"failed {nodeid}, where the other ranks still wait: aborting\n{failures[-1][3]}")
            WORLD.Abort(1)


def pytest_sessionfinish(session, exitstatus):
    """The worst exit status of any rank is everybody's; rank 0 gathers the failures."""
    if SIZE == 1:
        return
    # "No tests" is no failure here: mpirun would print a page about it.
    mine = 0 if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED else int(exitstatus)
    session.exitstatus = SYNC.allreduce(mine, op=MPI.MAX)
    gathered = SYNC.gather(failures) or []
    session.failures_elsewhere = [failure for rank in gathered[1:] for failure in rank]


def pytest_terminal_summary(terminalreporter):
    """Lists the failures of the ranks that do not report themselves."""
    for rank, nodeid, when, text in getattr(terminalreporter._session, "failures_elsewhere", []):
        last = text.splitlines()[-1] if text else ""
        terminalreporter.write_line(f"[rank {rank} of {SIZE}] FAILED {nodeid} ({when}): {last}")


def tell(message):
    print(f"\n[rank {RANK}] {message}", file=sys.__stderr__, flush=True)


@pytest.fixture
def comm():
    """A communicator of the test's own: all ranks under mpirun, otherwise this process alone."""
    mpi = pytest.importorskip("mpi4py.MPI")
    duplicate = (mpi.COMM_WORLD if LAUNCHED else mpi.COMM_SELF).Dup()
    yield duplicate
    # Freeing is collective: after a failure the others may not come. Then it is left alone.
    if not failures:
        duplicate.Free()


@pytest.fixture
def shared_data():
    """Folder of the real scenes; skips where they are not at hand.

    SPLAXEL_SHARED names its parent, otherwise it is shared/data in the checkout or beside it.
    """
    places = [os.environ.get("SPLAXEL_SHARED"), ROOT / "shared", ROOT.parent / "shared"]
    for place in filter(None, places):
        folder = Path(place) / "data"
        if folder.is_dir():
            return folder
    pytest.skip("no shared/data: set SPLAXEL_SHARED to the folder that holds it")


@pytest.fixture
def mpirun():
    """Function (ranks, *arguments, timeout=60, **options of subprocess.run) that runs Python
    with `arguments` under mpirun and returns the completed process, its output as text.

    For serial tests only: MPI jobs do not nest.
    """
    if LAUNCHED:
        pytest.skip("starts mpirun itself")

    def run(ranks, *arguments, timeout=60, **options):
        launcher = os.environ.get("MPIRUN", "mpirun")
        # MPI in this process may have put its own variables into the C environment, which a
        # child would inherit; os.environ has those from before.
        options.setdefault("env", dict(os.environ))
        return subprocess.run(
            ["timeout", "-k", "5", str(timeout), launcher, "-n", str(ranks)]
            + [sys.executable, "-m", "mpi4py", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **options,
        )

    return run


@pytest.fixture(scope="module")
def alone():
    """A communicator of one rank."""
    return pytest.importorskip("mpi4py.MPI").COMM_SELF


@pytest.fixture(scope="session")
def city(tmp_path_factory):
    """Folder of a small city as a data set, not to be changed; one for all ranks."""
    from runs import small_city

    folder = tmp_path_factory.mktemp("scene") / "city"
    if not RANK:
        small_city(folder)
    return folder if SIZE == 1 else SYNC.bcast(folder)
