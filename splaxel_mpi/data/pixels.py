"""Headers and pixels of photographs."""

import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image

from splaxel_mpi.data.files import open_file
from splaxel_mpi.data.undistort import undistort
from splaxel_mpi.errors import UserError

# What photographs come as. Pillow's other readers stay off: some start programs (EPS runs
# Ghostscript) and input files are untrusted.
Image.init()  # registers the readers that Pillow otherwise loads late
FORMATS = [
    name
    for name in ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000")  # JPEG brings MPO
    if name in Image.OPEN
]
GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")
# Pillow takes images above 89 Mpixel for attacks; aerial cameras go beyond. Sizes are compared
# with the cameras before pixels are decoded.
Image.MAX_IMAGE_PIXELS = 1 << 29
TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
# Headers wait for the file system, not for the processor.
HEADER_THREADS = 16


@dataclass(frozen=True)
class Header:
    """Stored size in pixels and EXIF orientation (1: as stored) of an image file."""

    width: int
    height: int
    orientation: int


def inspect(path, where):
    """Header of an image file; reads no pixels. ``where`` names the record for messages."""
    with _opened(path, where) as image:
        return Header(*image.size, _orientation(image, path, where))


def inspect_all(items):
    """Headers of many files: items is a list of (path, where). When several fail, the first is
    reported with the number of the others."""
    with ThreadPoolExecutor(HEADER_THREADS) as pool:
        results = list(pool.map(_try_inspect, items))
    errors = [result for result in results if isinstance(result, UserError)]
    if len(errors) > 1:
        raise UserError(
            f"{errors[0]} ({len(errors)} of {len(items)} images cannot be used; this is the first)"
        )
    if errors:
        raise errors[0]
    return results


def check_size(header, width, height, path, where):
    """Raises UserError unless the stored size is the one the camera was calibrated for."""
    stored = (header.width, header.height)
    if stored == (width, height):
        return
    if header.orientation in TURNED and stored == (height, width):
        raise UserError(
            f"{path}: stored as {stored[0]}x{stored[1]} with EXIF orientation "
            f"{header.orientation}, but {where} has {width}x{height}, the turned size; rotate the "
            "pixels and drop the EXIF orientation"
        )
    raise UserError(
        f"{path}: has {stored[0]}x{stored[1]} pixels, but {where} has {width}x{height}; use the "
        "images the cameras were computed for (reduce them with `scale`, not on disk)"
    )


def decode(view):
    """Pixels of a view at its training size, (height, width, 3) uint8, RGB.

    The stored pixels are used (EXIF orientation is not applied); transparency is composited on
    black, grey becomes RGB, 16-bit grey is reduced to 8 bits. Then the lens is undone and the
    image reduced with a box filter, as PIL's ``resize((w, h), BOX)``. Raises UserError naming the
    file when it is missing, damaged, or has another size than its camera.
    """
    lens, camera = view.lens, view.camera
    size = (lens.width, lens.height) if lens else (camera.width, camera.height)
    with _opened(view.image_path, view.name) as image:
        header = Header(*image.size, _orientation(image, view.image_path, view.name))
        check_size(header, *size, view.image_path, f"the camera of {view.name}")
        pixels = _rgb(image, view.image_path)
    if lens:
        pixels = undistort(pixels, lens)
    if (camera.width, camera.height) != size:
        size = (camera.width, camera.height)
        pixels = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
    return pixels


def reduced_size(width, height, scale):
    """Training size of an image reduced by scale: floor of each side divided by it."""
    return math.floor(width / scale), math.floor(height / scale)


def _try_inspect(item):
    try:
        return inspect(*item)
    except UserError as error:
        return error


@contextmanager
def _opened(path, where):
    """PIL image of a file; every error of opening or decoding becomes one UserError."""
    try:
        file = open_file(path)
    except UserError as error:
        raise UserError(f"{error} (image of {where})") from None
    try:
        with file, Image.open(file, formats=FORMATS) as image:
            yield image
    except (UserError, MemoryError):
        raise
    except Image.UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise UserError(f"{path}: cannot be read as an image, none of {known}") from None
    except Exception as error:  # Pillow lets struct's, zlib's and others' errors through
        raise UserError(f"{path}: cannot be read as an image: {error}") from None


def _orientation(image, path, where):
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # getexif would decode all pixels in search of a late chunk
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    if orientation not in range(1, 9):
        return 1
    if image.format == "TIFF" and orientation != 1:
        raise UserError(
            f"{path}: a TIFF with orientation {orientation} cannot be read as stored "
            f"(image of {where}); write it again without the orientation tag"
        )
    return orientation


def _rgb(image, path):
    """Decoded pixels as (height, width, 3) uint8."""
    if image.mode in GREY_16:
        grey = np.asarray(image)
        return np.repeat(((grey.astype(np.uint32) + 128) // 257).astype(np.uint8)[..., None], 3, 2)
    if image.mode in ("I", "F"):
        raise UserError(
            f"{path}: pixels of 32 bits have no known range; convert to 8 bits a channel"
        )
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, (0, 0, 0, 255)), rgba)
    return np.asarray(image.convert("RGB"))
