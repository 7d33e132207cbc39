"""Sheets of panels: partial images, skipped parts grey, exchanged ones green and blue."""

from dataclasses import dataclass

import numpy as np

from ...evaluate.pictures import write_png

# What a rank does with a tile: one of the first four, and either or both of the others.
OUTSIDE, EMPTY, SATURATED, SHOWN, SENT, RECEIVED = (1 << k for k in range(6))
# (flag, colours that stand for black and white of the image, what the legend says); the last that
# holds for a tile is shown
LOOKS = (
    (SHOWN, None, "in colour: drawn and kept to itself"),
    (OUTSIDE, ((38, 38, 44), (38, 38, 44)), "outside of the predicted region of its cells"),
    (EMPTY, ((92, 92, 100), (92, 92, 100)), "inside, but nothing is drawn there"),
    (SATURATED, ((150, 150, 156), (235, 235, 240)), "saturated: left out since the first visit"),
    (RECEIVED, ((20, 70, 150), (150, 200, 255)), "others' pixels come here, its own do not leave"),
    (SENT, ((0, 80, 20), (140, 255, 150)), "its pixels go to others"),
)
GREY = np.array((0.299, 0.587, 0.114))  # luma of RGB, ITU-R BT.601
PAPER, INK = (255, 255, 255), (20, 20, 20)
THUMBNAIL = 240  # pixels across of a panel of the contact sheet
LEAST = 320  # of a panel of a sheet, so that captions can be read
GAP = 8


@dataclass
class Panel:
    """A rank's part of a view."""

    caption: str
    image: np.ndarray  # (height, width, 3) uint8
    flags: np.ndarray  # (height, width) uint8

    def shaded(self):
        """The image under LOOKS."""
        out = self.image.copy()
        for flag, colors, _ in LOOKS:
            chosen = self.flags & flag > 0
            out[chosen] = _toned(self.image[chosen], colors)
        return out


def _toned(pixels, colors):
    """Pixels (n, 3) uint8 between two colours by their luma; as they are without."""
    if colors is None:
        return pixels
    dark, light = np.array(colors, np.float64)
    return np.rint(dark + (pixels @ GREY)[:, None] / 255 * (light - dark)).astype(np.uint8)


def sheet(path, title, final, panels, width):
    """Write a PNG of a view: its image, the panel of each rank, the legend.

    final: (height, width, 3) uint8; panels: list of Panel; width: most pixels of one across.
    """
    width = max(LEAST, min(width, final.shape[1]))
    pictures = [_resized(final, width)] + [_resized(panel.shaded(), width) for panel in panels]
    captions = [f"{title}: composed of all"] + [panel.caption for panel in panels]
    blocks = [_captioned(*both) for both in zip(pictures, captions)]
    blocks.append(_legend(*blocks[0].shape[1::-1]))
    columns = int(np.ceil(np.sqrt(len(blocks))))
    rows = [blocks[k : k + columns] for k in range(0, len(blocks), columns)]
    write_png(path, _stacked([_beside(row) for row in rows]))


def contact_sheet(path, views):
    """Write a PNG with a row of small panels for each view. views: list of (title, final,
    panels) as for sheet."""
    rows = []
    for title, final, panels in views:
        pictures = [final] + [panel.shaded() for panel in panels]
        row = _beside([_resized(picture, THUMBNAIL) for picture in pictures])
        rows.append(_captioned(row, f"{title}; the image, then ranks 0 to {len(panels) - 1}"))
    width = max(LEAST, max(row.shape[1] for row in rows))
    rows.append(_legend(width, len(LOOKS) * _line(_font(min(width, 640))) + 2 * GAP))
    write_png(path, _stacked(rows))


def _resized(image, width):
    """An image so many pixels across."""
    from PIL import Image

    height = max(1, round(image.shape[0] * width / image.shape[1]))
    how = Image.Resampling.NEAREST if width > image.shape[1] else Image.Resampling.BOX
    return np.asarray(Image.fromarray(image).resize((width, height), how))


def _font(width):
    """A font whose captions fit a panel of a width."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size=max(9, width // 42))
    except TypeError:  # before Pillow 10.1 there is one size
        return ImageFont.load_default()


def _line(font):
    """Height of a line of text."""
    return font.getbbox("Ag")[3] + 4


def _captioned(image, text):
    """An image with a line above it, cut where it is too long."""
    font = _font(max(LEAST, min(image.shape[1], 640)))
    while text and font.getlength(text) > image.shape[1] - 4:
        text = text[:-1]
    strip = np.full((_line(font), image.shape[1], 3), PAPER, np.uint8)
    return np.concatenate([_written(strip, [(2, 0, text)], font), image])


def _legend(width, height):
    """What the colours mean, on a field of a size."""
    font = _font(min(width, 640))
    line, field = _line(font), np.full((height, width, 3), PAPER, np.uint8)
    sample = np.linspace((30, 60, 90), (250, 200, 90), 2 * line).astype(np.uint8)  # an image
    texts = []
    for k, (_, colors, text) in enumerate(LOOKS):
        top = GAP + k * line
        area = field[top : top + line - 3, GAP : GAP + len(sample)]
        area[:] = _toned(sample, colors)[None, : area.shape[1]]
        texts.append((2 * GAP + len(sample), top, text))
    return _written(field, texts, font)


def _written(image, texts, font):
    """The image with texts (x, y, text) on it."""
    from PIL import Image, ImageDraw

    picture = Image.fromarray(image)
    draw = ImageDraw.Draw(picture)
    for x, y, text in texts:
        draw.text((x, y), text, INK, font)
    return np.asarray(picture)


def _beside(blocks):
    """Blocks of one height side by side."""
    gap = np.full((blocks[0].shape[0], GAP, 3), PAPER, np.uint8)
    return np.concatenate([part for block in blocks for part in (block, gap)][:-1], axis=1)


def _stacked(rows):
    """Rows one above the other, filled up to one width, with a margin."""
    width = max(row.shape[1] for row in rows)
    filled = [
        np.pad(row, ((0, GAP), (0, width - row.shape[1]), (0, 0)), constant_values=PAPER[0])
        for row in rows
    ]
    return np.pad(
        np.concatenate(filled), ((GAP, 0), (GAP, GAP), (0, 0)), constant_values=PAPER[0]
    )
