"""Pictures to detect in: files, folders, PIL images and arrays. Does not import torch.

Files are turned as their EXIF orientation says. PIL images and arrays are taken as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from mini_fsod.data.folder import pictures_below
from mini_fsod.data.pictures import PictureError, drawn_size, picture_size
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_folder, real
from mini_fsod.loader.decode import Bytes, decode, to_rgb
from mini_fsod.loader.schedule import reduced

ImageLike = str | Path | Image.Image | npt.NDArray[Any]  # one picture

RGB_ARRAY = "Give uint8 RGB of shape (height, width, 3), or grey of shape (height, width)."


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file to detect in."""

    path: Path
    name: str  # path relative to the folder that was searched, unique


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder that cannot be read, and why."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """A picture as detectors take it."""

    path: Path | None
    pixels: Bytes  # (H, W, 3) RGB, at most as large as the detector's test view
    size: tuple[int, int]  # height, width of the original


def find_pictures(
    paths: Iterable[Path], without: Path | None = None, skip: Callable[[str], None] = lambda _: None
) -> tuple[list[Picture], list[Unreadable]]:
    """The images in files and folders, each once, and the folders that cannot be searched.

    Folders are searched recursively, without the folder `without`; `skip` is called with the name
    of every image of an unsupported type. A file is taken whatever its name.
    """
    found: dict[Path, Picture] = {}
    failed: list[Unreadable] = []
    skipped = real(without) if without else None
    for path in paths:
        if not is_folder(path):
            found.setdefault(_absolute(path), Picture(path, path.name))
            continue

        def report(problem: Problem, folder: Path = path) -> None:
            failed.append(Unreadable(folder / problem.file, problem.what))

        names = pictures_below(path, report, skip)
        if skipped and real(path) in skipped.parents:
            names = [n for n in names if skipped not in real(path / n).parents]
        if not names:
            failed.append(Unreadable(path, "no images in this folder"))
        for name in names:
            found.setdefault(_absolute(path / name), Picture(path / name, name))
    if len({p.name for p in found.values()}) < len(found):
        # equal names from two folders: name them relative to the common parent
        parent = os.path.commonpath([path.parent for path in found])
        named = {path: path.relative_to(parent).as_posix() for path in found}
        return [Picture(p.path, named[path]) for path, p in found.items()], failed
    return list(found.values()), failed


def _absolute(path: Path) -> Path:
    """Without dots, but links are not followed: a link has its own name."""
    return Path(os.path.normpath(path.absolute()))


def read_picture(image: ImageLike, short: int, long: int) -> Decoded:
    """A picture of any kind, its sides at most `short` and `long`; UserError if it is none."""
    if isinstance(image, str | Path):
        path = Path(image)
        size = _image_size(path)
        return Decoded(path, decode(path, short, long), size)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)):
            raise UserError(
                f"The array has the type {image.dtype} and the shape {image.shape}.", RGB_ARRAY
            )
        if 0 in image.shape:
            raise UserError(f"The array is empty: its shape is {image.shape}.", RGB_ARRAY)
        image = Image.fromarray(image)
    if not isinstance(image, Image.Image):
        kinds = "Give a path, a PIL image or an array, or a list of them."
        raise UserError(f"A {type(image).__name__} is not a picture.", kinds)
    rgb = to_rgb(Path("the image"), image)
    size = (rgb.height, rgb.width)
    height, width = reduced(np.array(size), short, long).tolist()
    if (height, width) != size:
        rgb = rgb.resize((width, height), Image.Resampling.BILINEAR)
    return Decoded(None, np.asarray(rgb), size)


def upright(path: Path) -> Image.Image:
    """The image in full size, turned as EXIF says, RGB; UserError if it cannot be read."""
    largest = max(_image_size(path))
    return Image.fromarray(decode(path, largest, largest))


def _image_size(path: Path) -> tuple[int, int]:
    """Height and width, turned as EXIF says."""
    try:
        width, height = drawn_size(*picture_size(path))
    except PictureError as error:
        raise UserError(f"{path}: {error.what}.", "Replace the file.") from None
    return height, width
