"""The sources of the demo scenes: scikit-learn's handwritten digits, scikit-image's photographs.

No digit image and no photograph is in more than one part (train, shots, test), whatever the seed,
so that memorising them does not help in the test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import cos, radians, sin
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from mini_fsod.data.pictures import PictureError, open_picture
from mini_fsod.errors import UserError
from mini_fsod.labels import split_by_novel

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Not trivial: three resembles five and nine, eight resembles nine and zero.
NOVEL = ("three", "six", "eight")
LABELS = split_by_novel(NOVEL, CLASSES)

# Packaged with scikit-image 0.25 and 0.26 (the same bytes), so nothing is downloaded. Left out:
# those with text on them (text, page) and those without a stated licence (moon, motorcycle).
# Smooth, busy and coloured ones are spread over the parts.
PHOTOGRAPHS = {
    "train": (
        *("astronaut.png", "brick.png", "camera.png", "cell.png", "coffee.png", "grass.png"),
        "hubble_deep_field.jpg",
    ),
    "shots": ("chelsea.png", "clock_motion.png", "ihc.png"),
    "test": ("coins.png", "gravel.png", "retina.jpg", "rocket.jpg"),
}

# Share of the about 180 images of each digit, from .. to .. in a fixed shuffled order.
DIGIT_SHARES = {"train": (0.0, 0.6), "shots": (0.6, 0.75), "test": (0.75, 1.0)}

CELL = 9  # enlargement of the 8 x 8 original
MARGIN = 3  # original pixels around it, so that slant and rotation cut nothing off
INK = 96  # least mask value that counts as ink; boxes are tight around the ink

Digit = npt.NDArray[np.float64]  # (8, 8), values 0 to 16


@dataclass(frozen=True, slots=True, eq=False)
class Material:
    """The digits and photographs of one part."""

    digits: tuple[tuple[Digit, ...], ...]  # by class
    photographs: tuple[Image.Image, ...]  # RGB


def _not_installed(package: str) -> UserError:
    return UserError(
        f"The demo data set needs {package}, which is not installed.",
        'Run: pip install "mini-fsod[demo]"',
    )


def photograph(name: str) -> Image.Image:
    """One of scikit-image's photographs, from the installed package's folder.

    Its own loader would copy the file to the user's cache, or look for it on the network.
    """
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise _not_installed("scikit-image")
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    try:
        with open_picture(path) as picture:
            return picture.convert("RGB")
    except PictureError as error:
        raise UserError(
            f"{path}: this photograph of scikit-image cannot be read ({error}).",
            'Reinstall it: pip install --force-reinstall "scikit-image>=0.25,<0.27"',
        ) from error


@cache
def digit_images() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """(1797, 8, 8) images with values 0 to 16, and (1797,) which digit each is."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise _not_installed("scikit-learn") from error
    data = load_digits()
    return data.images, data.target


def digit_indices(part: str, digit: int) -> list[int]:
    """Indices of scikit-learn's images of this digit that belong to this part."""
    indices = np.flatnonzero(digit_images()[1] == digit).tolist()
    random.Random(f"mini demo digits {digit}").shuffle(indices)
    start, end = (round(share * len(indices)) for share in DIGIT_SHARES[part])
    return indices[start:end]


def material(part: str) -> Material:
    """The digits and photographs for the scenes of this part."""
    images = digit_images()[0]
    digits = [[images[i] for i in digit_indices(part, digit)] for digit in range(len(CLASSES))]
    photographs = tuple(photograph(name) for name in PHOTOGRAPHS[part])
    return Material(tuple(map(tuple, digits)), photographs)


def _resize(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Resize one axis after the other: versions of Pillow differ in which they resize first, and
    so in the last bit of some pixels."""
    wide = picture.resize((size[0], picture.height), Image.Resampling.BICUBIC)
    return wide.resize(size, Image.Resampling.BICUBIC)


def background(rng: random.Random, photo: Image.Image) -> Image.Image:
    """A crop of the photograph, 144 to 176 pixels a side, with another contrast and tint."""
    width, height = rng.randint(144, 176), rng.randint(144, 176)
    zoom = rng.uniform(0.8, min(2.4, photo.width / width, photo.height / height))
    w, h = int(zoom * width), int(zoom * height)
    left, top = rng.randint(0, photo.width - w), rng.randint(0, photo.height - h)
    picture = _resize(photo.crop((left, top, left + w, top + h)), (width, height))
    if rng.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    contrast, shift = rng.uniform(0.55, 1.0), rng.uniform(-25, 45)
    table: list[int] = []
    for tint in (rng.uniform(-22, 22) for _ in range(3)):
        level = (128 + contrast * (value - 128) + shift + tint for value in range(256))
        table += [min(max(round(value), 0), 255) for value in level]
    return picture.point(table)


def stroke_field(digit: Digit) -> Image.Image:
    """An 8 x 8 digit, enlarged to a smooth field that a threshold turns into a pen stroke.

    The local mean is subtracted, so that faint strokes survive and the small holes of 8, 6 and 9
    stay open; a plain threshold loses one or the other.
    """
    side = 8 + 2 * MARGIN
    grey = np.zeros((side, side), dtype=np.uint8)
    grey[MARGIN:-MARGIN, MARGIN:-MARGIN] = np.rint(digit * (255 / 16))
    large = _resize(Image.fromarray(grey), (side * CELL, side * CELL))
    stroke, around = (
        np.asarray(large.filter(ImageFilter.GaussianBlur(CELL * radius)), dtype=np.float64)
        for radius in (0.28, 0.8)
    )
    return Image.fromarray(np.clip(4 * (stroke - 0.95 * around), 0, 255).astype(np.uint8))


def _ramp(low: float, high: float) -> Callable[[int], float]:
    """A soft threshold for `Image.point`: 0 up to `low`, 255 from `high` on."""
    return lambda value: min(max((value - low) / (high - low), 0.0), 1.0) * 255


def handwritten(rng: random.Random, digit: Digit, height: int) -> Image.Image:
    """The digit as a mask of ink, `height` pixels high, with random pen, slant, rotation and width.

    The mask is cropped to the ink, with a margin of 4 pixels on each side.
    """
    field = stroke_field(digit)
    pen = rng.uniform(20, 68)  # higher is thinner
    slant = rng.uniform(-0.12, 0.34)  # handwriting leans to the right
    turn = radians(rng.uniform(-10, 10))
    stretch = rng.uniform(0.85, 1.25)
    # Output to input, about the centre: x' = x cos + y (slant + sin), y' = -x sin + y cos.
    a, b, d, e = cos(turn), slant + sin(turn), -sin(turn), cos(turn)
    half = field.width / 2
    matrix = (a, b, half * (1 - a - b), d, e, half * (1 - d - e))
    bicubic = Image.Resampling.BICUBIC
    mask = field.transform(field.size, Image.Transform.AFFINE, matrix, bicubic)
    mask = mask.point(_ramp(pen, pen + 40))
    ink = mask.point([0] * INK + [255] * (256 - INK))
    left, top, right, bottom = ink.getbbox() or (0, 0, *mask.size)
    width = round((right - left) / (bottom - top) * height * stretch)
    width = min(max(width, 8), 2 * height)  # at most 132, so that it fits into every scene
    resized = _resize(mask.crop((left, top, right, bottom)), (width, height))
    framed = Image.new("L", (width + 8, height + 8))
    framed.paste(resized, (4, 4))
    return framed
