"""Quality figures, pictures and the summary."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from splaxel_mpi.errors import UserError
from splaxel_mpi.evaluate.pictures import side_by_side
from splaxel_mpi.evaluate.quality import psnr, ssim
from splaxel_mpi.evaluate.summary import versions, write_summary


def photo(height=20, width=30, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ssim_by_definition(image, truth, channel, row, column):
    """SSIM of one window, summed tap by tap with zeros outside the image."""
    taps = [math.exp(-(k**2) / (2 * 1.5**2)) for k in range(-5, 6)]
    norm = sum(taps) ** 2
    sums = np.zeros(5)
    for a in range(-5, 6):
        for b in range(-5, 6):
            y, x = row + a, column + b
            if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
                p, q = image[y, x, channel], truth[y, x, channel]
                sums += taps[a + 5] * taps[b + 5] / norm * np.array([p, q, p * p, q * q, p * q])
    mp, mq, pp, qq, pq = sums
    above = (2 * mp * mq + 1e-4) * (2 * (pq - mp * mq) + 9e-4)
    return above / ((mp**2 + mq**2 + 1e-4) * (pp - mp**2 + qq - mq**2 + 9e-4))


def test_psnr_of_a_known_error():
    truth = np.full((4, 5, 3), 100, np.uint8)
    image = truth / 255 + 0.1
    assert psnr(image, truth) == pytest.approx(20.0)  # -10 log10(0.01)
    assert psnr(truth / 255, truth) == math.inf


def test_images_are_clipped_before_they_are_compared():
    truth = np.full((4, 5, 3), 255, np.uint8)
    assert psnr(np.full((4, 5, 3), 1.7), truth) == math.inf


@pytest.mark.parametrize("shape", [(1, 1), (1, 12), (11, 2), (7, 5), (13, 16)])
def test_ssim_is_the_mean_over_windows_with_zero_padding(shape):
    truth, image = photo(*shape), photo(*shape, seed=1) / 255
    expected = np.mean(
        [
            ssim_by_definition(image, truth / 255, channel, row, column)
            for channel in range(3)
            for row in range(shape[0])
            for column in range(shape[1])
        ]
    )
    # Both in float64; only the order of some hundred additions differs.
    assert ssim(image, truth) == pytest.approx(expected, abs=1e-12)
    assert ssim(truth / 255, truth) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_shapes_and_types_must_fit(measure):
    with pytest.raises(ValueError):
        measure(np.zeros((20, 31, 3)), photo())
    with pytest.raises(ValueError):
        measure(photo() / 255, photo() / 255)


def test_side_by_side_shows_photograph_rendering_and_difference(tmp_path):
    truth = photo()
    image = np.clip(truth.astype(np.float32) / 255 + np.float32(0.1), 0, 1)
    side_by_side(tmp_path / "a.png", truth, image)
    got = np.asarray(Image.open(tmp_path / "a.png")).astype(int)
    assert got.shape == (20, 90, 3)
    assert np.array_equal(got[:, :30], truth)
    rendering = np.rint(image.astype(float) * 255)
    assert np.array_equal(got[:, 30:60], rendering)
    # Both sides are rounded to whole steps of 1/255: 4 x 1/2 and 1/2 more.
    assert np.abs(got[:, 60:] - np.minimum(4 * np.abs(rendering - truth), 255)).max() <= 2.5


def test_a_picture_that_cannot_be_written_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        side_by_side(tmp_path / "no folder" / "a.png", photo(), photo() / 255)


def test_summary_holds_all_figures_and_no_word_json_lacks(tmp_path):
    path = tmp_path / "summary.json"
    write_summary(
        path,
        psnr=np.float32(31.5),
        ssim=float("nan"),
        gaussians=np.int64(2**40),
        images_seen=30_000,
        ranks=4,
        seconds=12.5,
        images_per_second=math.inf,
        bytes_exchanged={"streams": np.int64(7), "ghosts": 0},
        views=np.array([1.5, np.nan]),
    )
    text = path.read_text()
    got = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert got["psnr"] == 31.5 and got["ssim"] is None and got["images_per_second"] is None
    assert got["gaussians"] == 2**40 and got["bytes_exchanged"] == {"streams": 7, "ghosts": 0}
    assert got["views"] == [1.5, None]
    assert got["versions"]["numpy"] == np.__version__
    assert set(versions()) >= {"python", "splaxel_mpi", "mpi4py", "h5py", "HDF5", "HDF5 parallel"}
    assert "MPI library" in got["versions"]


def test_summary_leaves_the_old_file_when_a_value_is_no_figure(tmp_path):
    path = tmp_path / "summary.json"
    figures = dict.fromkeys(
        "psnr ssim gaussians images_seen ranks seconds images_per_second bytes_exchanged".split(), 1
    )
    write_summary(path, **figures)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_summary(path, **dict(figures, psnr=object()))
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
