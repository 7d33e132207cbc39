"""Plain float64 rasterizer, independent of the kernels: every splat at every pixel, one list."""

import numpy as np


def pixel_centres(camera):
    """x and y of all pixel centres, (height, width) each."""
    return np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)


def ray_intervals(camera, box, real=np.float64):
    """View depths of every pixel's ray inside a cell: in, out, (height, width) each of type
    real. box: (2, 3) bounds. Design section 4; empty rays have in > out."""
    x, y = pixel_centres(camera)
    rotation, center = camera.rotation.astype(real), camera.center
    right = (x.astype(real) - real(camera.cx)) / real(camera.fx)
    down = (y.astype(real) - real(camera.cy)) / real(camera.fy)
    enter = np.full(x.shape, -np.inf, real)
    leave = np.full(x.shape, np.inf, real)
    for axis in range(3):
        d = rotation[0, axis] * right + rotation[1, axis] * down + rotation[2, axis]
        for side, bound in enumerate(box[:, axis]):
            if np.isinf(bound):
                continue
            with np.errstate(divide="ignore", invalid="ignore"):
                depth = real(bound - center[axis]) / d
            starts = (d > 0) if side == 0 else (d < 0)
            enter = np.where(starts, np.maximum(enter, depth), enter)
            leave = np.where(~starts & (d != 0), np.minimum(leave, depth), leave)
            inside = center[axis] >= bound if side == 0 else center[axis] < bound
            if not inside:
                leave = np.where(d == 0, -np.inf, leave)
    return enter, leave


def alphas(splat, camera):
    """Alpha of one splat (row of Splats.data) at every pixel, zero where it is not drawn."""
    u, v, a, b, c, opacity = splat[:6].astype(np.float64)
    x, y = pixel_centres(camera)
    dx, dy = x - u, y - v
    q = 0.5 * (a * dx**2 + c * dy**2) + b * dx * dy
    with np.errstate(over="ignore", invalid="ignore"):
        alpha = np.minimum(0.99, opacity * np.exp(-q))
    return np.where((q >= 0) & (alpha >= 1 / 255), alpha, 0.0)


def rasterize(splats, camera, stop=0.0, box=None, depths=None):
    """Image (height, width, 4): R, G, B, T. depths: (n,), what orders the splats and is
    compared with the intervals; default: data column 9."""
    depths = splats.data[:, 9] if depths is None else depths
    image = np.zeros((camera.height, camera.width, 4))
    image[..., 3] = 1
    if box is not None:
        enter, leave = ray_intervals(camera, box, splats.data.dtype.type)
    live = np.ones(image.shape[:2], bool)
    for i in np.lexsort((splats.ids, depths)):
        alpha = np.where(live, alphas(splats.data[i], camera), 0)
        if box is not None:
            alpha = np.where((enter <= depths[i]) & (depths[i] < leave), alpha, 0)
        image[..., :3] += (alpha * image[..., 3])[..., None] * splats.data[i, 6:9]
        image[..., 3] *= 1 - alpha
        live &= image[..., 3] >= stop
    return image


def to_image(tiles, pixels, camera):
    """Partial pixels as an image (height, width, 4); tiles that are not held are empty."""
    across, down = camera.tiles
    image = np.zeros((down, across, 16, 16, 4))
    image[..., 3] = 1
    blocks = np.moveaxis(np.asarray(pixels, np.float64).reshape(-1, 4, 16, 16), 1, 3)
    image[tiles // across, tiles % across] = blocks
    image = image.swapaxes(1, 2).reshape(16 * down, 16 * across, 4)
    return image[: camera.height, : camera.width]


def to_tiles(image, tiles, camera):
    """The tiles of an image (height, width, k) as (held, k, 256); zeros outside the image."""
    across, down = camera.tiles
    padded = np.zeros((16 * down, 16 * across, image.shape[2]), image.dtype)
    padded[: camera.height, : camera.width] = image
    blocks = padded.reshape(down, 16, across, 16, -1).swapaxes(1, 2).reshape(down * across, 256, -1)
    return np.ascontiguousarray(blocks[tiles].swapaxes(1, 2))
