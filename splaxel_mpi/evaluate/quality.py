"""How close a rendering is to its photograph."""

import cv2
import numpy as np

# The window and constants of the loss: 11 taps of a Gaussian with sigma 1.5; for values in 0..1
# K1 = 0.01, K2 = 0.03 (Wang et al. 2004).
TAPS, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2


def psnr(image, photo):
    """Peak signal-to-noise ratio in dB over all pixels and channels; inf when equal.

    image: (H, W, 3) float, linear in what the photograph stores, clipped to 0..1.
    photo: (H, W, 3) uint8. Raises ValueError when the shapes differ.
    """
    image, photo = pair(image, photo)
    error = np.mean((image - photo) ** 2)
    return float("inf") if error == 0 else float(-10 * np.log10(error))


def ssim(image, photo):
    """Structural similarity, mean over all pixels and channels, in -1..1; 1 when equal.

    As in the training loss: windows of 11 x 11 taps, sigma 1.5, zeros outside the image. Types
    and errors as for ``psnr``.
    """
    x, y = pair(image, photo)
    taps = np.exp(-0.5 * ((np.arange(TAPS) - TAPS // 2) / SIGMA) ** 2)
    taps /= taps.sum()

    def blur(values):
        return cv2.sepFilter2D(values, cv2.CV_64F, taps, taps, borderType=cv2.BORDER_CONSTANT)

    mean_x, mean_y = blur(x), blur(y)
    var_x, var_y = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2
    covariance = blur(x * y) - mean_x * mean_y
    above = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    below = (mean_x**2 + mean_y**2 + C1) * (var_x + var_y + C2)
    return float(np.mean(above / below))


def pair(image, photo):
    """Both as float64 in 0..1; ValueError where shapes or types are wrong."""
    image, photo = np.asarray(image), np.asarray(photo)
    if image.shape != photo.shape or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image {image.shape} and photograph {photo.shape} are not (H, W, 3)")
    if photo.dtype != np.uint8 or image.dtype.kind != "f":
        raise ValueError(f"image {image.dtype} and photograph {photo.dtype} are not float, uint8")
    return np.clip(image.astype(np.float64), 0, 1), photo / 255.0
