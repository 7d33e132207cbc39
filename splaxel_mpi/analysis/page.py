"""A run as one HTML page that needs no other file, no network and no script."""

import base64
import datetime
import io
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

from .. import __version__
from ..errors import UserError
from ..files import write_text
from .figures import draw_all

# The browser is told to fetch nothing and to run nothing, whatever the page says.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto;
       padding: 0 1rem; color: #1b1f24; background: #fff }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
table { border-collapse: collapse } th { text-align: left; font-weight: 500 }
th, td { padding: .25rem 1.5rem .25rem 0; border-bottom: 1px solid #d8dde3; vertical-align: top }
.plots { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)) }
figure { margin: 0 0 1.5rem } img { width: 100%; height: auto; display: block }
figcaption { color: #4c5661; font-size: .9rem; overflow-wrap: anywhere }
.state { background: #fff5d6; padding: .5rem 1rem } pre { overflow-x: auto; font-size: .85rem }
"""
DPI = 144
# A picture is three panels side by side: 640 pixels each show what there is to see, and a page
# with a dozen of them stays within some 5 MB.
WIDTH, QUALITY = 1920, 88
MOST_PIXELS = 300_000_000
LOG_LINES = 40
# key of the summary -> (words, unit or a function that makes text of it)
FIGURES = {
    "psnr": ("PSNR of held-out views", "{:.2f} dB"),
    "psnr_initial": ("the same before training", "{:.2f} dB"),
    "ssim": ("SSIM of held-out views", "{:.4f}"),
    "gaussians": ("Gaussians", "{:,}"),
    "images_seen": ("training images", "{:,}"),
    "ranks": ("ranks", "{:,}"),
    "seconds": ("time of training", "{:,.1f} s"),
    "images_per_second": ("images a second", "{:,.2f}"),
    "bytes_exchanged": ("sent between ranks", "{:,} bytes"),
}
# series -> (words, unit): what is known of a run without a summary
SERIES = {
    "loss": ("loss", "{:.4f}"),
    "psnr": ("PSNR of training views", "{:.2f} dB"),
    "heldout_psnr": ("PSNR of held-out views", "{:.2f} dB"),
    "heldout_ssim": ("SSIM of held-out views", "{:.4f}"),
    "images_seen": ("training images", "{:,}"),
    "time": ("time of training", "{:,.1f} s"),
    "images_per_second": ("images a second", "{:,.2f}"),
}


def write_page(run, path, pictures=12):
    """Write the page of a run (``Run``) to a file, whole or not at all.

    pictures: most held-out pictures on it, spread evenly over those of the run. Text of the run
    (names, settings, log) is escaped. Raises UserError where the run's metrics or summary are
    damaged or the file cannot be written.
    """
    write_text(path, page(run, pictures))


def page(run, pictures=12):
    """The page as text; see ``write_page``."""
    html = Element("html", lang="en")
    head, body = SubElement(html, "head"), SubElement(html, "body")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    SubElement(head, "meta", name="viewport", content="width=device-width")
    add(head, "title", f"{run.name} - splaxel_mpi")
    add(head, "style", STYLE)
    add(body, "h1", run.name)
    state(body, run)
    summary, metrics = run.summary(), run.metrics()
    if metrics is None:
        figure_table(body, summary, {})
        add(body, "p", "No metrics are written yet.")
    else:
        with metrics:
            figure_table(body, summary, last_values(metrics))
            plots(body, metrics)
    show_pictures(body, run.pictures(), pictures)
    details(body, run, summary or {})
    add(body, "p", f"Written by splaxel_mpi {__version__}, {moment(None)}.")
    return "<!DOCTYPE html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def add(parent, tag, text, **attributes):
    """A new element with text, which is escaped when the page is written."""
    element = SubElement(parent, tag, attributes)
    element.text = printable(text)
    return element


def printable(text):
    """Text without characters that no HTML may hold; what is left is escaped later."""
    return "".join(
        c if c in "\n\t" or (c.isprintable() and not "\ud800" <= c <= "\udfff") else "\ufffd"
        for c in str(text)
    )


def moment(seconds):
    """A time, s since 1970 (None: now), as text, in UTC."""
    zone = datetime.timezone.utc
    when = datetime.datetime.now(zone)
    if seconds is not None:
        when = datetime.datetime.fromtimestamp(seconds, zone)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def state(body, run):
    """A line where the run is not finished."""
    if not run.finished():
        last = run.last_written()
        when = f"; the last figures and log lines were written {moment(last)}" if last else ""
        add(body, "p", f"Not finished: under way or interrupted{when}.", **{"class": "state"})


def last_values(metrics):
    """Series -> its last measured value, of SERIES."""
    found = {}
    for name in SERIES:
        values = metrics.points(name)[1]
        if len(values):
            found[name] = values[-1].item()
    return found


def figure_table(body, summary, last):
    """The summary's figures, or the last ones of the metrics where there is none."""
    add(body, "h2", "Figures" if summary else "Last figures")
    table = SubElement(body, "table")
    names, values = (FIGURES, summary) if summary else (SERIES, last)
    for key, (words, form) in names.items():
        if key in values:
            row = SubElement(table, "tr")
            add(row, "th", words)
            value = values[key]
            cell = SubElement(row, "td")
            add(cell, "data", in_unit(value, form), value=str(value), id=key)


def in_unit(value, form):
    """A figure with its unit; what is no number as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "not measured" if value is None else str(value)
    try:
        return form.format(value)
    except OverflowError:  # a whole number beyond all floats
        return str(value)


def plots(body, metrics):
    """A figure for each panel of which the run has anything."""
    add(body, "h2", "Over the training")
    drawn = draw_all(metrics)
    if not drawn:
        add(body, "p", "Nothing is measured yet.")
    box = SubElement(body, "div", {"class": "plots"})
    for one in drawn:
        data = io.BytesIO()
        one.figure.savefig(data, format="png", dpi=DPI)
        picture(box, "png", data.getvalue(), one.title, one.caption)


def picture(parent, kind, data, title, caption=""):
    """An image inside the page, with its title and a caption. data: bytes of such a file."""
    figure = SubElement(parent, "figure")
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    SubElement(figure, "img", alt=printable(title), src=source)
    words = SubElement(figure, "figcaption")
    add(words, "strong", title).tail = caption and f": {caption}"


def show_pictures(body, paths, most):
    """Held-out photographs beside renderings, at most so many."""
    if not paths or most < 1:
        return
    add(body, "h2", "Held-out views")
    add(body, "p", "Photograph, rendering, and four times their difference.")
    chosen = sorted(set(np.linspace(0, len(paths) - 1, min(most, len(paths))).astype(int)))
    for path in (paths[k] for k in chosen):
        try:
            picture(body, "jpeg", smaller(path), path.stem)
        except UserError as error:
            add(body, "p", str(error), **{"class": "state"})
    if len(chosen) < len(paths):
        add(body, "p", f"{len(chosen)} of {len(paths)} pictures are shown.")


def smaller(path):
    """JPEG of a picture, at most WIDTH pixels wide. Raises UserError where it is damaged."""
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError("too many pixels")
            image = image.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{path.name}: not a picture that can be shown ({error})") from error
    if image.width > WIDTH:
        height = max(1, round(image.height * WIDTH / image.width))
        image = image.resize((WIDTH, height), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "JPEG", quality=QUALITY)
    return data.getvalue()


def details(body, run, summary):
    """Software, settings and the end of the log, folded."""
    versions = summary.get("versions")
    parts = {
        "Software": "\n".join(f"{k}: {v}" for k, v in versions.items())
        if isinstance(versions, dict) else "",
        "Settings": run.settings() or "",
        "End of the log": "\n".join(run.last_log_lines(LOG_LINES)),
    }
    for title, text in parts.items():
        if text:
            box = SubElement(body, "details")
            add(box, "summary", title)
            add(box, "pre", text)
