"""Picture files: formats, sizes, EXIF orientation, and whether they can be decoded."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from mini_fsod.data.file_names import is_unread
from mini_fsod.errors import UserError
from mini_fsod.files import length_of, open_regular
from mini_fsod.limits import PICTURE_BYTES, PICTURE_PIXELS, PICTURE_SIDE, WEBP_PIXELS

# What may decode a picture, whatever its name. Pillow would choose by content from all that it
# knows: a PostScript file called a.png would start Ghostscript.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "AVIF", "GIF", "JPEG2000")

# Pillow's warning starts at nine tenths of PICTURE_PIXELS
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

ORIENTATION = 0x0112  # EXIF tag: how viewers rotate the stored picture
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
QUARTER_TURNS = tuple(TURNS[tag] for tag in (5, 6, 7, 8))  # width and height are swapped


class PictureError(Exception):
    """Why a picture cannot be used: `kind` groups problems, `what` says it."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what


def turn_of(picture: Image.Image) -> Image.Transpose | None:
    """The rotation or reflection in EXIF. Pillow applies that of TIFF itself."""
    if picture.format == "TIFF":
        return None
    return TURNS.get(picture.getexif().get(ORIENTATION, 1))


def drawn_size(
    width: int, height: int, turned: bool, declared: tuple[int, ...] = (0, 0)
) -> tuple[int, int]:
    """Width and height of the picture that boxes are drawn on.

    It is the one that viewers show, `turned` by 90 degrees if EXIF says so, unless its annotations
    declare the size of the stored one.
    """
    return (height, width) if turned and declared != (width, height) else (width, height)


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """The only way to open a picture file: regular files of `FORMATS`, within the limits.

    Whatever goes wrong inside the `with`, decoding included, is a PictureError.
    """
    try:
        with open_regular(path) as file:
            if length_of(file) > PICTURE_BYTES:
                what = f"larger than {PICTURE_BYTES >> 20:,} MB"
                raise PictureError("picture-too-large", what)
            with Image.open(file, formats=FORMATS) as picture:
                width, height = picture.size
                most = WEBP_PIXELS if picture.format in ("WEBP", "AVIF") else PICTURE_PIXELS
                if width * height > most:
                    what = f"{width} x {height} is more than {most // 10**6} million pixels"
                    raise PictureError("picture-too-large", what)
                if max(width, height) > PICTURE_SIDE:
                    what = f"{width} x {height}: a side is longer than {PICTURE_SIDE:,} pixels"
                    raise PictureError("picture-too-large", what)
                yield picture
    except (PictureError, UserError):
        raise
    except Image.DecompressionBombError:
        raise PictureError("picture-too-large", "decodes to too many pixels") from None
    except UnidentifiedImageError:
        if is_unread(path.name):
            what = f"unsupported picture format ({path.suffix.lower()})"
            raise PictureError("picture-format", what) from None
        what = "not a picture in a supported format"
        raise PictureError("picture-unreadable", what) from None
    except Exception as error:  # decoders raise anything on damaged files
        if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise PictureError("picture-missing", "the picture does not exist") from None
        kind = "picture-truncated" if "truncated" in str(error) else "picture-unreadable"
        reason = str(getattr(error, "strerror", None) or error)[:200]
        raise PictureError(kind, f"cannot be decoded ({reason})") from None


def picture_size(path: Path, decode: bool = False) -> tuple[int, int, bool]:
    """(width, height, turned) from the header; `decode` also decodes the pixels.

    `turned`: EXIF asks viewers to rotate the stored picture by 90 degrees, see `drawn_size`.
    """
    with open_picture(path) as picture:
        width, height = picture.size
        turned = turn_of(picture) in QUARTER_TURNS
        if decode:
            picture.load()
        return width, height, turned


def picture_sizes(
    paths: Sequence[Path], decode: bool = False, progress: Callable[[int], None] | None = None
) -> list[tuple[int, int, bool] | PictureError]:
    """`picture_size` of many, or why not, in threads: decoders release the GIL."""

    def size_or_error(path: Path) -> tuple[int, int, bool] | PictureError:
        try:
            return picture_size(path, decode)
        except PictureError as error:
            return error

    found: list[tuple[int, int, bool] | PictureError] = []
    # the filter is process-wide, so it is set once around the threads and not in them
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")
        for n, result in enumerate(pool.map(size_or_error, paths)):
            found.append(result)
            if progress and n % 64 == 63:
                progress(n + 1)
    return found
