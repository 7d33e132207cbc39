"""Contract of a backend: the stages of design section 2 as functions on its arrays.

Arrays are numpy (host) or cupy (CUDA), C-contiguous. "real" is the backend's float type,
float32 or float64. A pixel tile is 16 x 16, row major; pixels of an edge tile that lie outside
the image hold zeros (colour) and ones (transmittance) and take no part in anything.
"""

from dataclasses import dataclass, field

import numpy as np

# columns of Splats.data
U, V, CONIC_A, CONIC_B, CONIC_C, OPACITY, RED, GREEN, BLUE, DEPTH, EXTENT_X, EXTENT_Y = range(12)
SPLAT = 12
# columns of a splat gradient: dL/d(u, v, A, B, C, opacity, r, g, b), and where they are asked
# for the sums over pixels of |dL/du| and |dL/dv|
SPLAT_GRADIENT, ABSOLUTE_GRADIENT = 9, 11


@dataclass
class Splats:
    """Gaussians projected into one view, in ascending order of their row.

    data columns: u, v (pixel position of the mean); conic A, B, C (inverse 2D covariance,
    q = (A dx^2 + C dy^2) / 2 + B dx dy); opacity after the sigmoid; r, g, b; view depth;
    half-extents in pixels of the box that holds every point with alpha >= 1/255.
    """

    rows: np.ndarray  # (n,) int32, row in the rank's Gaussians; -1 for a ghost
    data: np.ndarray  # (n, 12) real
    ids: np.ndarray  # (n,) int64
    # backend's own: how many rows are in use, the first ones, where the host does not know it
    count: object = None
    place: object = None  # backend's own: (Splats of which these are rows, the first of them)

    def __len__(self):
        return len(self.rows)

    def slice(self, start, stop):
        """Splats start to stop as views of the arrays."""
        return Splats(self.rows[start:stop], self.data[start:stop], self.ids[start:stop])


@dataclass
class Routed:
    """Splats of the views of a chunk, and which of them other cells draw as ghosts.

    Ghosts lie in the order they are sent in: by cell, then view, then splat.
    """

    splats: list  # Splats of each view
    ends: list  # per view the first splat of each local cell, and the end
    counts: np.ndarray = None  # (cells, views) int64 on the host: ghosts; None without any
    index: np.ndarray = None  # (ghosts,) int32, rows of their views' splats
    arrived: np.ndarray = None  # (ranks, local cells, views) int64: ghosts drawn here
    state: object = None  # backend's own


@dataclass
class TileLists:
    """What each held tile draws, front to back by (depth, id). Tiles where nothing can be
    drawn are absent."""

    tiles: np.ndarray  # (held,) int32, ascending tile indices
    offsets: np.ndarray  # (held + 1,) int64 into items
    items: np.ndarray  # (instances,) int32, index into the splats
    intervals: object = None  # backend's own: per-pixel depth intervals, None for all of space
    slots: object = None  # backend's own: (tile_count,) int32, place in tiles or -1
    counters: object = None  # backend's own: counts in use, where the host does not know them
    held: np.ndarray = None  # tiles on the host; None where the host does not know them
    stack: object = None  # backend's own: what they have in common with other lists


@dataclass
class Partial:
    """Partial pixels of one (view, cell)."""

    tiles: np.ndarray  # (held,) int32
    pixels: np.ndarray  # (held, 4, 256) real: planes R, G, B, T
    last: object = None  # backend's own: what the backward pass needs


@dataclass
class Gradients:
    """Sums over the views of a batch, one row per Gaussian of the rank."""

    means: np.ndarray
    scales: np.ndarray
    quats: np.ndarray
    opacities: np.ndarray
    sh0: np.ndarray
    shN: np.ndarray
    seen: np.ndarray  # (n,) uint8, 1 where a view of the batch sees the Gaussian
    # densification statistics, kept over batches until they are used
    # (n,) real, sum over views of |(W/2 du, H/2 dv)|, dL/du and dL/dv or absolute ones
    norm: np.ndarray = field(default=None)
    count: np.ndarray = field(default=None)  # (n,) int32, views that saw it


class Ready:
    """What methods that start something return where there is nothing to wait for."""

    def __init__(self, result):
        self._result = result

    def take(self):
        """The result."""
        return self._result


