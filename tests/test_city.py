"""The synthetic city as its users get it: files, pictures, poses, points."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splaxel_mpi.data.city import make_city
from splaxel_mpi.data.city_cameras import make_shots
from splaxel_mpi.data.city_layout import BOX, FACADE, make_scene
from splaxel_mpi.errors import UserError
from splaxel_mpi.scene.camera import Camera

pytestmark = pytest.mark.timeout(120)

SMALL = dict(extent=80.0, views=40, width=160, height=90, samples=1, points=1500, threads=2)
TINY = dict(extent=20.0, views=9, width=33, height=17, samples=1, points=40, threads=1)
SUN = np.array([0.56, -0.40, 0.82])  # towards the sun, as in cuda_src/host/city.cpp


@pytest.fixture(scope="module")
def city(tmp_path_factory):
    folder = tmp_path_factory.mktemp("city") / "set"
    return folder, make_city(folder, **SMALL)


def contents(folder):
    """Bytes of every file below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def take(data, form, at):
    """Fields of a struct at a byte position, and the position behind."""
    return struct.unpack_from("<" + form, data, at), at + struct.calcsize("<" + form)


def read_colmap(folder):
    """A reader of COLMAP's binary model, written for these tests from the format's description."""
    cameras, images, points = {}, {}, {}
    data = (folder / "cameras.bin").read_bytes()
    (count,), at = take(data, "Q", 0)
    for _ in range(count):
        (key, model, width, height), at = take(data, "iiQQ", at)
        assert model == 1
        lens, at = take(data, "4d", at)
        cameras[key] = (width, height, np.array(lens))
    assert at == len(data)
    data = (folder / "images.bin").read_bytes()
    (count,), at = take(data, "Q", 0)
    for _ in range(count):
        (key, *pose, camera), at = take(data, "I7dI", at)
        end = data.index(b"\0", at)
        name = data[at:end].decode()
        (marks,), at = take(data, "Q", end + 1)
        rows = [take(data, "ddq", at + 24 * k)[0] for k in range(marks)]
        at += 24 * marks
        images[key] = (name, np.array(pose[:4]), np.array(pose[4:]), camera, rows)
    assert at == len(data)
    data = (folder / "points3D.bin").read_bytes()
    (count,), at = take(data, "Q", 0)
    for _ in range(count):
        (key, x, y, z, r, g, b, error, length), at = take(data, "Q3d3BdQ", at)
        track, at = take(data, f"{2 * length}I", at)
        track = list(zip(track[::2], track[1::2]))
        points[key] = (np.array([x, y, z]), np.array([r, g, b]), error, track)
    assert at == len(data)
    return cameras, images, points


def rotation_of(q):
    """Rotation matrix of a unit quaternion w, x, y, z."""
    w, x, y, z = q
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def project(point, image, cameras):
    """Pixel position of a world point in a COLMAP image."""
    _, q, t, camera, _ = image
    x, y, z = rotation_of(q) @ point + t
    fx, fy, cx, cy = cameras[camera][2]
    return np.array([fx * x / z + cx, fy * y / z + cy])


def test_summary_and_files_agree(city):
    folder, summary = city
    assert json.loads((folder / "city.json").read_text()) == summary
    names = sorted(path.name for path in (folder / "images").iterdir())
    assert len(names) == SMALL["views"] and names[0] == "aerial_0000.jpg"
    assert sum(name.startswith("street") for name in names) == 20
    cameras, images, points = read_colmap(folder / "sparse" / "0")
    assert [images[k][0] for k in sorted(images)] == names
    assert len(points) == summary["points"] == SMALL["points"]
    for width, height, lens in cameras.values():
        assert (width, height) == (160, 90)
        assert lens[2] != width / 2 and lens[3] != height / 2
    with Image.open(folder / "images" / names[0]) as picture:
        assert picture.size == (160, 90) and picture.format == "JPEG"
    assert not [path for path in folder.rglob("*.part")]


def test_tracks_and_observations_name_each_other(city):
    _, images, points = read_colmap(city[0] / "sparse" / "0")
    listed = sum(len(image[4]) for image in images.values())
    assert listed == city[1]["observations"] == sum(len(p[3]) for p in points.values())
    for key, (_, _, error, track) in points.items():
        assert len(track) >= 2 and 0 <= error < 4.0
        assert len({view for view, _ in track}) == len(track)
        for view, index in track:
            assert images[view][4][index][2] == key


