"""Gaussians from a sparse point cloud, with the starting values of 3D Gaussian Splatting
(Kerbl et al. 2023)."""

import numpy as np

from splaxel_mpi.scene.gaussians import Gaussians

SH_C0 = 0.28209479177387814  # 1 / (2 sqrt(pi)), the constant of SH band 0
SQUARED_DISTANCE_FLOOR = 1e-7  # of 3DGS, keeps the scale of coincident points above zero
NEIGHBOURS = 3
EXTENT_MARGIN = 1.1  # of 3DGS
# Cameras closer together than this share of their distance to the points are at one place: poses
# are not known better, so such a baseline is rounding.
ONE_PLACE = 1e-6


def neighbour_distances(positions, workers=1):
    """Root mean squared distance to the 3 nearest other points: (n,) float64, world units.

    positions: (n, 3). With fewer than 4 points the mean is over those there are; a lone point
    gets 0. Coincident points count as neighbours at distance 0. workers: threads, -1 for all.
    Raises ValueError when a position is not finite.
    """
    positions = np.asarray(positions, np.float64)
    bad = int(np.count_nonzero(~np.isfinite(positions).all(axis=1)))
    if bad:
        raise ValueError(f"{bad} of {len(positions)} point positions are not finite")
    others = min(NEIGHBOURS, len(positions) - 1)
    if others < 1:
        return np.zeros(len(positions))
    # half a second that only the rank with the points need spend
    from scipy.spatial import cKDTree

    # the first of the k nearest is at distance 0: the point itself or one that coincides
    nearest = list(range(2, others + 2))
    distances, _ = cKDTree(positions).query(positions, k=nearest, workers=workers)
    return np.sqrt(np.mean(distances**2, axis=1))


def initial_gaussians(
    positions, colors, indices, neighbour_distance, opacity=0.1, dtype=np.float32, scale=1.0
):
    """Isotropic Gaussians at points.

    positions: (n, 3) float64, world; colors: (n, 3) uint8 sRGB; indices: (n,) int64, place of
    each point in the whole input, which becomes its id; neighbour_distance: (n,) from
    neighbour_distances over the whole input; opacity: in (0, 1); scale: standard deviation in
    those distances. Raises ValueError for another opacity or when lengths differ.
    """
    count = len(positions)
    if not 0.0 < opacity < 1.0:
        raise ValueError(f"initial opacity {opacity} is not between 0 and 1")
    if {len(colors), len(indices), len(neighbour_distance)} != {count}:
        raise ValueError("positions, colors, indices and distances differ in length")
    out = Gaussians.empty(count, dtype)
    out.means[:] = positions
    squared = np.maximum(np.square(neighbour_distance), SQUARED_DISTANCE_FLOOR)
    out.scales[:] = 0.5 * np.log(squared)[:, None] + np.log(scale)
    out.quats[:, 0] = 1.0
    out.opacities[:] = np.log(opacity / (1.0 - opacity))
    out.sh0[:] = (np.asarray(colors, np.float64) / 255.0 - 0.5) / SH_C0
    out.ids[:] = indices
    return out


def scene_extent(camera_centers, positions=()):
    """Size of a scene in world units, the unit of the position learning rate: 1.1 times the
    largest distance of a camera from their mean.

    camera_centers: (views, 3); positions: (n, 3) of the points. Where all cameras stand at one
    place (a single view, a panorama) it is 1.1 times the median distance of the points from it:
    with an extent of 0 nothing would move and everything be too large. Raises ValueError when
    there is no camera.
    """
    centers = np.asarray(camera_centers, np.float64).reshape(-1, 3)
    if not len(centers):
        raise ValueError("a scene without cameras has no extent")
    mean = centers.mean(axis=0)
    extent = float(np.linalg.norm(centers - mean, axis=1).max())
    if len(positions):
        distance = float(np.median(np.linalg.norm(positions - mean, axis=1)))
        extent = extent if extent > ONE_PLACE * distance else distance
    return EXTENT_MARGIN * extent
