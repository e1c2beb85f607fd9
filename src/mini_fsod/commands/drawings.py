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
from mini_fsod.draw import BASE_COLOUR, MANY_BOXES, NOVEL_COLOUR, contact_sheet, draw_boxes
from mini_fsod.errors import UserError
from mini_fsod.files import is_folder, mode, real, write_image
from mini_fsod.labels import LabelMap
from mini_fsod.loader.decode import cores, decode
from mini_fsod.predict.pictures import Picture, upright
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.video import is_video

MIN_SIDE = 800  # pixels: smaller images are enlarged, so that captions do not cover them
MAX_ENLARGEMENT = 4
EXIF_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".avif")
SHEET_CELLS, SHEET_COLUMNS, SHEET_CELL = 24, 6, 320  # of the overview: pictures, columns, pixels
SOFTWARE, MARK = 0x0131, "mini predict"  # EXIF tag and its value in drawings


def drawing_path(folder: Path, picture: Picture) -> Path:
    """Formats without EXIF data, such as BMP, become PNG; videos become MP4."""
    name = picture.name
    if is_video(picture.path):
        return folder / (name if name.lower().endswith(".mp4") else f"{name}.mp4")
    return folder / (name if name.lower().endswith(EXIF_SUFFIXES) else f"{name}.png")


def refuse_overwriting(folder: Path, pictures: Sequence[Picture]) -> None:
    """Only older drawings may be overwritten, and only if they are not among the images."""
    if mode(folder) and not is_folder(folder):
        raise UserError(f"{folder} is not a folder.", "Choose another folder for --draw.")
    sources = {real(picture.path) for picture in pictures}
    for picture in pictures:
        target = drawing_path(folder, picture)
        drawn = is_video(picture.path) or _is_drawing(target)
        if mode(target) and (real(target) in sources or not drawn):
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
    """Draw the detections into a copy of their picture; small pictures are enlarged."""
    assert prediction.path is not None
    image = upright(prediction.path)
    scale = min(ceil(MIN_SIDE / max(image.size)), MAX_ENLARGEMENT)
    size = (scale * image.width, scale * image.height)
    exif = Image.Exif()
    exif[SOFTWARE] = MARK
    file_format = Image.registered_extensions()[target.suffix.lower()]
    drawn = drawn_at(image, size, prediction, labels)
    write_image(target, drawn, file_format, exif=exif, quality=92)


def drawn_at(
    image: Image.Image, size: tuple[int, int], prediction: Prediction, labels: LabelMap
) -> Image.Image:
    """The picture in this size with its detections.

    Novel classes have captions; base classes too, unless there are very many boxes.
    """
    is_novel = [name in labels.novel for name in prediction.names]
    if size != image.size:
        image = image.resize(size, Image.Resampling.LANCZOS)
    return draw_boxes(
        image,
        size[0] / prediction.size[0] * prediction.boxes,
        [
            f"{name} {prediction.scores[n]:.2f}" if is_novel[n] or n < MANY_BOXES else ""
            for n, name in enumerate(prediction.names)
        ],
        [NOVEL_COLOUR if novel else BASE_COLOUR for novel in is_novel],
    )


def write_overview(
    path: Path, predictions: Sequence[Prediction], labels: LabelMap, score: float
) -> None:
    """A PNG with up to SHEET_CELLS of the pictures and their detections, in the given order.

    Pictures with detections come first, spread evenly over all of them.
    """
    pictures = [p.above(score) for p in predictions if p.frame is None]
    filled = [p for p in pictures if len(p)]
    chosen = _spread(filled, SHEET_CELLS)
    chosen += _spread([p for p in pictures if not len(p)], SHEET_CELLS - len(chosen))
    cells, names = [], []
    for prediction in chosen:
        assert prediction.path is not None
        scale = min(SHEET_CELL / side for side in prediction.size)
        width, height = (max(1, round(scale * side)) for side in prediction.size)
        image = Image.fromarray(decode(prediction.path, max(width, height), 8 * SHEET_CELL))
        cells.append(drawn_at(image, (width, height), prediction, labels))
        names.append(prediction.path.name)
    title = f"{len(filled):,} of {len(pictures):,} pictures have detections of {score:g} or more"
    legend = [("new classes", NOVEL_COLOUR), ("base classes", BASE_COLOUR)][
        : 2 if labels.base else 1
    ]
    columns = min(SHEET_COLUMNS, max(1, len(cells)))
    write_image(path, contact_sheet(cells, columns, (SHEET_CELL, SHEET_CELL), title, legend))


def _spread(items: Sequence[Prediction], count: int) -> list[Prediction]:
    """At most `count` of them, evenly spread."""
    wanted = min(count, len(items))
    return [items[n * len(items) // wanted] for n in range(wanted)]


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
