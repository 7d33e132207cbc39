"""Plain 3D Gaussian Splatting in float64 numpy: one list of all Gaussians, every pixel, no cells.

Written from the formulas (design sections 4 and 5; Kerbl et al. 2023; Wang et al. 2004 for SSIM)
and from nothing of the package but the names of the parameters, so that it judges the kernels
and the exchange together. Slow: for tens of Gaussians and images of a few hundred pixels.
"""

import numpy as np

LOW_PASS = 0.3  # pixels squared on the diagonal of every 2D covariance
ALPHA_LEAST, ALPHA_MOST = 1 / 255, 0.99


def rotation_of(quats):
    """Rotation matrices (n, 3, 3) of quaternions (w, x, y, z) of any length: q v q* for the
    three unit vectors v, by R = (w^2 - |a|^2) I + 2 a a^T + 2 w [a]x with a = (x, y, z)."""
    quats = quats / np.linalg.norm(quats, axis=1, keepdims=True)
    w, a = quats[:, 0], quats[:, 1:]
    cross = np.zeros((len(w), 3, 3))
    cross[:, 0, 1], cross[:, 0, 2], cross[:, 1, 2] = -a[:, 2], a[:, 1], -a[:, 0]
    cross -= cross.swapaxes(1, 2)
    plain = (w**2 - (a**2).sum(1))[:, None, None] * np.eye(3)
    return plain + 2 * a[:, :, None] * a[:, None, :] + 2 * w[:, None, None] * cross


def harmonics(directions):
    """The 16 real spherical harmonics of degree 0 to 3, (n, 16), with the signs of 3DGS files:
    odd orders carry the phase (-1)^m of Condon and Shortley."""
    x, y, z = directions.T

    def factor(a, b):
        return np.sqrt(a / (b * np.pi))

    one = np.ones_like(x)
    return np.stack(
        [
            factor(1, 4) * one,
            -factor(3, 4) * y,
            factor(3, 4) * z,
            -factor(3, 4) * x,
            factor(15, 4) * x * y,
            -factor(15, 4) * y * z,
            factor(5, 16) * (3 * z**2 - 1),
            -factor(15, 4) * x * z,
            factor(15, 16) * (x**2 - y**2),
            -factor(35, 32) * y * (3 * x**2 - y**2),
            factor(105, 4) * x * y * z,
            -factor(21, 32) * y * (5 * z**2 - 1),
            factor(7, 16) * z * (5 * z**2 - 3),
            -factor(21, 32) * x * (5 * z**2 - 1),
            factor(105, 16) * z * (x**2 - y**2),
            -factor(35, 32) * x * (x**2 - 3 * y**2),
        ],
        axis=1,
    )


def covariance_2d(parameters, camera, t):
    """Projected covariances (n, 2, 2): J W Sigma W^T J^T + 0.3 I, where J takes x/z and y/z
    clamped to 15 % of the image beyond its borders."""
    turn = rotation_of(parameters["quats"])
    spread = np.exp(2 * parameters["scales"])
    sigma = np.einsum("nij,nj,nkj->nik", turn, spread, turn)
    z = t[:, 2]
    axes = (camera.width, camera.fx, camera.cx), (camera.height, camera.fy, camera.cy)
    jacobian = np.zeros((len(z), 2, 3))
    for k, (size, focal, middle) in enumerate(axes):
        limits = -(0.15 * size + middle) / focal, (1.15 * size - middle) / focal
        slope = np.clip(t[:, k] / z, *limits)
        jacobian[:, k, k], jacobian[:, k, 2] = focal / z, -focal * slope / z
    m = jacobian @ camera.rotation
    return m @ sigma @ m.swapaxes(1, 2) + LOW_PASS * np.eye(2)


def colours(parameters, camera):
    """(n, 3): max(0, 0.5 + harmonics in the direction from the camera to the mean)."""
    ray = parameters["means"] + camera.rotation.T @ camera.translation
    basis = harmonics(ray / np.linalg.norm(ray, axis=1, keepdims=True))
    rest = parameters["shN"].reshape(-1, 15, 3)
    terms = basis[:, :1] * parameters["sh0"] + np.einsum("nk,nkc->nc", basis[:, 1:], rest)
    return np.maximum(0, 0.5 + terms)


def raw_alphas(parameters, camera, t, shift):
    """opacity exp(-q) at every pixel centre, (n, height, width)."""
    u = camera.fx * t[:, 0] / t[:, 2] + camera.cx + shift[:, 0]
    v = camera.fy * t[:, 1] / t[:, 2] + camera.cy + shift[:, 1]
    dx = (np.arange(camera.width) + 0.5 - u[:, None])[:, None, :]
    dy = (np.arange(camera.height) + 0.5 - v[:, None])[:, :, None]
    conic = np.linalg.inv(covariance_2d(parameters, camera, t))[:, :, :, None, None]
    q = (conic[:, 0, 0] * dx**2 + conic[:, 1, 1] * dy**2) / 2 + conic[:, 0, 1] * dx * dy
    return np.exp(-q) / (1 + np.exp(-parameters["opacities"][:, 0]))[:, None, None]


