"""Images and their boxes, collected one by one from an export, as a data set."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Boxes, Dataset, ImageId
from mini_fsod.data.folder import unique_ids
from mini_fsod.data.problems import Report
from mini_fsod.data.text import is_text, score_of, shown
from mini_fsod.limits import BOXES, CLASSES, IMAGES

NO_SIZE = (0, 0)


class Collected:
    """What has been read of a file in which each record is an image with its boxes."""

    def __init__(self, kind: str, root: Path, report: Report) -> None:
        self.kind, self.root, self.report = kind, root, report
        self.files: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.sets: dict[str, list[int]] = {}  # image set: its images
        self.unread: dict[str, None] = {}  # what the file contains beyond this, for people
        self.notes: list[str] = []
        self._classes: dict[str, int] = {}
        self._images, self._labels, self._records = array("q"), array("q"), array("q")
        self._xywh, self._scores = array("d"), array("d")

    @property
    def is_full(self) -> bool:
        """Whether there is more than a data set may have; reported once."""
        most = ((self.files, IMAGES), (self._images, BOXES), (self._classes, CLASSES))
        if all(len(part) <= limit for part, limit in most):
            return False
        limits = f"{IMAGES:,} images, {BOXES:,} boxes or {CLASSES:,} classes"
        self.report("data-too-large", "", f"more than {limits}; the rest was not read")
        return True

    def declare(self, name: str) -> None:
        """A class of the file, in this order, with or without boxes."""
        if name and is_text(name):
            self._classes.setdefault(name, len(self._classes))

    def image(self, file: str, size: tuple[int, int], set_name: str = "") -> None:
        """The next image; the boxes that follow are its."""
        if set_name:
            self.sets.setdefault(set_name, []).append(len(self.files))
        self.files.append(file)
        self.sizes.append(size)

    def box(self, name: str, xywh: Sequence[float], where: str, score: Any = None) -> None:
        """A box of the last image; `where` is its record in messages."""
        name = name.strip()
        if not name or not is_text(name):
            self.report("name-wrong", where, f"the label {shown(name)} is empty or not Unicode")
            return
        self._images.append(len(self.files) - 1)
        self._labels.append(self._classes.setdefault(name, len(self._classes)))
        self._records.append(len(self._records) + 1)
        self._xywh.extend(xywh)
        self._scores.append(score_of(score))

    def dataset(self, unread: Sequence[str] = ()) -> Dataset:
        ids: tuple[ImageId, ...] = tuple(range(1, len(self.files) + 1))
        short_ids: tuple[ImageId, ...] = ()
        if len(set(self.files)) == len(self.files):
            ids, short_ids = unique_ids(self.files)
        return Dataset(
            kind=self.kind,
            root=self.root,
            classes=tuple(self._classes),
            category_ids=tuple(range(1, len(self._classes) + 1)),
            ids=ids,
            short_ids=short_ids,
            files=tuple(self.files),
            sizes=np.array(self.sizes, dtype=np.int64).reshape(-1, 2),
            boxes=Boxes.of(
                np.array(self._images, dtype=np.int64),
                np.array(self._xywh),
                np.array(self._labels, dtype=np.int64),
                record=np.array(self._records, dtype=np.int64),
                score=np.array(self._scores),
            ),
            sources=(self.report.file,) * len(self.files),
            subsets={n: np.array(i, dtype=np.int64) for n, i in self.sets.items()},
            unread=(*self.unread, *unread),
            notes=tuple(self.notes),
        )


def picture_name(given: str) -> str:
    """A picture's path or address in an export, as a name relative to a folder of pictures.

    /data/upload/3/a.jpg, C:\\photos\\a.jpg and s3://bucket/a.jpg keep their last parts: pictures
    are looked for by the longest end of the name.
    """
    plain = given.strip().replace("\\", "/").partition("://")
    path = (plain[2] or plain[0]).split("?")[0].split("#")[0] if plain[1] else plain[0]
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..", ".")]
    return "/".join(part for part in parts if not part.endswith(":"))
