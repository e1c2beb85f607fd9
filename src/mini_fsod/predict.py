"""Detections of any image files and folders, computed as in the evaluation.

Images are turned as their EXIF orientation says; boxes are in pixels of the original image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mini_fsod.data.dataset import NO_BOXES, Floats, Ints
from mini_fsod.data.folder import pictures_below
from mini_fsod.data.pictures import PictureError, drawn_size, picture_size
from mini_fsod.detector.model import Detector
from mini_fsod.device import fast_bf16
from mini_fsod.errors import Problem, UserError
from mini_fsod.eval.inference import detect_all
from mini_fsod.files import is_folder, real
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import Pictures
from mini_fsod.loader.decode import Bytes, cores, decode
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once

CHUNK = 64  # images decoded at a time; 200 MiB at 800 x 1333, and as much again decoded ahead
BATCH = 8  # images per batch on a GPU


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
class Prediction:
    """The detections of one image, best first; N may be 0."""

    path: Path
    size: tuple[int, int]  # width, height, as viewers show it
    xywh: Floats  # (N, 4) x, y, width, height
    labels: Ints  # (N,) indices of the label map's classes
    scores: Floats  # (N,)
    names: tuple[str, ...]  # (N,) class names

    @property
    def xyxy(self) -> Floats:
        """Boxes (N, 4) as left, top, right, bottom."""
        return np.concatenate([self.xywh[:, :2], self.xywh[:, :2] + self.xywh[:, 2:]], axis=1)

    def above(self, score: float) -> Prediction:
        """Only the detections with at least this score."""
        count = int((self.scores >= score).sum())
        kept = (self.xywh[:count], self.labels[:count], self.scores[:count], self.names[:count])
        return Prediction(self.path, self.size, *kept)


def pictures_of(
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


def predict(
    detector: Detector, labels: LabelMap, paths: Sequence[Path], device: torch.device
) -> Iterator[Prediction | Unreadable]:
    """Yield the detections of each image, in order, or `Unreadable`.

    The detector is on the device. Threads decode the next images while it runs.
    """
    test = detector.settings.test

    def read(path: Path) -> _Decoded | Unreadable:
        try:
            size = _image_size(path)
            return _Decoded(path, decode(path, test.min_size, test.max_size), size)
        except UserError as error:
            return Unreadable(path, error.what.removeprefix(f"{path}: "))

    pool = ThreadPoolExecutor(cores())
    try:
        ahead = pool.map(read, paths[:CHUNK])
        for start in range(0, len(paths), CHUNK):
            chunk = list(ahead)
            ahead = pool.map(read, paths[start + CHUNK : start + 2 * CHUNK])
            decoded = [image for image in chunk if isinstance(image, _Decoded)]
            predictions = iter(_detect(detector, labels, decoded, device)) if decoded else iter(())
            for image in chunk:
                yield image if isinstance(image, Unreadable) else next(predictions)
    finally:
        pool.shutdown(cancel_futures=True)


def upright(path: Path) -> Image.Image:
    """The image in full size, turned as EXIF says, RGB; UserError if it cannot be read."""
    largest = max(_image_size(path))
    return Image.fromarray(decode(path, largest, largest))


@dataclass(frozen=True, slots=True, eq=False)
class _Decoded:
    path: Path
    pixels: Bytes  # (H, W, 3), resized
    size: tuple[int, int]  # height, width of the original


def _image_size(path: Path) -> tuple[int, int]:
    """Height and width, turned as EXIF says."""
    try:
        width, height = drawn_size(*picture_size(path))
    except PictureError as error:
        raise UserError(f"{path}: {error.what}.", "Replace the file.") from None
    return height, width


def _detect(
    detector: Detector, labels: LabelMap, images: Sequence[_Decoded], device: torch.device
) -> list[Prediction]:
    kept = np.array([image.pixels.shape[:2] for image in images], dtype=np.int64)
    ends = np.cumsum(3 * kept.prod(axis=1))
    pictures = Pictures(
        files=tuple(str(image.path) for image in images),
        pixels=np.concatenate([image.pixels.reshape(-1) for image in images]),
        offset=np.concatenate([[0], ends[:-1]]),
        stored=kept,
        sizes=np.array([image.size for image in images], dtype=np.int64),
    )
    source = Resident(pictures, Annotations.of(NO_BOXES, len(images)), device)
    test, number = detector.settings.test, len(images)
    if device.type == "cpu":  # each image alone needs no padding
        plans = each_once(pictures.sizes, 1, test.min_size, test.max_size, most_canvases=number)
    else:
        plans = each_once(pictures.sizes, min(BATCH, number), test.min_size, test.max_size)
    found = detect_all(detector, source.batches, plans, device, bf16=fast_bf16(device))
    order = np.lexsort((-found.score, found.image))
    cuts = np.searchsorted(found.image[order], np.arange(1, len(images)))
    return [
        Prediction(
            path=image.path,
            size=(image.size[1], image.size[0]),
            xywh=found.xywh[rows],
            labels=found.label[rows],
            scores=found.score[rows],
            names=tuple(labels.classes[label] for label in found.label[rows].tolist()),
        )
        for image, rows in zip(images, np.split(order, cuts), strict=True)
    ]
