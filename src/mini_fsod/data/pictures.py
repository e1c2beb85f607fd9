"""Picture files: formats, sizes, EXIF orientation, and whether they can be decoded."""

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

# Unsupported formats: folders are not searched for them. Pillow reads some of them all the same, so
# they may be named by annotations.
UNREAD = (
    *(".heic", ".heif", ".hif", ".gif", ".jp2", ".j2k", ".jxl", ".jfif", ".svg"),
    *(".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2", ".pef", ".srw"),
)

# photographs have at most some 60 million pixels; a few kilobytes may decode to gigabytes
MOST_PIXELS = 100_000_000

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


def stays_inside(name: str, up: int = 0) -> bool:
    """Whether a file name from an annotation stays in the data folder.

    `up` is the depth of the folder that it is relative to.
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
    """Whether its suffix is that of an unsupported picture format."""
    return name.lower().endswith(UNREAD)


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


def picture_size(path: Path, decode: bool = False) -> tuple[int, int, bool]:
    """(width, height, turned) from the header; `decode` also decodes the pixels.

    `turned`: EXIF asks viewers to rotate the stored picture by 90 degrees, see `drawn_size`.
    """
    try:
        with open_regular(path) as file, Image.open(file) as picture:
            width, height = picture.size
            if width * height > MOST_PIXELS:
                what = f"{width} x {height} is more than {MOST_PIXELS // 10**6} million pixels"
                raise PictureError("picture-too-large", what)
            turned = turn_of(picture) in QUARTER_TURNS
            if decode:
                picture.load()
            return width, height, turned
    except PictureError:
        raise
    except Image.DecompressionBombError:
        raise PictureError("picture-too-large", "decodes to too many pixels") from None
    except UnidentifiedImageError:
        if is_unread(path.name):
            what = f"unsupported picture format ({path.suffix.lower()})"
            raise PictureError("picture-format", what) from None
        raise PictureError("picture-unreadable", "not a picture") from None
    except Exception as error:  # decoders raise anything on damaged files
        if getattr(error, "errno", None) in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise PictureError("picture-missing", "the picture does not exist") from None
        kind = "picture-truncated" if "truncated" in str(error) else "picture-unreadable"
        reason = getattr(error, "strerror", None) or error
        raise PictureError(kind, f"cannot be decoded ({reason})") from None


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
