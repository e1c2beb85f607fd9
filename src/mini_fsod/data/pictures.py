"""What a picture's file says of itself: size, soundness. Nothing here keeps pixels."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath, PureWindowsPath

from PIL import Image, UnidentifiedImageError

from mini_fsod.files import open_regular

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".avif")

# What cameras, telephones and drawing tools write besides. Folders are not searched for it; some of
# it can be read all the same where annotations name it.
UNREAD = (
    *(".heic", ".heif", ".hif", ".gif", ".jp2", ".j2k", ".jxl", ".jfif", ".svg"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".pef", ".srw"),
)

# A photograph has at most some 60 million pixels; a few kilobytes can unpack to gigabytes
MOST_PIXELS = 100_000_000

ORIENTATION = 0x0112  # EXIF tag: how a viewer has to turn the stored picture
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
QUARTER_TURNS = tuple(TURNS[tag] for tag in (5, 6, 7, 8))  # width and height change places


class PictureError(Exception):
    """Why a picture cannot be used: `kind` for grouping, and a sentence."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what


def stays_inside(name: str, up: int = 0) -> bool:
    """Whether a file name taken from an annotation stays in the data folder.

    `up` is how deep the folder that the name starts from lies in it.
    """
    if not name or "\0" in name or PureWindowsPath(name).drive or name.startswith(("/", "\\")):
        return False
    depth = up
    for part in PurePosixPath(name.replace("\\", "/")).parts:
        depth += -1 if part == ".." else part != "."
        if depth < 0:
            return False
    return True


def is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def is_unread(name: str) -> bool:
    """Whether it is a picture by its name, of a kind that is not searched for."""
    return name.lower().endswith(UNREAD)


def turn_of(picture: Image.Image) -> Image.Transpose | None:
    """The turn or reflection that EXIF asks viewers for. TIFF is turned by Pillow itself."""
    if picture.format == "TIFF":
        return None
    return TURNS.get(picture.getexif().get(ORIENTATION, 1))


def drawn_size(
    width: int, height: int, turned: bool, declared: tuple[int, ...] = (0, 0)
) -> tuple[int, int]:
    """Width and height of the picture that boxes are drawn on: as viewers show it, `turned` by a
    quarter from what is stored, unless its annotations declare the size that is stored.
    """
    return (height, width) if turned and declared != (width, height) else (width, height)


def picture_size(path: Path, decode: bool = False) -> tuple[int, int, bool]:
    """(width, height, turned) from the header; with `decode` the pixels are read through too.

    `turned` tells that EXIF asks viewers to turn the stored picture by a quarter (`drawn_size`).
    """
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                raise PictureError(
                    "picture-bomb",
                    f"{width} x {height} pixels unpack to more than {MOST_PIXELS // 10**6} million",
                )
            turned = turn_of(picture) in QUARTER_TURNS
            if decode:
                picture.load()
            return width, height, turned
    except PictureError:
        raise
    except Image.DecompressionBombError:
        raise PictureError("picture-bomb", "unpacks to far too many pixels") from None
    except UnidentifiedImageError:
        if is_unread(path.name):
            what = f"a picture of a kind that is not read ({path.suffix.lower()})"
            raise PictureError("picture-kind", what) from None
        raise PictureError("picture-unreadable", "not a picture that can be read") from None
    except Exception as error:  # decoders raise what they like on damaged files
        if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise PictureError("picture-missing", "the picture does not exist") from None
        kind = "picture-truncated" if "truncated" in str(error) else "picture-unreadable"
        reason = getattr(error, "strerror", None) or error
        raise PictureError(kind, f"cannot be decoded ({reason})") from None


Seen = tuple[int, int, bool] | PictureError


def look_at(
    paths: Sequence[Path], decode: bool = False, progress: Callable[[int], None] | None = None
) -> list[Seen]:
    """`picture_size` of many, in threads (decoders let go of the lock); errors are kept."""

    def look(path: Path) -> Seen:
        try:
            return picture_size(path, decode)
        except PictureError as error:
            return error

    seen: list[Seen] = []
    # the filter is process-wide, so it is set once around the threads and not in them
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")
        for n, result in enumerate(pool.map(look, paths)):
            seen.append(result)
            if progress and n % 64 == 63:
                progress(n + 1)
    return seen