def test_reprojection_has_half_a_pixel_of_noise(city):
    cameras, images, points = read_colmap(city[0] / "sparse" / "0")
    away = []
    for xyz, _, _, track in points.values():
        for view, index in track:
            away.append(project(xyz, images[view], cameras) - images[view][4][index][:2])
    away = np.array(away)
    # Least squares eats 3 of the 2 n degrees of freedom of a track of n views: sigma 0.5 px
    # becomes 0.35 (n = 3) to 0.48 (n = 20).
    assert 0.3 < np.median(np.abs(away)) / 0.6745 < 0.5
    assert np.mean(np.abs(away) > 2.5) < 0.01


def test_points_show_their_colour_in_every_view_of_their_track(city):
    folder = city[0]
    cameras, images, points = read_colmap(folder / "sparse" / "0")
    pictures = {k: np.asarray(Image.open(folder / "images" / v[0]), int) for k, v in images.items()}
    tracked, elsewhere = [], []
    random = np.random.default_rng(0)
    for xyz, rgb, _, track in points.values():
        for view, _ in track[1:]:
            x, y = np.floor(project(xyz, images[view], cameras)).astype(int)
            if 0 <= x < 160 and 0 <= y < 90:
                tracked.append(np.abs(pictures[view][y, x] - rgb).mean())
                a, b = random.integers(90), random.integers(160)
                elsewhere.append(np.abs(pictures[view][a, b] - rgb).mean())
    # Edges and noise move some points to a neighbouring surface, so medians are compared.
    assert np.median(tracked) < 14
    assert np.median(tracked) < 0.4 * np.median(elsewhere)


def test_points_lie_on_surfaces_with_larger_errors_along_the_ray(city):
    cameras, images, points = read_colmap(city[0] / "sparse" / "0")
    scene = make_scene(SMALL["extent"], 0)
    centres = {k: -rotation_of(v[1]).T @ v[2] for k, v in images.items()}
    origin = np.array([centres[p[3][0][0]] for p in points.values()])
    gaze = np.array([p[0] for p in points.values()]) - origin
    t, piece, _ = scene.trace(origin, gaze)
    assert np.mean(piece == -1) < 0.02  # noise lifts few points off the skyline
    along = np.abs(t - 1) * np.linalg.norm(gaze, axis=1)
    assert np.median(along[np.isfinite(along)]) < 0.3
    assert np.mean(along > 0.01) > 0.5  # noise it has
    far = np.linalg.norm(gaze, axis=1)
    near = far < np.median(far)
    assert np.median(along[near]) < np.median(along[~near])


def test_transforms_agree_with_colmap(city):
    folder = city[0]
    cameras, images, _ = read_colmap(folder / "sparse" / "0")
    frames = {}
    for split in ("train", "test"):
        whole = json.loads((folder / "transforms" / f"transforms_{split}.json").read_text())
        for frame in whole["frames"]:
            path = (folder / "transforms" / frame["file_path"]).resolve()
            assert path.is_file()
            frames[path.name] = (frame, split)
    assert len(frames) == len(images)
    for position, key in enumerate(sorted(images)):
        name, q, t, camera, _ = images[key]
        frame, split = frames[name]
        assert split == ("train" if position % 8 else "test")
        pose = np.array(frame["transform_matrix"])
        turn = pose[:3, :3] @ np.diag([1.0, -1.0, -1.0])  # OpenGL to COLMAP axes
        np.testing.assert_allclose(turn.T, rotation_of(q), atol=1e-9)
        np.testing.assert_allclose(-turn.T @ pose[:3, 3] * 100.0, t, atol=1e-9)
        np.testing.assert_array_equal(pose[3], [0, 0, 0, 1])
        lens = [frame[name] for name in ("fl_x", "fl_y", "cx", "cy")]
        np.testing.assert_allclose(lens, cameras[camera][2], rtol=1e-12)
        assert np.isclose(frame["fl_x"], 0.5 * frame["w"] / np.tan(0.5 * frame["camera_angle_x"]))


def test_views_are_inside_the_city_and_test_views_between_training_views(city):
    _, images, _ = read_colmap(city[0] / "sparse" / "0")
    names = [images[k][0] for k in sorted(images)]
    centres = np.array([-rotation_of(images[k][1]).T @ images[k][2] for k in sorted(images)])
    half, tallest = city[1]["half"], city[1]["tallest"]
    assert np.all(np.abs(centres[:, :2]) < half + 4)
    street = np.array([name.startswith("street") for name in names])
    assert np.all((centres[street, 2] > 1.5) & (centres[street, 2] < 3.2))
    assert np.all(centres[~street, 2] > 1.2 * tallest)
    train = np.arange(len(names)) % 8 > 0
    for k in np.flatnonzero(~train):
        alike = train & (street == street[k])
        assert np.linalg.norm(centres[alike] - centres[k], axis=1).min() < (12 if street[k] else 35)


