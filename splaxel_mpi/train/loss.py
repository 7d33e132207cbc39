"""Loss of composed views against photographs, on the tiles that a rank supervises."""

from dataclasses import dataclass

import numpy as np

from ..visibility.tiles import SSIM_REACH, bounding_rect


@dataclass
class ChunkLoss:
    """This rank's share of the losses of some views; shares of all ranks add up to a view's."""

    gradient: np.ndarray  # (n, 3, 256) real, dL/dC on the composed tiles, view after view
    # (views, 3) float64 of the backend, of this rank's tiles only: mean |x - y| over all values
    # of the view, mean (1 - SSIM), mean squared error of the clipped image
    shares: np.ndarray


def chunk_loss(backend, composed, photos, ssim_weight):
    """(1 - w) L1 + w (1 - SSIM) and its gradient (paper section 2). Does not wait for a device.

    composed: list of compose.base.Composed; photos: of each (height, width, 3) uint8, on the host
    or the device. A rank counts a tile in its sums only where Composed.counted says so; gradients
    cover all supervised tiles.
    """
    ends = np.cumsum([len(view.tiles) for view in composed]).tolist()
    out = ChunkLoss(
        backend.xp.empty((ends[-1], 3, 256), backend.real),
        backend.zeros((len(composed), 3), np.float64),
    )
    tables = iter(backend.to_device_together([
        table for view in composed for table in (view.supervised.view(np.uint8), view.counted)
    ]))
    for v, (view, photo, end) in enumerate(zip(composed, photos, ends)):
        gradient = out.gradient[end - len(view.tiles) : end]
        supervised, counted = next(tables), next(tables)
        tiles = backend.to_device(view.tiles) if view.placed is None else view.placed
        camera, rect = view.camera, bounding_rect(view.supervised, view.camera, SSIM_REACH)
        if rect[0] == rect[2]:
            gradient.fill(0)
            continue
        image, photo = backend.to_image(tiles, view.image, camera), backend.to_device(photo)
        by_pixel, sums = backend.loss(image, photo, camera, supervised, rect, ssim_weight)
        backend.to_tiles(tiles, by_pixel, camera, gradient)
        backend.share(sums, counted, 3 * camera.width * camera.height, out.shares[v])
    return out
