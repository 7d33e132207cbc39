"""Held-out quality: PSNR and SSIM of views that training does not see."""

from dataclasses import dataclass

import numpy as np

from ..visibility.demand import whole_image
from ..visibility.tiles import to_image
from .pictures import side_by_side
from .quality import psnr, ssim


@dataclass
class Quality:
    """Means over the held-out views, and the values of each."""

    psnr: float  # dB
    ssim: float
    views: np.ndarray  # (views, 2) float64: PSNR and SSIM of each


def render_views(renderer, gaussians, cameras, degree, start=0):
    """Whole images of a chunk of cameras, dealt to ranks in turn. Collective.

    Yields (position in cameras, image (height, width, 3) real) for the images that land on
    this rank: that of camera i on rank (start + i) % ranks.
    """
    ranks, rank = renderer.layout.ranks, renderer.layout.rank
    roots = [(start + i) % ranks for i in range(len(cameras))]
    _, composed = renderer.draw(gaussians, cameras, degree, [whole_image(r) for r in roots])
    for i, (view, root) in enumerate(zip(composed, roots)):
        if root == rank:
            camera = view.camera
            image = to_image(view.tiles, renderer.backend.to_host(view.image), camera)
            yield i, image[:, : camera.height, : camera.width].transpose(1, 2, 0)


def evaluate(
    renderer, gaussians, views, cache, degree, chunk, folder=None, pictures=0, stop=None
):
    """Quality over views. Collective; every rank returns the same Quality.

    views: list of data.base.View; cache: data.images.ImageCache; chunk: views that share
    collectives. The first ``pictures`` views, spread evenly, are written to ``folder`` as
    photograph | rendering | difference. stop: function without arguments, the same on all ranks,
    that tells after each chunk whether to give up; then the result is None.
    """
    found = np.zeros((len(views), 2))
    shown = set(np.linspace(0, len(views) - 1, min(pictures, len(views))).astype(int).tolist())
    for start in range(0, len(views), chunk):
        batch = views[start : start + chunk]
        upcoming = [view.index for view in views[start + chunk : start + 2 * chunk]]
        photos = cache.fetch([view.index for view in batch], upcoming)
        cameras = [view.camera for view in batch]
        for i, image in render_views(renderer, gaussians, cameras, degree, start):
            photo = photos[batch[i].index]
            found[start + i] = psnr(image, photo), ssim(image, photo)
            if folder is not None and start + i in shown:
                side_by_side(folder / f"{picture_name(batch[i].name)}.png", photo, image)
        if stop is not None and stop():
            return None
    found = renderer.exchange.allreduce("evaluation", found)
    return Quality(*found.mean(0).tolist(), found)


def picture_name(name):
    """File name of a view's picture: its name without folders and ending."""
    return name.replace("\\", "/").replace("/", "__").rsplit(".", 1)[0]
