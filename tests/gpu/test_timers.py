"""Stage times on a GPU: those of the device, though nothing waits for it."""

import time

import numpy as np
import pytest

from splaxel_mpi.train.timers import OUTSIDE, DeviceClock, Timers

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


def test_launched_work_is_charged_to_its_stage():
    import cupy

    stream, much = cupy.cuda.get_current_stream(), cupy.zeros(1 << 28, np.float32)
    for _ in range(2):  # the first compiles
        stream.synchronize()
        timers, begin = Timers(DeviceClock()), time.perf_counter()
        with timers("launched"):
            for _ in range(20):
                much += 1
        launched = time.perf_counter() - begin
        with timers("nothing"):
            pass
        with timers("host"):
            stream.synchronize()
            time.sleep(0.05)
        seconds, wall = timers.take().seconds, time.perf_counter() - begin
    assert seconds["launched"] > 2 * launched
    assert seconds["nothing"] < 1e-3
    assert 0.05 < seconds["host"] < 0.1
    assert sum(seconds.values()) == pytest.approx(wall, rel=0.05)
    assert set(seconds) == {"launched", "nothing", "host", OUTSIDE}


def test_marks_cost_little():
    """40 stages a step of 8 ms: 10 us each are 5 %, what they take is a fifth of it."""
    timers = Timers(DeviceClock())
    for _ in range(2):
        begin = time.perf_counter()
        for _ in range(4000):
            with timers("stage"):
                pass
        timers.take()
        each = (time.perf_counter() - begin) / 4000
    assert each < 40e-6, each
