"""Pictures for the page: a box with its surroundings, or a whole picture, as JPEG.

Only pictures of a fixed list are served, by their number. One whose file is a link to a place
outside of the data's folder is refused.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from mini_fsod.data.pictures import PictureError, drawn_size, picture_size
from mini_fsod.errors import UserError
from mini_fsod.files import real
from mini_fsod.loader.decode import Bytes, decode

CONTEXT = 2.2  # sides of the view, in sides of the box
LEAST_VIEW = 96  # pixels of the picture that a view shows at least
ASPECT = 4 / 3  # width to height of a view
DECODED_SIDE = 4096  # of larger pictures, a smaller version is shown
DECODED_BYTES = 384 << 20  # of decoded pictures that are kept
ENCODED_BYTES = 96 << 20  # of JPEGs that are kept
QUALITY = 86  # of JPEG
LEAST_SIDE, MOST_SIDE = 64, 2048  # of a JPEG

Value = TypeVar("Value")


class View(NamedTuple):
    """A part of a picture, in its pixels."""

    x: int
    y: int
    width: int
    height: int


def view_of(box: Sequence[float], size: tuple[int, int]) -> View:
    """The box with its surroundings, inside a picture of a size (width, height)."""
    x, y, width, height = box
    side = max(width * CONTEXT, height * CONTEXT * ASPECT, LEAST_VIEW)
    w, h = min(round(side), size[0]), min(round(side / ASPECT), size[1])
    left = min(max(round(x + width / 2 - w / 2), 0), size[0] - w)
    top = min(max(round(y + height / 2 - h / 2), 0), size[1] - h)
    return View(left, top, max(w, 1), max(h, 1))


class Gallery:
    """The pictures of a review: sizes, and JPEGs of parts of them."""

    def __init__(self, paths: Sequence[Path], roots: Sequence[Path], links: bool = False) -> None:
        """`paths` of the pictures, which must lie in one of `roots`; `links` may leave them."""
        self._paths = paths
        self._roots = [real(root) for root in roots]
        self._links = links
        self._real = lru_cache(maxsize=None)(real)  # of folders, of which there are few
        self._decoded: _Kept[Bytes] = _Kept(DECODED_BYTES, lambda pixels: pixels.nbytes)
        self._encoded: _Kept[bytes] = _Kept(ENCODED_BYTES, len)
        self._sizes: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def size(self, n: int, declared: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Width and height that boxes of a picture refer to; a UserError if it cannot be shown."""
        if n not in self._sizes:
            path = self._checked(n)
            try:
                self._sizes[n] = drawn_size(*picture_size(path), declared)
            except PictureError as error:
                raise UserError(f"{path.name}: {error.what}.") from None
        return self._sizes[n]

    def jpeg(self, n: int, view: View | None, side: int, declared: tuple[int, int]) -> bytes:
        """A view of a picture, or all of it, with a longer side of at most `side` pixels."""
        side = min(max(side, LEAST_SIDE), MOST_SIDE)
        return self._encoded.get((n, view, side), lambda: self._encode(n, view, side, declared))

    def outside(self) -> int:
        """How many pictures are links to places outside, and not shown."""
        return sum(not self._is_inside(path) for path in self._paths)

    def _encode(self, n: int, view: View | None, side: int, declared: tuple[int, int]) -> bytes:
        width, height = self.size(n, declared)
        pixels = self._decoded.get(n, lambda: self._decode(n, (width, height)))
        scale = pixels.shape[1] / width
        x, y, w, h = view or View(0, 0, width, height)
        part = pixels[
            round(y * scale) : max(round((y + h) * scale), 1),
            round(x * scale) : max(round((x + w) * scale), 1),
        ]
        picture = Image.fromarray(np.ascontiguousarray(part))
        factor = side / max(picture.size)
        if factor < 1:  # the browser enlarges
            shown = max(round(picture.width * factor), 1), max(round(picture.height * factor), 1)
            picture = picture.resize(shown, Image.Resampling.BICUBIC, reducing_gap=2.0)
        content = io.BytesIO()
        picture.save(content, "JPEG", quality=QUALITY)
        return content.getvalue()

    def _decode(self, n: int, size: tuple[int, int]) -> Bytes:
        return decode(self._checked(n), DECODED_SIDE, DECODED_SIDE, (size[1], size[0]))

    def _checked(self, n: int) -> Path:
        path = self._paths[n]
        if not self._is_inside(path):
            raise UserError(
                f"{path.name}: is a link to a place outside of the data's folder.",
                "Start with --links to show such pictures.",
            )
        return path

    def _is_inside(self, path: Path) -> bool:
        if self._links:
            return True
        folder = self._real(path.parent)
        target = real(path) if path.is_symlink() else folder / path.name
        return any(root in target.parents for root in self._roots)


class _Kept(Generic[Value]):
    """The values used last, up to a number of bytes; safe in threads."""

    def __init__(self, most: int, size: Callable[[Value], int]) -> None:
        self._most, self._size, self._total = most, size, 0
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()
        self._making: dict[Hashable, Lock] = {}

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of a key, made by one thread while others that need it wait."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if key in self._values:
                    return self._values[key]
            try:
                value = make()
            finally:
                with self._lock:
                    self._making.pop(key, None)
            with self._lock:
                self._values[key] = value
                self._total += self._size(value)
                while self._total > self._most and len(self._values) > 1:
                    _, old = self._values.popitem(last=False)
                    self._total -= self._size(old)
            return value
