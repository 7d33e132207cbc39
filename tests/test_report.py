"""splaxel-mpi report: one page that needs nothing else."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
from PIL import Image
from runs import stop_half_way, train
from test_cli import command

from splaxel_mpi.analysis import Run
from splaxel_mpi.analysis.page import page, write_page

pytestmark = pytest.mark.timeout(120)
EMPTY = {"meta", "img"}  # elements without an end
NASTY = "<script>alert('x')</script>&\"a b"


@pytest.fixture(autouse=True)
def coarse_plots(monkeypatch):
    """Small plots: most of the time of these tests would go into their pixels."""
    monkeypatch.setattr("splaxel_mpi.analysis.page.DPI", 30)


class Page(HTMLParser):
    """What a browser finds: elements with their attributes, and text by element."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert not self.open  # every element has its end

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append((self.open[-1] if self.open else None, text))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags):
        return " ".join(text for tag, text in self.texts if not tags or tag in tags)


@pytest.fixture(scope="module")
def finished(city, tmp_path_factory, alone):
    return train(city, tmp_path_factory.mktemp("runs"), alone, "partition.cells=2")


def look(folder, **options):
    """The parsed page of a run, after a look at what all pages promise."""
    text = page(Run(folder), **options)
    found = Page(text)
    tags = {tag for tag, _ in found.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
    for tag, attributes in found.elements:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in {"href", "srcset", "style"}, tag
            assert name != "src" or value.startswith("data:image/")
    assert not re.search(r"url\(|@import", found.text("style"))
    policy = [m["content"] for m in found.all("meta") if "http-equiv" in m]
    assert len(policy) == 1 and policy[0].startswith("default-src 'none'")
    return found


def image_of(source):
    return Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1])))


def test_figures_are_those_of_the_summary(finished):
    summary = json.loads((finished / "summary.json").read_text())
    found = look(finished)
    shown = {item["id"]: item["value"] for item in found.all("data")}
    assert shown == {name: str(summary[name]) for name in shown}
    assert {"psnr", "ssim", "gaussians", "seconds", "bytes_exchanged", "ranks"} <= shown.keys()
    assert f"{summary['psnr']:.2f} dB" in found.text("data")
    assert "Not finished" not in found.text()
    assert "checkpoint:" in found.text("pre")  # the settings
    assert summary["versions"]["numpy"] in found.text("pre")


def test_plots_and_pictures_are_inside(finished):
    images = {item["alt"]: item["src"] for item in look(finished).all("img")}
    assert {"Loss", "PSNR", "Time", "Utilisation", "Memory", "Gaussians"} <= images.keys()
    for source in images.values():
        assert min(image_of(source).size) >= 45
    held_out = [path.stem for path in (finished / "pictures").glob("*.png")]
    assert len(held_out) == 2 and set(held_out) <= images.keys()
    assert image_of(images[held_out[0]]).size == (3 * 80, 45)


def test_the_number_of_pictures_is_a_choice(finished):
    names = {path.stem for path in (finished / "pictures").glob("*.png")}
    found = look(finished, pictures=1)
    assert len(names & {item["alt"] for item in found.all("img")}) == 1
    assert "1 of 2 pictures" in found.text()
    assert not names & {item["alt"] for item in look(finished, pictures=0).all("img")}


def test_a_run_without_summary_shows_its_last_figures(finished, tmp_path):
    folder = stop_half_way(finished, tmp_path)
    (folder / "summary.json").unlink()
    found = look(folder)
    assert "Not finished: under way or interrupted" in found.text("p")
    shown = {item["id"]: float(item["value"]) for item in found.all("data")}
    assert shown["images_seen"] == 48 and 0 < shown["loss"] < 1
    assert found.text("pre").count("held-out PSNR")  # the end of the log


def test_a_run_that_has_only_begun(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {name: new}\n")
    found = look(tmp_path)
    assert "No metrics are written yet" in found.text("p") and not found.all("img")


def test_names_and_texts_of_others_are_escaped(finished, tmp_path):
    folder = tmp_path / "<b>run & more"
    shutil.copytree(finished, folder)
    nasty = NASTY.replace("/", "_")
    (picture,) = list((folder / "pictures").glob("*.png"))[:1]
    picture.rename(folder / "pictures" / f"{nasty}.png")
    (folder / "pictures" / "torn<i>.png").write_bytes(b"\x89PNG\r\n")
    (folder / "log.txt").write_text(f"said {NASTY} \x00\x1b[1m</pre><script>")
    (folder / "config.yaml").write_text(f"# {NASTY}</pre>")
    summary = json.loads((folder / "summary.json").read_text())
    summary["psnr"], summary["seconds"] = "<script>", 10**400
    summary["versions"] = {NASTY: "</pre>"}
    (folder / "summary.json").write_text(json.dumps(summary))
    found = look(folder)
    assert found.text("h1") == "<b>run & more"
    assert nasty in {item["alt"] for item in found.all("img")}
    assert f"# {NASTY}</pre>" in found.text("pre") and "\x1b" not in found.text()
    assert "torn<i>.png: not a picture" in found.text("p")
    assert "<script>" in found.text("data")


def test_wide_pictures_are_made_smaller(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    Image.new("RGB", (5760, 1080)).save(folder / "pictures" / "wide.png")
    images = {item["alt"]: item["src"] for item in look(folder).all("img")}
    assert image_of(images["wide"]).size == (1920, 360)


def test_the_command_writes_the_page(finished, tmp_path):
    out = tmp_path / "page.html"
    done = command("report", finished, "--out", out, "--pictures", 1)
    assert done.returncode == 0 and str(out) in done.stdout, done.stderr
    assert Page(out.read_text(encoding="utf-8")).text("h1") == "small"
    write_page(Run(finished), out)
    assert len(Page(out.read_text(encoding="utf-8")).all("img")) > 2


def test_mistakes_are_told_in_one_line(tmp_path):
    done = command("report", tmp_path / "none")
    assert done.returncode == 2 and "no such folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    (tmp_path / "config.yaml").write_text("")
    done = command("report", tmp_path, "--out", tmp_path / "none" / "page.html")
    assert done.returncode == 2 and "cannot be written" in done.stderr