def test_same_seed_same_bytes_other_seed_other_city(tmp_path):
    for name, seed, threads in (("a", 3, 1), ("b", 3, 2), ("c", 4, 1)):
        make_city(tmp_path / name, **{**TINY, "seed": seed, "threads": threads})
    first, again, other = (contents(tmp_path / name) for name in "abc")
    assert first == again
    assert first.keys() == other.keys()
    same = [name for name in first if name.endswith(".jpg") and first[name] == other[name]]
    assert not same


@pytest.mark.mpi(min_size=2)
def test_ranks_share_the_work_and_change_nothing(tmp_path):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    folder = Path(comm.bcast(str(tmp_path), root=0))
    calls = []
    arguments = {**TINY, "progress": lambda done, total: calls.append((done, total))}
    summary = make_city(folder / "many", comm=comm, **arguments)
    assert comm.allreduce(len(calls)) == TINY["views"] and calls[-1][0] == calls[-1][1]
    if comm.rank == 0:
        assert make_city(folder / "one", **TINY) == summary
        assert contents(folder / "many") == contents(folder / "one")
    comm.barrier()
    with pytest.raises(UserError, match="not an empty folder"):  # on every rank, without a hang
        make_city(folder / "many", comm=comm, **TINY)


def test_a_larger_extent_keeps_the_blocks_of_a_smaller_one():
    small, large = make_scene(80.0, 5), make_scene(160.0, 5)
    rows = {(*b, *k) for b, k in zip(large.bounds.tolist(), large.kinds.tolist())}
    inner = np.all(np.abs(small.bounds[:, [0, 1, 3, 4]]) <= small.half, axis=1)
    assert inner.sum() > 50
    for bound, kind in zip(small.bounds[inner].tolist(), small.kinds[inner].tolist()):
        assert (*bound, *kind) in rows


