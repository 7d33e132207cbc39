"""Settings: what a file and the command line may say, and what a user is told otherwise."""

import re
from pathlib import Path

import pytest
import yaml

from splaxel_mpi import config
from splaxel_mpi.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
MINIMAL = "data:\n  path: scene\n"


def mistake(text, *overrides):
    """The line a user gets for this file."""
    with pytest.raises(UserError) as caught:
        config.parse(text, "run.yaml", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults_are_those_of_the_reference():
    settings = config.parse(MINIMAL, "run.yaml")
    assert settings.data.path == "scene"
    assert settings.train.images == 30000 and settings.train.optimizer == "selective"
    rates = settings.train.rates
    assert (rates.position, rates.opacity, rates.scale) == (1.6e-4, 0.05, 5e-3)
    assert (rates.sh0, rates.shN, rates.rotation) == (2.5e-3, 2.5e-3 / 20, 1e-3)
    assert settings.densify.least_gradient == 2e-4 and settings.densify.stop_fraction == 0.5
    assert settings.boundary == "exact"


def test_defaults_follow_the_densifier():
    adc = config.parse(MINIMAL, "run.yaml", ["densify.absgrad=true"]).densify
    assert adc.least_gradient == 8e-4
    mcmc = ["densify.method=mcmc", "densify.limit=1000"]
    assert config.parse(MINIMAL, "run.yaml", mcmc).densify.stop_fraction == 0.83
    said = mistake(MINIMAL, mcmc[0])
    why = "mcmc grows to it: expected a number such as 1000000, got 0"
    assert said == f"run.yaml: densify.limit: {why}"
    given = config.parse(MINIMAL, "run.yaml", [*mcmc, "densify.stop=0.2", "densify.threshold=0"])
    assert given.densify.stop_fraction == 0.2 and given.densify.least_gradient == 0


def test_effective_settings_read_back_unchanged():
    settings = config.parse(MINIMAL, "run.yaml", ["train.epsilon=1e-12", "data.cache=2G"])
    assert config.parse(settings.to_yaml(), "again") == settings
    assert config.parse(config.describe(settings), "shown") == settings


def test_description_covers_every_setting():
    text = config.describe()
    shown = yaml.safe_load(text)
    for name, field in config.settings().items():
        assert field.description, name
        value = shown
        for part in name.split("."):
            value = value[part]
        assert (value is None) == (field.default is None or name == "data.path"), name
        first_words = " ".join(field.description.split()[:4])
        assert first_words in text, name
    for word in ("[whole number >= 1; default", "one of dense, selective", "required"):
        assert word in " ".join(text.replace("#", "").split())


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_files_are_valid(path):
    """Each loads, says why it sets what it sets, and is told of where users look."""
    settings = config.load(path)
    assert settings.run.name == path.stem
    dense = {"city", "photos", "room"}
    assert settings.train.optimizer == ("dense" if path.stem in dense else "selective")
    assert f"`configs/{path.name}`" in (ROOT / "docs" / "data-sets.md").read_text()
    bare = [line for line in path.read_text().splitlines()
            if re.match(r" +\w+: *[^ #]", line) and " # " not in line]
    assert not bare or path.stem in ("city", "photos")


def test_presets_of_the_paper_have_its_lengths():
    """Table 1, iterations as images; batch as many as its 8 GPUs."""
    lengths = {"small-city-street": 150_000, "small-city-aerial": 30_000,
               "big-city-street": 1_200_000, "big-city-aerial": 300_000}
    for name, images in lengths.items():
        settings = config.load(ROOT / "configs" / f"{name}.yaml")
        assert (settings.train.images, settings.train.batch) == (images, 8)
        assert settings.partition.imbalance == 0.2
        grows = settings.densify.stop * images
        assert settings.densify.start + settings.densify.every < grows


def test_overrides_win_and_are_yaml():
    settings = config.parse(
        MINIMAL + "train: {images: 5}\n",
        "run.yaml",
        ["train.images=7", "train.images=9", "scene.background=[1, 0.5, 0]", "render.stop=1e-3",
         "data.cache=null", "mpi.share_gpu=true", "data.path=a=b"],
    )
    assert settings.train.images == 9
    assert settings.scene.background == [1, 0.5, 0]
    assert settings.render.stop == 1e-3
    assert settings.mpi.share_gpu is True
    assert settings.data.path == "a=b"


@pytest.mark.parametrize(
    "text, size", [("2G", 2 * 2**30), ("1.5 MiB", 3 * 2**19), ("800k", 800 * 1024), (77, 77)]
)
def test_cache_takes_bytes_or_text(text, size):
    assert config.parse(MINIMAL, "run.yaml", [f"data.cache={text}"]).data.cache == size


def test_section_of_comments_alone_is_empty():
    assert config.parse(MINIMAL + "train:\n  # images: 3\n", "run.yaml").train.images == 30000


@pytest.mark.parametrize(
    "addition, message",
    [
        ("train: {imagse: 3}",
         "run.yaml:3: train.imagse: unknown setting; did you mean train.images"),
        ("trian: {images: 3}", "run.yaml:3: trian: unknown setting; did you mean train?"),
        ("batch: 3", "batch: unknown setting; did you mean train.batch?"),
        ("train: {rates: {opactiy: 1}}", "did you mean train.rates.opacity?"),
        ("render: {zzz: 3}", "there are: render.stop, render.near"),
        ("train: {images: '4'}", "train.images: expected whole number >= 1, got '4'"),
        ("train: {images: true}", "train.images: expected whole number >= 1, got true"),
        ("train: {images: 4.0}", "train.images: expected whole number >= 1, got 4.0"),
        ("train: {images: 0}", "train.images: expected whole number >= 1, got 0"),
        ("train: {images: 1000000000001}", "expected at most 1000000000000"),
        ("mpi: {share_gpu: 1}", "mpi.share_gpu: expected true or false, got 1"),
        ("render: {stop: true}", "render.stop: expected number"),
        ("render: {stop: .nan}", "render.stop: expected number"),
        ("train: {optimizer: adam}", "expected one of dense, selective, got 'adam'"),
        ("scene: {background: [0, 0]}", "scene.background: expected three numbers 0 to 1"),
        ("scene: {background: [0, 0, 2]}", "scene.background: expected three numbers 0 to 1"),
        ("run: {name: ../up}", "run.name: expected letters"),
        ("run: {name: 2026}", "run.name: expected text, got 2026 (put it in quotes)"),
        ("densify: 3", "densify: expected a section with settings of its own, got 3"),
        ("render: {stop: 1}\nlog: {every: x}", "(and 1 more)"),
        ("train: {images: 3}\ntrain: {images: 4}",
         "run.yaml:4:1: not valid YAML: 'train' is given twice"),
        ("train: {images: 3", "run.yaml:4:1: not valid YAML"),
        ("train: !!python/object/apply:os.system [ls]", "run.yaml:3:8: not valid YAML"),
        ("train: &a {images: 3}\nlog: {<<: *a}", "'<<' is not supported"),
        ("train: " + "[" * 2000, "nested too deeply"),
        ("run: {seed: " + "9" * 5000 + "}", "cannot be read"),
        ("3: 4", "3: unknown setting"),
    ],
)
def test_mistakes_in_a_file(addition, message):
    assert message in mistake(MINIMAL + addition + "\n")


@pytest.mark.parametrize("setting, value", [("holdout", 1), ("cache", "2X"), ("scale", 0.5)])
def test_mistakes_in_the_data_section(setting, value):
    line = mistake(f"data:\n  path: scene\n  {setting}: {value}\n")
    assert line.startswith(f"run.yaml:3: data.{setting}: expected")


@pytest.mark.parametrize("text", ["", "train: {images: 3}", "data:"])
def test_a_missing_path_says_how_to_give_it(text):
    assert "data.path: missing: Folder of the scene" in mistake(text)
    assert "data.path=..." in mistake(text)


@pytest.mark.parametrize(
    "override, message",
    [
        ("train.images=x", "command line: train.images: expected whole number >= 1, got 'x'"),
        ("train.imagse=3",
         "command line: train.imagse: unknown setting; did you mean train.images?"),
        ("train.images.x=3", "command line: train.images: expected whole number"),
        ("train.images=", "command line: train.images: expected whole number >= 1, got nothing"),
        ("train.images", "command line: 'train.images': expected key=value"),
        ("a..b=1", "expected key=value"),
        ("scene.background=[", "command line: scene.background:1:2: not valid YAML"),
    ],
)
def test_mistakes_in_an_override(override, message):
    assert message in mistake(MINIMAL, override)


def test_files_that_cannot_be_read(tmp_path):
    for path, message in [
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "Is a directory"),
        (Path("/dev/zero"), "larger than"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            config.load(path)
        assert str(path) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "run.yaml").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(UserError, match="not valid YAML"):
        config.load(tmp_path / "run.yaml")


def test_assignment_is_checked_too():
    settings = config.parse(MINIMAL, "run.yaml")
    settings.train.batch = 4
    with pytest.raises(ValueError):
        settings.train.batch = -1
