"""Pictures in, detections out: the path of the evaluation, for any files and folders.

A picture is meant as viewers show it, with the turn that EXIF asks for; boxes are in its own
pixels, however small the detector saw it.
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
from mini_fsod.errors import Problem, UserError
from mini_fsod.eval.inference import detect_all
from mini_fsod.files import is_folder, real
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import Pictures
from mini_fsod.loader.decode import Bytes, cores, decode
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import Plan, each_once

CHUNK = 64  # pictures decoded at a time; at 800 x 1333 some 200 MiB, and as much decoded ahead
BATCH = 8  # on a GPU


@dataclass(frozen=True, slots=True)
class Picture:
    path: Path
    name: str  # relative to the folder that was searched; no two pictures share it


@dataclass(frozen=True, slots=True)
class Unreadable:
    path: Path
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """The detections of a picture, best first."""

    path: Path
    size: tuple[int, int]  # width, height, as viewers show it
    xywh: Floats  # (N, 4) x, y, width, height
    labels: Ints  # (N,) places in the label map's classes
    scores: Floats  # (N,)
    names: tuple[str, ...]  # (N,) of the classes

    @property
    def xyxy(self) -> Floats:
        """(N, 4) left, top, right, bottom."""
        return np.concatenate([self.xywh[:, :2], self.xywh[:, :2] + self.xywh[:, 2:]], axis=1)

    def above(self, score: float) -> Prediction:
        """The detections of this score and above."""
        count = int((self.scores >= score).sum())
        kept = (self.xywh[:count], self.labels[:count], self.scores[:count], self.names[:count])
        return Prediction(self.path, self.size, *kept)


def pictures_of(
    places: Iterable[Path],
    without: Path | None = None,
    skip: Callable[[str], None] = lambda _: None,
) -> tuple[list[Picture], list[Unreadable]]:
    """The pictures that files and folders name, each once, and what cannot be searched.

    Folders are searched with all that is below, but for the folder `without`, if it is below too;
    `skip` is told of pictures of kinds that are not read. A file is taken whatever its name.
    """
    found: dict[Path, Picture] = {}
    failed: list[Unreadable] = []
    skipped = real(without) if without else None
    for place in places:
        if not is_folder(place):
            found.setdefault(_absolute(place), Picture(place, place.name))
            continue

        def tell(problem: Problem, folder: Path = place) -> None:
            failed.append(Unreadable(folder / problem.file, problem.what))

        names = pictures_below(place, tell, skip)
        if skipped and real(place) in skipped.parents:
            names = [n for n in names if skipped not in real(place / n).parents]
        if not names:
            failed.append(Unreadable(place, "no pictures in this folder"))
        for name in names:
            found.setdefault(_absolute(place / name), Picture(place / name, name))
    if len({p.name for p in found.values()}) < len(found):
        # from two folders: the names start where the folders part
        shared = os.path.commonpath([path.parent for path in found])
        named = {path: path.relative_to(shared).as_posix() for path in found}
        return [Picture(p.path, named[path]) for path, p in found.items()], failed
    return list(found.values()), failed


def _absolute(path: Path) -> Path:
    """Without dots, but with links: a link has a name of its own."""
    return Path(os.path.normpath(path.absolute()))


def predict(
    detector: Detector, labels: LabelMap, paths: Sequence[Path], device: torch.device
) -> Iterator[Prediction | Unreadable]:
    """The detections of each picture, in this order; a picture that cannot be read is told of.

    The detector is on the device. Pictures are decoded in threads (decoders let go of the lock),
    the next ones while the detector is at work.
    """
    test = detector.settings.test

    def look(path: Path) -> _Seen | Unreadable:
        try:
            own = _own_size(path)
            return _Seen(path, decode(path, test.min_size, test.max_size), own)
        except UserError as error:
            return Unreadable(path, error.what.removeprefix(f"{path}: "))

    pool = ThreadPoolExecutor(cores())
    try:
        ahead = pool.map(look, paths[:CHUNK])
        for start in range(0, len(paths), CHUNK):
            chunk = list(ahead)
            ahead = pool.map(look, paths[start + CHUNK : start + 2 * CHUNK])
            seen = [s for s in chunk if isinstance(s, _Seen)]
            done = iter(_detect(detector, labels, seen, device)) if seen else iter(())
            for s in chunk:
                yield s if isinstance(s, Unreadable) else next(done)
    finally:
        pool.shutdown(cancel_futures=True)


def upright(path: Path) -> Image.Image:
    """The whole picture as viewers show it, RGB. UserError where it cannot be read."""
    largest = max(_own_size(path))
    return Image.fromarray(decode(path, largest, largest))


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    path: Path
    pixels: Bytes  # (H, W, 3), reduced
    own: tuple[int, int]  # height, width


def _own_size(path: Path) -> tuple[int, int]:
    """Height and width as viewers show it."""
    try:
        width, height = drawn_size(*picture_size(path))
    except PictureError as error:
        raise UserError(f"{path}: {error.what}.", "Put a sound picture there.") from None
    return height, width


def _detect(
    detector: Detector, labels: LabelMap, seen: Sequence[_Seen], device: torch.device
) -> list[Prediction]:
    kept = np.array([s.pixels.shape[:2] for s in seen], dtype=np.int64)
    ends = np.cumsum(3 * kept.prod(axis=1))
    pictures = Pictures(
        files=tuple(str(s.path) for s in seen),
        pixels=np.concatenate([s.pixels.reshape(-1) for s in seen]),
        offset=np.concatenate([[0], ends[:-1]]),
        kept=kept,
        own=np.array([s.own for s in seen], dtype=np.int64),
    )
    source = Resident(pictures, Annotations.of(NO_BOXES, len(seen)), device)
    plans = _plans(detector, pictures.own, device)
    found = detect_all(detector, source.batches, plans, device, bf16=device.type == "cuda")
    order = np.lexsort((-found.score, found.image))
    cuts = np.searchsorted(found.image[order], np.arange(1, len(seen)))
    return [
        Prediction(
            path=s.path,
            size=(s.own[1], s.own[0]),
            xywh=found.xywh[mine],
            labels=found.label[mine],
            scores=found.score[mine],
            names=tuple(labels.classes[label] for label in found.label[mine].tolist()),
        )
        for s, mine in zip(seen, np.split(order, cuts), strict=True)
    ]


def _plans(detector: Detector, own: Ints, device: torch.device) -> list[Plan]:
    """On a CPU every picture by itself, on the smallest canvas: batches would only be padding."""
    test = detector.settings.test
    if device.type == "cpu":
        return each_once(own, 1, test.min_size, test.max_size, most_canvases=len(own))
    return each_once(own, min(BATCH, len(own)), test.min_size, test.max_size)