def render(parameters, camera, near, background, shift=None, drawn=None):
    """Image (height, width, 3), and which Gaussian was drawn at which pixel.

    parameters: {group: (n, width)} float64, as in scene.gaussians; shift: (n, 2), moves the
    projected means; drawn: (n, height, width) bool that replaces the test alpha >= 1/255. With
    that test held fixed the image is smooth where no clamp begins, so its differences are the
    gradient that holds between the cut-offs.
    """
    count = len(parameters["means"])
    t = parameters["means"] @ camera.rotation.T + camera.translation
    order = np.argsort(t[:, 2], kind="stable")
    order = order[t[order, 2] > near]
    chosen = {name: array[order] for name, array in parameters.items()}
    shift = np.zeros((count, 2)) if shift is None else shift
    raw = raw_alphas(chosen, camera, t[order], shift[order])
    inside = raw >= ALPHA_LEAST if drawn is None else drawn[order]
    alpha = np.where(inside, np.minimum(raw, ALPHA_MOST), 0.0)
    after = np.cumprod(1 - alpha, axis=0)
    before = np.concatenate([np.ones((1, camera.height, camera.width)), after])
    image = np.tensordot(alpha * before[:-1], colours(chosen, camera), (0, 0))
    drawn = np.zeros((count, camera.height, camera.width), bool)
    drawn[order] = inside
    return image + before[-1][..., None] * background, drawn


def blur_matrix(size):
    """Weights (size, size) of an 11-tap Gaussian of sigma 1.5 over a line that is zero outside;
    the taps sum to one, so rows near an end sum to less."""
    taps = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    taps /= taps.sum()
    distance = np.arange(size)[None] - np.arange(size)[:, None]
    return np.where(abs(distance) <= 5, taps[np.clip(distance + 5, 0, 10)], 0.0)


def loss_terms(image, photo):
    """Mean |x - y| and mean (1 - SSIM) over all pixels and channels; photo: uint8."""
    y = photo / 255.0
    down, across = blur_matrix(image.shape[0]), blur_matrix(image.shape[1])

    def blur(values):
        return np.tensordot(down, across @ values, (1, 0))

    mean_x, mean_y = blur(image), blur(y)
    c1, c2 = 0.01**2, 0.03**2
    covariance = blur(image * y) - mean_x * mean_y
    spread = blur(image**2) - mean_x**2 + blur(y**2) - mean_y**2
    ssim = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    ssim /= (mean_x**2 + mean_y**2 + c1) * (spread + c2)
    return abs(image - y).mean(), (1 - ssim).mean()


class Scene:
    """A batch of views of one set of Gaussians: its loss as a function of the parameters."""

    def __init__(self, gaussians, cameras, photos, near, background, ssim_weight):
        self.parameters = {k: np.array(v, np.float64) for k, v in gaussians.groups()}
        self.cameras, self.photos = cameras, photos
        self.near, self.background, self.weight = near, np.array(background), ssim_weight
        self.drawn = [self._render(camera)[1] for camera in cameras]

    def _render(self, camera, **options):
        return render(self.parameters, camera, self.near, self.background, **options)

    def image(self, view):
        """(height, width, 3) of a view."""
        return self._render(self.cameras[view])[0]

    def view_loss(self, view, shift=None):
        """Loss of one view with the cut-offs of the unmoved scene."""
        options = dict(shift=shift, drawn=self.drawn[view])
        l1, dissimilarity = loss_terms(self._render(self.cameras[view], **options)[0],
                                       self.photos[view])
        return (1 - self.weight) * l1 + self.weight * dissimilarity

    def loss(self):
        """Sum over the views."""
        return sum(self.view_loss(view) for view in range(len(self.cameras)))

    def gradient(self, name, places, step):
        """Central differences of the loss by values of one group; places: flat indices."""
        flat, out = self.parameters[name].reshape(-1), np.empty(len(places))
        for k, place in enumerate(places):
            value, found = flat[place], []
            for sign in (1, -1):
                flat[place] = value + sign * step
                found.append(self.loss())
            flat[place] = value
            out[k] = (found[0] - found[1]) / (2 * step)
        return out

    def screen_gradient(self, view, step):
        """Central differences of one view's loss by the projected means, (n, 2)."""
        out = np.empty((len(self.parameters["means"]), 2))
        for place in np.ndindex(out.shape):
            shift = np.zeros_like(out)
            found = []
            for sign in (1, -1):
                shift[place] = sign * step
                found.append(self.view_loss(view, shift))
            out[place] = (found[0] - found[1]) / (2 * step)
        return out
