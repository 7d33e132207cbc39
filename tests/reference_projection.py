"""Projection in plain numpy float64, written from the formulas of EWA splatting and the real
spherical harmonics, not from the kernels."""

import numpy as np
from scipy.spatial.transform import Rotation

from splaxel_mpi.scene.camera import Camera
from splaxel_mpi.scene.gaussians import Gaussians

SH2 = (1.0925484305920792, 0.31539156525252005, 0.5462742152960396)
SH3 = (0.5900435899266435, 2.890611442640554, 0.4570457994644658, 0.3731763325901154,
       1.445305721320277)


def random_camera(rng, width=96, height=64, distance=4.0):
    """A camera about `distance` from the origin that looks at it, off-centre principal point."""
    rotation = Rotation.random(random_state=int(rng.integers(1 << 30))).as_matrix()
    center = -distance * rotation[2] + rng.normal(0, 0.1, 3)
    return Camera(width, height, 0.9 * width, 0.95 * width, 0.53 * width, 0.46 * height,
                  rotation, -rotation @ center)


def random_gaussians(rng, count, dtype=np.float64, spread=1.0):
    """Gaussians around the origin; some lie outside the image or behind the camera."""
    out = Gaussians.empty(count, dtype)
    out.means[:] = rng.normal(0, spread, (count, 3))
    out.scales[:] = rng.normal(-2.5, 0.7, (count, 3))
    out.quats[:] = rng.normal(0, 1, (count, 4))
    out.opacities[:] = rng.normal(0.5, 1.5, (count, 1))
    out.sh0[:] = rng.normal(0.5, 0.5, (count, 3))
    out.shN[:] = rng.normal(0, 0.2, (count, 45))
    out.ids[:] = np.arange(count) * 7 + 3
    return out


def harmonics(degree, direction):
    """Real spherical harmonics, (n, (degree + 1)^2), of unit directions (n, 3)."""
    x, y, z = direction.T
    xx, yy, zz = x * x, y * y, z * z
    terms = [np.full_like(x, 0.28209479177387814)]
    if degree > 0:
        terms += [0.4886025119029199 * t for t in (-y, z, -x)]
    if degree > 1:
        terms += [SH2[0] * x * y, -SH2[0] * y * z, SH2[1] * (2 * zz - xx - yy),
                  -SH2[0] * x * z, SH2[2] * (xx - yy)]
    if degree > 2:
        terms += [-SH3[0] * y * (3 * xx - yy), SH3[1] * x * y * z,
                  -SH3[2] * y * (4 * zz - xx - yy), SH3[3] * z * (2 * zz - 3 * xx - 3 * yy),
                  -SH3[2] * x * (4 * zz - xx - yy), SH3[4] * z * (xx - yy),
                  -SH3[0] * x * (xx - 3 * yy)]
    return np.stack(terms, axis=1)


def project(gaussians, camera, degree, near):
    """(rows, data) of the visible Gaussians, data without the extents' margin."""
    means = gaussians.means.astype(np.float64)
    view = means @ camera.rotation.T + camera.translation
    rows, data = [], []
    for row in np.flatnonzero(view[:, 2] > near):
        splat = project_one(gaussians, row, view[row], camera, degree)
        if splat is not None:
            rows.append(row)
            data.append(splat)
    return np.array(rows), np.array(data)


def project_one(gaussians, row, view, camera, degree):
    """The 12 columns of one splat, None when it is not visible."""
    x, y, z = view
    opacity = 1 / (1 + np.exp(-float(gaussians.opacities[row, 0])))
    if 255 * opacity < 1:
        return None
    w, *xyz = gaussians.quats[row].astype(np.float64)
    turn = Rotation.from_quat([*xyz, w]).as_matrix()
    sigma = turn @ np.diag(np.exp(2 * gaussians.scales[row].astype(np.float64))) @ turn.T
    limits_x = (-(0.15 * camera.width + camera.cx) / camera.fx,
                (1.15 * camera.width - camera.cx) / camera.fx)
    limits_y = (-(0.15 * camera.height + camera.cy) / camera.fy,
                (1.15 * camera.height - camera.cy) / camera.fy)
    slope_x, slope_y = np.clip(x / z, *limits_x), np.clip(y / z, *limits_y)
    jacobian = np.array([[camera.fx / z, 0, -camera.fx * slope_x / z],
                         [0, camera.fy / z, -camera.fy * slope_y / z]])
    turned = camera.rotation @ sigma @ camera.rotation.T
    cov = jacobian @ turned @ jacobian.T + 0.3 * np.eye(2)
    conic = np.linalg.inv(cov)
    u, v = camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy
    k = min(3.33, np.sqrt(2 * np.log(255 * opacity)))
    extent_x, extent_y = k * np.sqrt(cov[0, 0]), k * np.sqrt(cov[1, 1])
    if u + extent_x <= 0 or u - extent_x >= camera.width:
        return None
    if v + extent_y <= 0 or v - extent_y >= camera.height:
        return None
    direction = gaussians.means[row] - camera.center
    basis = harmonics(degree, (direction / np.linalg.norm(direction))[None])[0]
    rest = gaussians.shN[row].reshape(15, 3)[: len(basis) - 1]
    colour = 0.5 + basis[0] * gaussians.sh0[row] + basis[1:] @ rest
    return np.array([u, v, conic[0, 0], conic[0, 1], conic[1, 1], opacity,
                     *np.maximum(colour, 0), z, extent_x, extent_y])
