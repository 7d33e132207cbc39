"""Seeded random scenes and cameras for tests."""

import numpy as np

from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import Gaussians


def random_gaussians(count, seed, real=np.float64, size=0.12):
    """Gaussians in the box [-2, 2]^3: a mix of blobs, needles and thin discs."""
    draw = np.random.default_rng(seed)
    shape = draw.normal(0, 0.5, (count, 3))
    shape[: count // 3, draw.integers(0, 3)] -= 3  # discs
    parts = dict(
        means=draw.uniform(-2, 2, (count, 3)),
        scales=np.log(size) + shape,
        quats=draw.normal(size=(count, 4)),
        opacities=draw.normal(0.5, 1.5, (count, 1)),
        sh0=draw.normal(0, 0.6, (count, 3)),
        shN=draw.normal(0, 0.15, (count, 45)),
    )
    parts = {name: np.ascontiguousarray(array, real) for name, array in parts.items()}
    return Gaussians(**parts, ids=np.arange(count, dtype=np.int64))


def look_at(center, target, width, height, focal=None, offset=(0.0, 0.0)):
    """Camera at center looking at target; the principal point is moved by offset."""
    center, target = np.asarray(center, float), np.asarray(target, float)
    forward = (target - center) / np.linalg.norm(target - center)
    up = [0.0, 0.0, 1.0] if abs(forward[2]) < 0.9 else [0.0, 1.0, 0.0]
    right = np.cross(forward, up)
    right /= np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    focal = focal or 0.9 * width
    return Camera(
        width,
        height,
        focal,
        1.05 * focal,
        width / 2 + offset[0],
        height / 2 + offset[1],
        rotation,
        -rotation @ center,
    )


def axis_camera(center, width, height, focal=None):
    """Camera exactly at center (no rounding) that looks along +z of the world."""
    focal = focal or 0.8 * width
    return Camera(
        width, height, focal, focal, width / 2, height / 2, np.eye(3), -np.asarray(center, float)
    )


def random_photo(camera, seed):
    """(height, width, 3) uint8 of smooth noise."""
    draw = np.random.default_rng(seed)
    coarse = draw.uniform(0, 255, (camera.height // 8 + 2, camera.width // 8 + 2, 3))
    image = np.kron(coarse, np.ones((8, 8, 1)))[: camera.height, : camera.width]
    return np.ascontiguousarray(np.clip(image + draw.normal(0, 8, image.shape), 0, 255), np.uint8)