class Backend:
    """One place to compute. Subclasses set name, xp and memory, and take (real, threads)."""

    name = ""
    xp = None
    memory = None  # what there is of it and what is held back: cuda_memory.DeviceMemory

    def forget_sizes(self):
        """Chunks are smaller from now on: make no arrays for what earlier ones needed."""

    def project(self, gaussians, camera, degree, near):
        """EWA projection and SH colour of every Gaussian (design section 5).

        gaussians: Gaussians (n); camera: Camera; degree: 0 to 3, SH bands used; near: view
        depth below which Gaussians are dropped. Returns Splats of the visible ones: depth >
        near, opacity >= 1/255, positive determinant, box (extents) meets the image.
        Covariance gets 0.3 px on its diagonal; x/z, y/z are clamped in the Jacobian only.
        """
        raise NotImplementedError

    def project_backward(self, gaussians, camera, degree, splats, gradient, out):
        """Back-propagate splat gradients into Gradients out (adds; sets out.seen; adds to
        out.norm and out.count when they are not None).

        splats: what project returned; gradient: (n, 9) real, or (n, 11) with absolute sums,
        which then go into out.norm.
        """
        raise NotImplementedError

    def reach(self, splats, own, camera, tree):
        """Cells other than its own that must draw each splat as a ghost.

        own: (n,) int32, the cell that stores the splat. The splat's box, clipped to the
        image and placed at its depth as a quad in space, is walked down the whole tree with a
        margin of a few roundings. Returns (index, cell): (k,) int32 each, sorted by index then
        cell.
        """
        raise NotImplementedError

    # Splats of a chunk of views and ghosts: called one after the other, from projection to
    # gradients.

    def project_views(self, gaussians, cameras, degree, near):
        """project of several views, without waiting for a device. Returns what start_route
        takes."""
        raise NotImplementedError

    def start_route(self, projected, layout, masked, wanted=True):
        """Begin to find out how many splats the views have, and which are ghosts elsewhere.

        projected: of project_views; layout: partition.layout.Layout; masked: per view (cells,
        tile_count) bool on the host, tiles in which a cell draws nothing, or None: a ghost whose
        box meets masked tiles alone is left out; wanted: False where there are no ghosts.
        Returns an object whose method take() waits for a device and returns Routed.
        """
        raise NotImplementedError

    def pack_ghosts(self, routed):
        """What travels of each ghost: (ghosts, 12 + reals of an id) real, splat and id."""
        raise NotImplementedError

    def place_ghosts(self, routed, records, arrived):
        """Splats of each local cell in each view: its own, then the ghosts that arrived.

        records: (n, 12 + id) as of pack_ghosts, from rank after rank, each by cell, view and
        splat, or None without ghosts; arrived: (ranks, local cells, views) int64 of them.
        Returns per view a list of Splats.
        """
        raise NotImplementedError

    def gradient_rows(self, routed, width):
        """Arrays that rasterize_backward may fill with the gradients of what place_ghosts gave:
        per view a list, (n, width) zeros, or None where it makes them itself."""
        raise NotImplementedError

    def pack_gradients(self, routed, gradients, width):
        """Gradients of the ghosts that arrived, (n, width) in the order of the records.

        gradients: per view a list over local cells, of gradient_rows where that gave arrays.
        """
        raise NotImplementedError

    def add_gradients(self, routed, gradients, returned, width):
        """Gradients of the splats of each view, (n, width): own ones, plus those of ghosts in the
        order of cells.

        gradients: as for pack_gradients; returned: (ghosts, width) in the order of pack_ghosts,
        or None without ghosts.
        """
        raise NotImplementedError

    def tile_lists(self, splats, camera, box=None, mask=None, covered=None):
        """Tiles that each splat touches (exact ellipse test alpha >= 1/255), sorted.

        box: (2, 3) float64 bounds of the cell (Tree.boxes), None for all of space; a splat
        is listed in a tile only if its depth may lie in the ray interval of some pixel there.
        covered: (tile_count,) uint8, 0 for tiles where the bounds do not count, as if box were
        None there; None: they count everywhere.
        mask: (tile_count,) uint8, 0 for tiles that are not live; None for all live.
        Returns TileLists.
        """
        raise NotImplementedError

    def start_tile_lists(self, jobs):
        """Begin tile_lists of several views and cells.

        jobs: list of its arguments (splats, camera, box, mask, covered), the last two on the
        host. Returns an object whose method take() waits for a device once and returns the list
        of TileLists for rasterize_all, with the held tiles on the host.
        """
        out = [self.tile_lists(*job) for job in jobs]
        for lists in out:
            lists.held = lists.tiles
        return Ready(out)

    def rasterize_all(self, parts, stop):
        """rasterize of several (splats, lists, camera) whose lists start_tile_lists made in one
        call. Returns the list of Partial."""
        return [self.rasterize(*part, stop) for part in parts]

    def rasterize_all_backward(self, parts, partials, seeds, stop, absolute, out):
        """rasterize_backward of what rasterize_all took and gave. seeds, out: its gradient and
        out for each. Returns the list of splat gradients."""
        columns = ABSOLUTE_GRADIENT if absolute else SPLAT_GRADIENT
        found = []
        for (splats, lists, camera), partial, seed, rows in zip(parts, partials, seeds, out):
            if not len(lists.tiles):
                found.append(self.zeros((len(splats), columns)) if rows is None else rows)
                continue
            found.append(self.rasterize_backward(
                splats, lists, partial, seed, camera, stop, absolute, rows
            ))
        return found

    def rasterize(self, splats, lists, camera, stop):
        """Blend front to back inside each pixel's depth interval; inclusive stop: after the
        splat that takes T below stop, nothing is blended (0: never). Returns Partial."""
        raise NotImplementedError

    def rasterize_backward(
        self, splats, lists, partial, gradient, camera, stop, absolute=False, out=None
    ):
        """gradient: (held, 4, 256) real, dL/dC_m and dL/dT_m of partial.pixels. out: zeros of the
        result's shape that become the result, None: a new array.
        Returns the splat gradient, (n, 9) real (zero rows for splats not drawn); absolute:
        (n, 11), with the sums over pixels of |dL/du| and |dL/dv|. A pair of splat and pixel is
        drawn by one cell, so these add up over cells as the others do."""
        raise NotImplementedError

    def evaluated_pairs(self, lists, partial):
        """(pixel, splat) pairs whose alpha rasterize computed, for benchmarks.

        lists, partial: of one call of rasterize. Returns an int (waits for the device).
        """
        raise NotImplementedError

    def compose(self, pool, slots, background):
        """Composite tiles front to back: C = sum P_m C_m + P_end background.

        pool: (s, 4, 256) real partial tiles; slots: (n, layers) int32 rows of pool in
        visibility order, -1 where a layer has nothing; background: (3,).
        Returns (image (n, 3, 256), transmittance (n, 256)).
        """
        raise NotImplementedError

    def compose_backward(self, pool, slots, background, gradient, wanted, count):
        """dL/dC_m = P_m g and dL/dT_m = P_m (g . S_m), no division by T.

        gradient: (n, 3, 256), g = dL/dC; wanted: (n, layers) int32, row of the result for a
        layer, where it lies in 0 to count - 1. Returns (count, 4, 256); rows that nothing wants
        are zero.
        """
        raise NotImplementedError

    def residuals(self, pool, slots, tiles, camera):
        """Largest transmittance that each layer of a tile still receives.

        pool, slots: as in compose; tiles: (n,) int32, their indices in the image. Returns
        (n, layers + 1) real: the maximum of P_m over the tile's pixels in the image, before each
        layer and behind the last one.
        """
        raise NotImplementedError

    def to_image(self, tiles, data, camera):
        """Padded image (3, 16 tiles_y, 16 tiles_x) from tiles (n,) int32 and data (n, 3, 256).
        What no tile covers may hold anything."""
        raise NotImplementedError

    def to_tiles(self, tiles, image, camera, out):
        """Inverse of to_image into out (n, 3, 256)."""
        raise NotImplementedError

    def share(self, sums, counted, values, out):
        """Fill out (3,) float64 with the sums (tile_count, 3) of the tiles where counted
        (tile_count,) bool holds, divided by ``values``."""
        raise NotImplementedError

    def loss(self, image, photo, camera, tiles, rect, ssim_weight):
        """(1 - w) L1 + w (1 - SSIM), means over all pixels and channels of the view, and its
        gradient.

        image: (3, 16 tiles_y, 16 tiles_x) real, padded; it must be right within 10 pixels of
        the supervised tiles. photo: (height, width, 3) uint8. tiles: (tile_count,) uint8, 1
        where supervised. rect: (x0, y0, x1, y1) pixels that hold every supervised tile
        widened by 10. SSIM: 11 taps, sigma 1.5, zero padding at the image border.
        Returns (gradient (3, 16 tiles_y, 16 tiles_x), zero outside the supervised tiles;
        sums (tile_count, 3) float64: sum |x - y|, sum (1 - SSIM), sum (clip(x) - y)^2 over the
        tile's pixels and channels; zero where not supervised).
        """
        raise NotImplementedError

    def adam_groups(self, groups, seen, betas, epsilon, step, scale, clear=False, broken=None):
        """One Adam step in place, bias corrected by 1 - beta^step.

        groups: up to six tuples (parameter, gradient, first, second, rate) of arrays (n, width)
        with the same n; step: real, at least 1; 1, 2, ... where all batches have the size of
        this one. gradients are multiplied by scale; rows with seen[row] == 0 are left alone
        (seen (n,) uint8, None: all rows). parameter -= rate * m_hat / (sqrt(v_hat) + epsilon).
        clear: zero the gradients of the rows that were updated; seen stays as it is. broken:
        (groups,) int32, set to 1 for a group in which a value that was updated, parameter or
        moment, is no longer finite, else left alone; None: nobody asks.
        """
        raise NotImplementedError

    def regularise(self, gaussians, gradients, opacity, scale, tally=None):
        """Add the gradient of opacity sum_i o_i + scale sum_i (s_i1 + s_i2 + s_i3), o and s
        after their activations, to gradients.opacities and gradients.scales. tally: that of
        free_running, nothing is done once it is stopped."""
        raise NotImplementedError

    def noise(self, gaussians, seed, images, scale, tally=None):
        """Move means in place by scale g(o) R diag(s^2) R^T n (Kheradmand et al. 2024, equation
        8): n standard normal, scene.identity.normal(ids, images, NOISE, seed); g = 1 / (1 +
        exp(100 (o - 0.005))), below 1e-13 nothing moves. Where a value is not finite, neither
        is the mean. tally: as in regularise."""
        raise NotImplementedError

    def pack(self, pixels, table, count, half=False, scale=1.0):
        """Stream of rectangles of tiles: one after another, plane after plane, row major.

        pixels: (s, planes, 256) real, planes 3 or 4; table: see pieces, on the device; count:
        pixels of the stream; half: four planes, of which the first three times ``scale`` (a power
        of two) are rounded to float16. Returns a flat array, see pieces.stream_items.
        """
        raise NotImplementedError

    def unpack(self, stream, table, out, half=False, scale=1.0):
        """Inverse of pack into rows of out (s, planes, 256); the rest of out stays.

        scale: multiplies the first three planes of halves.
        """
        raise NotImplementedError

    def free_running(self, near, stop, background, ssim_weight):
        """Forward and backward passes that do not wait for the device (cuda_step.FreeRunning),
        or None where stages return when their work is done."""
        return None

    def finite_sum(self, array):
        """A number, or an array () of a device, that is finite if all values of an array are and
        their sum is no larger than numbers go."""
        with np.errstate(over="ignore", invalid="ignore"):
            return array.sum()

    def to_host(self, array):
        """A numpy array of the same values (waits for the device)."""
        return array if isinstance(array, np.ndarray) else array.get()

    def start_reading(self, arrays):
        """Begin to_host of several arrays by one copy, behind the work that was begun before.
        Returns an object whose method take() waits for it and returns the list."""
        return Ready([self.to_host(array) for array in arrays])

    def to_device(self, array):
        """An array of the backend with the values of a numpy array."""
        return self.xp.asarray(array)

    def to_device_together(self, arrays):
        """to_device of several arrays, by one copy where there is a device."""
        return [self.to_device(array) for array in arrays]

    def zeros(self, shape, dtype=None):
        """A zeroed array of the backend (dtype None: real)."""
        return self.xp.zeros(shape, self.real if dtype is None else dtype)