def test_trace_equals_a_search_through_all_boxes():
    scene = make_scene(120.0, 2)
    random = np.random.default_rng(1)
    origin = random.uniform([-60, -60, 1], [60, 60, 50], (400, 3))
    gaze = random.normal(size=(400, 3))
    gaze[::7, 0] = 0.0  # rays along the grid
    t, piece, normal = scene.trace(origin, gaze)
    boxes = scene.bounds[scene.kinds[:, 0] == BOX]
    best = np.where(gaze[:, 2] < 0, -origin[:, 2] / gaze[:, 2], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        a = (boxes[None, :, :3] - origin[:, None]) / gaze[:, None]
        b = (boxes[None, :, 3:] - origin[:, None]) / gaze[:, None]
    enter, leave = np.fmin(a, b).max(axis=2), np.fmax(a, b).min(axis=2)
    hits = np.where((enter < leave) & (enter > 0), enter, np.inf).min(axis=1)
    best = np.minimum(best, hits)
    flat = (piece < 0) | (scene.kinds[np.maximum(piece, 0), 0] == BOX)
    assert flat.sum() > 300 and np.isfinite(t).sum() > 150
    # The same divisions up to a factor 1/x: a few rounding errors apart.
    np.testing.assert_allclose(t[flat], best[flat], rtol=1e-12)
    assert np.all(t[~flat] <= best[~flat])
    met = np.isfinite(t)
    assert np.all(np.einsum("ij,ij->i", normal[met], gaze[met]) < 0)


def looking_down(x, y, height, size=65, focal=60.0):
    """A camera above (x, y) that looks straight down, north up."""
    turn = np.array([[1.0, 0, 0], [0, -1.0, 0], [0, 0, -1.0]])
    eye = np.array([x, y, height])
    return Camera(size, size, focal, focal, size / 2, size / 2, turn, -turn @ eye)


def test_the_pixel_over_a_roof_shows_the_roof():
    scene = make_scene(80.0, 0)
    walls = np.flatnonzero((scene.kinds[:, 1] == FACADE) & (scene.kinds[:, 2] < 5))
    tall = walls[np.argmax(scene.bounds[walls, 5])]
    low, high = scene.bounds[tall, :3], scene.bounds[tall, 3:]
    spot = 0.9 * low + 0.1 * high  # near a corner, off the machines in the middle
    camera = looking_down(spot[0], spot[1], 60.0)
    t, piece, normal = scene.trace(camera.center, [[0.0, 0.0, -1.0]])
    assert scene.bounds[piece[0], 5] >= high[2] and t[0] <= 60.0 - high[2] + 1e-9
    np.testing.assert_array_equal(normal[0], [0, 0, 1])
    corner = low[:2] - 2.0  # off the wall's foot
    outside, other, _ = scene.trace([*corner, 60.0], [[0.0, 0.0, -1.0]])
    assert outside[0] > 60.0 - high[2] and other[0] != tall


def test_streets_in_shadow_are_darker_than_streets_in_the_sun():
    scene = make_scene(80.0, 0)
    camera = looking_down(0.0, 0.0, 60.0, 129, 80.0)
    picture = scene.render(camera, 1).mean(axis=2).ravel()
    y, x = np.divmod(np.arange(129 * 129), 129)
    gaze = np.stack([(x - 64) / 80.0, -(y - 64) / 80.0, -np.ones(len(x))], axis=1)
    t, piece, _ = scene.trace(camera.center, gaze)
    ground = camera.center + t[:, None] * gaze + [0, 0, 1e-3]
    _, above, _ = scene.trace(ground, np.broadcast_to(SUN, ground.shape))
    street = piece == -2
    dark, bright = picture[street & (above >= 0)], picture[street & (above == -1)]
    assert min(len(dark), len(bright)) > 100
    assert np.median(bright) > 1.4 * np.median(dark)


def test_photographs_hold_detail_sky_and_no_blank_areas():
    scene = make_scene(80.0, 1)
    shots = make_shots(scene, 16, 0.5, 160, 90)
    for shot in shots:
        picture = scene.render(shot.camera, 4)
        assert picture.shape == (90, 160, 3) and picture.dtype == np.float32
        assert 0.0 <= picture.min() and picture.max() <= 1.0
        assert 0.2 < picture.mean() < 0.75 and picture.std() > 0.08
        tiles = picture[:80].mean(axis=2).reshape(5, 16, 10, 16).swapaxes(1, 2)
        built = tiles[2:].reshape(-1, 256)  # below the skyline
        assert np.mean(built.std(axis=1) < 0.004) < 0.1
    street = scene.render(shots[-1].camera, 4)
    assert street[0].mean(axis=0)[2] > street[0].mean(axis=0)[0]  # blue above


@pytest.mark.parametrize("aerial, kind", [(0.0, "street"), (1.0, "aerial")])
def test_one_lens_has_global_intrinsics(tmp_path, aerial, kind):
    summary = make_city(tmp_path / "set", **{**TINY, "aerial": aerial, "views": 3, "height": 40})
    assert summary["points"] <= TINY["points"]
    whole = json.loads((tmp_path / "set/transforms/transforms_train.json").read_text())
    assert whole["w"] == 33 and whole["h"] == 40 and whole["fl_x"] > 0
    assert [set(frame) for frame in whole["frames"]] == [{"file_path", "transform_matrix"}] * 2
    assert kind in whole["frames"][0]["file_path"]
    cameras, images, _ = read_colmap(tmp_path / "set" / "sparse" / "0")
    assert len(cameras) == 1 and len(images) == 3


def test_one_view_makes_a_data_set_without_points(tmp_path):
    summary = make_city(tmp_path / "set", **{**TINY, "views": 1})
    assert summary["points"] == 0 and summary["test"] == 1
    assert read_colmap(tmp_path / "set" / "sparse" / "0")[2] == {}


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"extent": 1.0}, "extent"),
        ({"extent": float("nan")}, "extent"),
        ({"aerial": 1.5}, "aerial"),
        ({"views": 0}, "views"),
        ({"views": 2.5}, "views"),
        ({"width": 4}, "width"),
        ({"height": 100000}, "height"),
        ({"seed": -1}, "seed"),
        ({"points": 0}, "points"),
        ({"samples": 3}, "square"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tmp_path, wrong, words):
    with pytest.raises(UserError, match=words) as told:
        make_city(tmp_path / "set", **{**TINY, **wrong})
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_content_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(UserError, match="not an empty folder"):
        make_city(tmp_path, **TINY)
    assert contents(tmp_path) == {"mine": b"keep"}
    with pytest.raises(UserError, match="cannot write"):
        make_city(tmp_path / "mine" / "set", **TINY)
