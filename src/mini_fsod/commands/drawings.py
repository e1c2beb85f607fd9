"""The drawings of `mini predict --draw`: copies of the images with boxes, classes and scores.

Drawings carry a mark in their EXIF data, so that a later call overwrites drawings only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

from PIL import Image

from mini_fsod.data.pictures import PictureError, open_picture
from mini_fsod.draw import BASE_COLOUR, MANY_BOXES, NOVEL_COLOUR, draw_boxes
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder, mode, real, write_image
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores
from mini_fsod.predict import Picture, Prediction, upright

MIN_SIDE = 800  # pixels: smaller images are enlarged, so that captions do not cover them
MAX_ENLARGEMENT = 4
EXIF_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".avif")
SOFTWARE, MARK = 0x0131, "mini predict"  # EXIF tag and its value in drawings


def drawing_path(folder: Path, picture: Picture) -> Path:
    """Formats without EXIF data, such as BMP, become PNG."""
    name = picture.name
    return folder / (name if name.lower().endswith(EXIF_SUFFIXES) else f"{name}.png")


def refuse_overwriting(folder: Path, pictures: Sequence[Picture]) -> None:
    """Only older drawings may be overwritten, and only if they are not among the images."""
    if mode(folder) and not is_folder(folder):
        raise UserError(f"{folder} is not a folder.", "Choose another folder for --draw.")
    sources = {real(picture.path) for picture in pictures}
    for picture in pictures:
        target = drawing_path(folder, picture)
        if mode(target) and (real(target) in sources or not _is_drawing(target)):
            raise UserError(
                f"{target} exists and would be overwritten.", "Choose another folder for --draw."
            )


def _is_drawing(path: Path) -> bool:
    try:
        with open_picture(path) as image:
            return bool(image.getexif().get(SOFTWARE) == MARK)
    except PictureError:
        return False


def write_drawing(prediction: Prediction, labels: LabelMap, target: Path) -> None:
    """Draw novel classes with captions; base classes too, unless there are very many boxes."""
    is_novel = [name in labels.novel for name in prediction.names]
    image = upright(prediction.path)
    scale = min(ceil(MIN_SIDE / max(image.size)), MAX_ENLARGEMENT)
    if scale > 1:
        size = (scale * image.width, scale * image.height)
        image = image.resize(size, Image.Resampling.LANCZOS)
    drawn = draw_boxes(
        image,
        scale * prediction.xyxy,
        [
            f"{name} {prediction.scores[n]:.2f}" if is_novel[n] or n < MANY_BOXES else ""
            for n, name in enumerate(prediction.names)
        ],
        [NOVEL_COLOUR if novel else BASE_COLOUR for novel in is_novel],
    )
    exif = Image.Exif()
    exif[SOFTWARE] = MARK
    file_format = Image.registered_extensions()[target.suffix.lower()]
    write_image(target, drawn, file_format, exif=exif, quality=92)


@contextmanager
def in_threads() -> Iterator[Callable[..., None]]:
    """A function that submits calls to a thread pool with a short queue; errors are raised here."""
    queue_length = 2 * cores()
    waiting: deque[Future[None]] = deque()
    pool = ThreadPoolExecutor(cores())

    def submit(function: Callable[..., None], *arguments: Any) -> None:
        waiting.append(pool.submit(function, *arguments))
        while len(waiting) > queue_length:
            waiting.popleft().result()

    try:
        yield submit
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
