"""Where Gaussians are born: at draws from their parents."""

from ..arrays import module_of


def scatter(gaussians, draws, size=1.0):
    """Move means by draws from the Gaussians themselves, in place.

    draws: (n, 3), standard normal; size: in standard deviations.
    """
    offset = size * draws.astype(gaussians.dtype) * module_of(draws).exp(gaussians.scales)
    gaussians.means += (rotations(gaussians.quats) * offset[:, None, :]).sum(2)


def rotations(quats):
    """Rotation matrices (n, 3, 3) of quaternions (n, 4), w first, any length but zero."""
    xp = module_of(quats)
    length = xp.sqrt((quats * quats).sum(1, keepdims=True))
    w, x, y, z = (quats / xp.maximum(length, 1e-12)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return xp.stack([xp.stack(row, axis=-1) for row in rows], axis=1)
