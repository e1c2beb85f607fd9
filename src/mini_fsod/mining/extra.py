"""Extra images without annotations, mined beside the training images (`mine.extra`).

They have candidates, thresholds, an N and files of their own, in the subfolder `extra` of the stage
`mine`. Nobody has annotated base objects there, so possible ones are stored too
(`mining.base_objects`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod import console
from mini_fsod.config.schema import Mine
from mini_fsod.data.dataset import Bools, Dataset
from mini_fsod.data.folder import pictures_below, read_folder, unread_formats
from mini_fsod.data.pictures import PictureError, picture_sizes
from mini_fsod.errors import DataError, UserError
from mini_fsod.files import is_file, is_folder, real
from mini_fsod.labels import LabelMap
from mini_fsod.mining.base_objects import BASE_OBJECTS
from mini_fsod.mining.mined_images import MinedImages
from mini_fsod.mining.pool_io import CANDIDATES, POOL
from mini_fsod.remote import as_path
from mini_fsod.runs.data import RunData
from mini_fsod.runs.pool import mined_folder
from mini_fsod.runs.run import Run
from mini_fsod.runs.store import METRICS, Figures, read_figures

EXTRA = "extra"  # the subfolder, and the key in the figures of the stage
FILES = (POOL, CANDIDATES, BASE_OBJECTS)  # that re-training needs


def figures_in(folder: Path) -> dict[str, Any]:
    """The figures of the stage `mine` in its folder; none where they were not copied."""
    return read_figures(folder / METRICS, Figures) or {}


def check_extra(section: Mine) -> None:
    """Raise a UserError where `mine.extra` cannot work, alone or with other keys."""
    images = section.extra
    if section.pool is not None:
        images = _images_of_given_pool(section.pool, images)
    elif images is None and section.extra_only:
        raise UserError(
            "mine.extra_only is true, but there are no extra images.",
            "Set mine.extra to their folder, or mine.extra_only to false.",
        )
    elif images is not None and section.detections is not None:
        raise UserError(
            f"mine.detections ({section.detections}) has detections on the training images only; "
            f"they cannot be used to mine the images of mine.extra ({images}).",
            "Leave mine.detections or mine.extra out.",
        )
    if images is not None:
        _check_folder(images)


def _images_of_given_pool(given: Path, extra: Path | None) -> Path | None:
    """The folder of the extra images that a given pool was mined in; None for a pool without."""
    mined = mined_folder(given)
    known = _images_folder(figures_in(mined))
    if known is None and not is_folder(mined / EXTRA):
        if extra is not None:
            raise UserError(
                f"{given}: this pool was mined without extra images.",
                "Leave mine.extra or mine.pool out: a given pool is not mined again.",
            )
        return None
    fix = "Copy it from where the pool was mined, or leave mine.pool out."
    check_extra_files(mined / EXTRA, fix)
    if extra is None and known is None:
        raise UserError(
            f"{mined / EXTRA}: the folder of the extra images is not known.",
            "Set mine.extra to it.",
        )
    return extra or as_path(str(known))


def _images_folder(figures: dict[str, Any]) -> str | None:
    """The folder of the extra images, by the figures of the stage `mine`."""
    folder: str | None = figures.get(EXTRA, {}).get("folder")
    return folder


def _check_folder(images: Path) -> None:
    if not is_folder(images):
        raise UserError(f"{images}: there is no such folder.", "Check mine.extra.")


def check_extra_files(folder: Path, fix: str) -> None:
    for name in FILES:
        if not is_file(folder / name):
            raise UserError(f"{folder / name}: the file is missing.", fix)


def extra_images(run_data: RunData, images: Path, files: Collection[str] | None = None) -> Dataset:
    """The images of a folder that are not the data's own or the shots', with the classes of the
    run.

    Annotations in the folder are not read. The notes of the result say what was left out. With
    `files`, the names of images that a scan found readable, it is exactly these.
    """
    _check_folder(images)
    found, problems = read_folder(images)
    if problems:
        raise DataError(problems)
    if files is not None:
        return _like_mined(found.select(_indices(images, found, files)), run_data.mined)
    unread: list[str] = []
    pictures_below(images, problems.append, unread.append)
    kinds = unread_formats(unread)
    # the test images, above all; and those of shots, whose boxes would be mined again
    known_data = (run_data.whole, run_data.novel_shots)
    ours = {real(data.path(i)) for data in known_data for i in range(len(data))}
    new = [i for i in range(len(found)) if real(found.path(i)) not in ours]
    damaged = _damaged(tuple(found.path(i) for i in new))
    sound = [i for i in new if found.path(i) not in damaged]
    if not sound:
        why = "; ".join(("there is no image in it", *kinds))
        if new:
            why = "none of its images can be read"
        elif len(found):
            why = "all of its images are in the data set, or are those of shots"
        raise UserError(f"{images}: no image to mine: {why}.", "Check mine.extra.")
    notes = [f"{images}: {kind}" for kind in kinds]
    if len(new) < len(found):
        known = console.count(len(found) - len(new), "image")
        notes.append(f"{images}: {known} of the data set or of shots left out")
    if damaged:
        count = console.count(len(damaged), "unreadable image")
        notes.append(f"{images}: {count} left out: {min(damaged).name} ...")
    return replace(_like_mined(found.select(sound), run_data.mined), notes=tuple(notes))


def _like_mined(found: Dataset, data: Dataset) -> Dataset:
    """The images, with the classes of `data`, and its kind, which decides how they are numbered."""
    return replace(found, kind=data.kind, classes=data.classes, category_ids=data.category_ids)


def _indices(images: Path, found: Dataset, files: Collection[str]) -> list[int]:
    index = {file: i for i, file in enumerate(found.files)}
    gone = [file for file in files if file not in index]
    if gone:
        raise UserError(
            f"{images}: {console.count(len(gone), 'scanned image')} missing, such as {gone[0]}.",
            "Put the images back, or rename the folder: it is then scanned again.",
        )
    return [index[file] for file in files]


@lru_cache(maxsize=1)  # checked before mining, by it, and by re-training
def _damaged(paths: tuple[Path, ...]) -> set[Path]:
    """Images that cannot be read: of thousands from anywhere some always are."""
    with console.progress("checking images", len(paths)) as progress:
        sizes = picture_sizes(paths, decode=True, progress=progress)
    return {path for path, s in zip(paths, sizes, strict=True) if isinstance(s, PictureError)}


def no_labels(data: Dataset, labels: LabelMap) -> Bools:
    """(I, B): all labels of base classes are missing."""
    return np.ones((len(data), len(labels.base)), dtype=np.bool_)


def read_extra(run: Run) -> MinedImages | None:
    """What was mined in extra images, with the run's own pool; None without `mine.extra`."""
    mined, labels = run.folder("mine"), run.data.labels
    images = _images_folder(figures_in(mined))
    if images is None:
        return None
    folder = mined / EXTRA
    check_extra_files(folder, f"Delete the folder {mined} and run again.")
    data = extra_images(run.data, as_path(images))
    return MinedImages.read(data, run.extra_pool, folder, labels, no_labels(data, labels))
