"""Steps that run ahead of a device: what was skipped is done again, in order, once."""

from types import SimpleNamespace

import numpy as np
import pytest
from scenes import look_at

from splaxel_mpi.backends import cuda_project
from splaxel_mpi.train.one_rank import AHEAD, OneRank
from splaxel_mpi.train.timers import Timers


class Device:
    """A device that works late: launched work runs only when an event behind it is waited for.

    It stands for FreeRunning and its tally at once. A view needs so much room as its number
    says; ``done`` lists what changed the parameters.
    """

    views = 7  # losses that fit before a collection

    def __init__(self):
        self.tally, self.alarm = self, [0, 0]
        self.queue, self.done, self.losses, self.exact = [], [], [], 0
        self.stopped, self.size, self.bound = False, 1, None

    def bind(self, state):
        assert self.bound is None
        self.bound = state

    def release(self):
        assert not self.queue
        self.bound = None

    def reserve(self, views):
        assert not self.queue and not self.losses
        self.views = max(self.views, views)

    def room(self):
        return self.size

    def scale(self, factor):
        self.size = max(1, int(self.size * factor))

    def view(self, camera, photo, degree, room, update=None):
        assert self.bound is not None
        self.exact += room is None

        def run():
            if room is not None and camera > room and not self.stopped:
                self.stopped, self.alarm[0] = True, 1
            if not self.stopped:
                self.losses.append([camera, photo, degree])
                self.done.append(("view", camera, update))

        self.queue.append(run)

    def update(self, update, selective):
        self.queue.append(lambda: self.stopped or self.done.append(("update", update, selective)))

    def synchronize(self):
        """Of an event: the last is the one that is waited for when all is settled; waiting for an
        earlier one may find more done."""
        for run in self.queue:
            run()
        self.queue.clear()

    def record(self):
        pass

    def resume(self):
        self.synchronize()
        self.stopped, self.alarm[0] = False, 0
        return len(self.losses)

    def collect(self):
        self.synchronize()
        assert not self.stopped and len(self.losses) <= self.views
        out, self.losses = np.array(self.losses, float).reshape(-1, 3), []
        return out, len(out)


class Optimizer:
    broken = None

    def __init__(self, selective):
        self.selective = selective

    def arguments(self, images_seen, views):
        return images_seen, views


def train(needs, batch, selective, grows):
    """(device, shares) after steps over views of these needs; grows: settle now and then."""
    device = Device()
    cuda = SimpleNamespace(Event=lambda disable_timing: device)
    renderer = SimpleNamespace(
        timers=Timers(), visible_count=0,
        backend=SimpleNamespace(xp=SimpleNamespace(cuda=cuda)))
    steps = OneRank(renderer, Optimizer(selective), device)
    state = SimpleNamespace(gaussians=[0] * 10, images_seen=0, step=0)
    shares = []
    for first in range(0, len(needs), batch):
        views = [SimpleNamespace(camera=need, index=first + i)
                 for i, need in enumerate(needs[first : first + batch])]
        photos = {view.index: view.index for view in views}
        shares.append(steps.step(state, views, photos, first))
        assert len(steps.waiting) <= AHEAD + 1
        if grows and first % 3 == 0:
            shares.append(steps.settle())
            state.gaussians = state.gaussians + [0]
    shares.append(steps.settle())
    assert (state.images_seen, state.step) == (len(needs), -(-len(needs) // batch))
    assert renderer.visible_count == len(needs)
    return device, np.concatenate(shares)


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("selective", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 5, 9])  # 9: more than there is room for losses of
def test_what_was_skipped_is_done_once_and_in_order(batch, selective, grows):
    draw = np.random.default_rng(batch)
    for _ in range(30):
        needs = draw.choice([1, 1, 1, 2, 9], 17).tolist()
        device, shares = train(needs, batch, selective, grows)
        expected = []
        for first in range(0, len(needs), batch):
            part = needs[first : first + batch]
            alone = len(part) == 1 and selective
            update = first, len(part)
            expected += [("view", need, update if alone else None) for need in part]
            expected += [] if alone else [("update", update, selective)]
        assert device.done == expected
        assert (device.exact > 0) == (max(needs) > 1)
        starts = np.arange(len(needs)) // batch * batch
        np.testing.assert_array_equal(shares.T, [needs, np.arange(len(needs)), starts])


def test_views_of_a_camera_are_the_same_objects_however_many_there_are(monkeypatch):
    """Replays find the arguments of a camera by identity: those of the camera at work may not be
    dropped between its two near planes."""
    monkeypatch.setattr(cuda_project, "MOST_VIEWS", 2)
    stages = cuda_project.CudaProject()
    cameras = [look_at([3.0, k, 1.0], [0, 0, 0], 48, 32) for k in range(5)]
    for camera in cameras + cameras[::-1]:
        first = stages.camera_view(camera, 0.1)
        second = stages.camera_view(camera, 0)
        assert stages.camera_view(camera, 0.1) is first and stages.camera_view(camera, 0) is second
        assert first.tobytes() != second.tobytes()
    kept = stages.camera_view(cameras[0], 0)
    assert kept.tobytes() == cuda_project.CudaProject().camera_view(cameras[0], 0).tobytes()
