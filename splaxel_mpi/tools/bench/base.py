"""What benchmarks share: clocks, facts of the machine, tables and a JSON report."""

import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ... import __version__
from ...files import write_text

PASSES = 3  # over the views; the first warms up and does not count
COPY_BYTES = {"host": 1 << 27, "cuda": 1 << 30}  # well beyond any cache
# Filling this many floats twice keeps a GPU busy for some tenths of a millisecond, in which the
# host queues the launches of a stage: then the events around it see the device's time alone.
BUSY_FLOATS = 1 << 27
ISSUE_LANES = 4 * 32  # instructions a multiprocessor issues a cycle, times lanes


class HostClock:
    """Wall time of calls that return when they are done."""

    def stage(self, function):
        """Milliseconds of one call."""
        return self.calls(function)[0]

    def calls(self, *functions):
        """Milliseconds of each of some calls that follow each other."""
        marks = [time.perf_counter()]
        for function in functions:
            function()
            marks.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in zip(marks, marks[1:])]


class DeviceClock:
    """Times of CUDA events on the current stream."""

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.busy = cupy.empty(BUSY_FLOATS, np.float32)

    def stage(self, function):
        """Milliseconds of one call whose launches are queued behind other work, with nothing of
        it in the caches: the device's time, and the host's only where it waits."""
        self.busy.fill(0)
        self.busy.fill(1)
        return self._timed([function])[0]

    def calls(self, *functions):
        """Milliseconds of each of some calls that follow each other on an idle device, as a user
        sees them: launches and waits included."""
        self.cupy.cuda.get_current_stream().synchronize()
        return self._timed(functions)

    def _timed(self, functions):
        events = [self.cupy.cuda.Event() for _ in range(len(functions) + 1)]
        events[0].record()
        for function, event in zip(functions, events[1:]):
            function()
            event.record()
        events[-1].synchronize()
        return [self.cupy.cuda.get_elapsed_time(*pair) for pair in zip(events, events[1:])]


def make_clock(backend):
    """The clock for a backend's stages."""
    return HostClock() if backend.xp is np else DeviceClock()


@dataclass(frozen=True)
class Machine:
    """What floors are made of: name of the processor; bandwidth: bytes a second, read and
    written, of a copy in this run; issue: instructions times lanes a second, None where it is
    not known."""

    backend: str
    name: str
    bandwidth: float
    issue: float = None

    def __str__(self):
        issue = f", {self.issue / 1e12:.1f} T lane instructions/s" if self.issue else ""
        return f"{self.name}, copies {self.bandwidth / 1e9:.0f} GB/s{issue}"


def measure_machine(backend, clock):
    """The Machine that a backend computes on."""
    source = backend.zeros(COPY_BYTES[backend.name], np.uint8)
    target = backend.zeros(COPY_BYTES[backend.name], np.uint8)

    def copy():
        target[...] = source

    times = clock.calls(*[copy] * 6)[1:]
    bandwidth = 2e3 * source.nbytes / float(np.median(times))
    if backend.xp is np:
        return Machine(backend.name, platform.processor() or platform.machine(), bandwidth)
    device = backend.xp.cuda.Device()
    name = backend.xp.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    facts = device.attributes
    clock_rate = facts.get("ClockRate")  # kHz
    issue = facts["MultiProcessorCount"] * ISSUE_LANES * 1e3 * clock_rate if clock_rate else None
    return Machine(backend.name, name, bandwidth, issue)


class Samples:
    """Milliseconds by name and view; medians over views of medians over passes."""

    def __init__(self):
        self.times = {}

    def add(self, name, view, milliseconds):
        """One measurement."""
        self.times.setdefault(name, {}).setdefault(view, []).append(milliseconds)

    def by_view(self, name):
        """{view: median over passes}."""
        return {view: float(np.median(times)) for view, times in self.times[name].items()}

    def median(self, name):
        """Median over views."""
        return float(np.median(list(self.by_view(name).values())))

    def total(self, name):
        """Sum over views."""
        return float(sum(self.by_view(name).values()))

    def medians(self):
        """{name: median over views}, in the order of measuring."""
        return {name: self.median(name) for name in self.times}


def table(rows, header):
    """Lines of text columns: the first to the left, the others to the right."""
    rows = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        lines.append("  ".join(cells).rstrip())
    return lines


def shown(value, digits=3):
    """A number for a table, - for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def report_head(machine, command):
    """What a JSON report begins with. command: the options that were given."""
    return {
        "version": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "backend": machine.backend,
        "machine": machine.name,
        "bytes_per_second": machine.bandwidth,
        "lane_instructions_per_second": machine.issue,
    }


def versions(backend=None):
    """What a JSON report begins with where no machine is measured: versions, date, backend."""
    found = {
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "processor": platform.processor() or platform.machine(),
    }
    if backend is not None:
        found["backend"] = backend.name
        if backend.xp is not np:
            device = backend.xp.cuda.runtime.getDeviceProperties(backend.xp.cuda.Device().id)
            found |= {"cupy": backend.xp.__version__, "device": device["name"].decode()}
    return found


def write_report(path, command, rows, backend=None, **more):
    """Write figures as JSON: versions, the command's settings, and its rows."""
    report = dict(versions(backend), command=command, **more, rows=rows)
    write_text(Path(path), json.dumps(report, indent=1, default=_plain) + "\n")


def _plain(value):
    """A numpy scalar or array as JSON has it."""
    return value.tolist()
