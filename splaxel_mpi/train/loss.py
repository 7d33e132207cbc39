"""Loss of composed views against photographs, on the tiles that a rank supervises."""

from dataclasses import dataclass

import numpy as np

from ..visibility.tiles import SSIM_REACH, bounding_rect, to_image, to_tiles


@dataclass
class ViewLoss:
    """This rank's share of one view's loss; shares of all ranks add up to the view's."""

    gradient: np.ndarray  # (n, 3, 256) real, dL/dC on the composed tiles
    l1: float  # mean |x - y| over all values of the view, this rank's tiles only
    dissimilarity: float  # mean (1 - SSIM), likewise
    error: float  # mean squared error of the clipped image, likewise


def view_loss(backend, composed, photo, ssim_weight):
    """(1 - w) L1 + w (1 - SSIM) and its gradient (paper section 2).

    composed: compose.base.Composed; photo: (height, width, 3) uint8. A rank counts a tile in
    its sums only where composed.counted says so; gradients cover all supervised tiles.
    """
    camera = composed.camera
    rect = bounding_rect(composed.supervised, camera, SSIM_REACH)
    if rect[0] == rect[2]:
        return ViewLoss(backend.xp.zeros_like(composed.image), 0.0, 0.0, 0.0)
    place = backend.to_device(composed.tiles)
    image = to_image(place, composed.image, camera, backend.xp)
    tiles, photo = map(backend.to_device, (composed.supervised.astype(np.uint8), photo))
    gradient, sums = backend.loss(image, photo, camera, tiles, rect, ssim_weight)
    sums = backend.to_host(sums)[composed.counted].sum(0)
    shares = sums / (3 * camera.width * camera.height)
    return ViewLoss(to_tiles(place, gradient, camera, backend.xp), *shares.tolist())
