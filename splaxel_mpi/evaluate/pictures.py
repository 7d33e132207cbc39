"""Pictures for people to look at."""

import numpy as np

from splaxel_mpi.evaluate.quality import pair
from splaxel_mpi.files import atomic_write

# Differences of a trained model are a few per cent; four times that can be seen.
GAIN = 4


def side_by_side(path, photo, image):
    """Write a PNG: photograph | rendering | absolute difference x 4.

    photo: (H, W, 3) uint8; image: (H, W, 3) float, clipped to 0..1; the PNG is (H, 3 W). Whole
    or not at all. Raises ValueError when shapes or types are wrong, UserError when the file
    cannot be written.
    """
    rendering, truth = pair(image, photo)
    difference = np.clip(GAIN * np.abs(rendering - truth), 0, 1)
    write_png(path, np.concatenate([truth, rendering, difference], axis=1))


def write_png(path, image):
    """Write a PNG of an (H, W, 3) image: uint8, or float that is clipped to 0..1."""
    from PIL import Image

    image = np.asarray(image)
    if image.dtype != np.uint8:
        image = np.rint(np.clip(image, 0, 1) * 255).astype(np.uint8)
    with atomic_write(path) as file:
        Image.fromarray(image).save(file, format="PNG")
