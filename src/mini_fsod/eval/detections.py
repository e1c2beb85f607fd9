"""Detections as arrays, and reading them from a COCO results file of any tool."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Floats, ImageId, Ints
from mini_fsod.data.json_stream import JsonError, RepeatedKey, elements, first_keys
from mini_fsod.data.problems import Report
from mini_fsod.data.text import shown
from mini_fsod.errors import DataError, nearest
from mini_fsod.files import real
from mini_fsod.limits import DETECTIONS, PROBLEMS_OF_A_FILE

HINTS = 10  # most "Did you mean" hints: they are slow to find


@dataclass(frozen=True, slots=True, eq=False)
class DatasetDetections:
    """N detections in the order of the file, which breaks ties between equal scores."""

    image: Ints  # (N,) index of the image in the data set
    label: Ints  # (N,) index into Dataset.classes
    xywh: Floats  # (N, 4) x, y, width, height in pixels from 0, unclipped
    score: Floats  # (N,) any finite numbers; only their order matters

    def __len__(self) -> int:
        return len(self.image)

    @classmethod
    def joined(cls, parts: Sequence[DatasetDetections]) -> DatasetDetections:
        """The detections of several parts of a data set, one after the other."""
        names = ("image", "label", "xywh", "score")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def take(self, chosen: Ints | Bools) -> DatasetDetections:
        return DatasetDetections(
            self.image[chosen], self.label[chosen], self.xywh[chosen], self.score[chosen]
        )

    @classmethod
    def of(cls, image: Any, label: Any, xywh: Any, score: Any) -> DatasetDetections:
        """Detections from columns: lists or arrays of any numeric type."""
        images = np.asarray(image, dtype=np.int64)
        return cls(
            image=images,
            label=np.asarray(label, dtype=np.int64),
            xywh=np.asarray(xywh, dtype=np.float64).reshape(len(images), 4),
            score=np.asarray(score, dtype=np.float64),
        )


def read_detections(path: Path, dataset: Dataset) -> DatasetDetections:
    """A list of {"image_id", "category_id" or "category", "bbox": [x, y, w, h], "score"}.

    `image_id` and `category_id` are those of the data set (`Dataset.ids`, `Dataset.category_ids`),
    `category` is a class name; other keys are ignored. The output of `mini predict --json` works
    too. Raises a DataError with all wrong records.
    """
    return _Reader(path, dataset).read()


class _Reader:
    """Turns records into detections, and collects all problems of each."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        self.path = path
        self.dataset = dataset
        self.image_of = {id_: i for i, id_ in enumerate(dataset.ids)}
        # a file stem may be the name of pictures in several folders
        self.ambiguous = {id_ for id_, n in Counter(dataset.ids).items() if n > 1}
        self.number_of = {number: c for c, number in enumerate(dataset.category_ids)}
        self.name_of = {name: c for c, name in enumerate(dataset.classes)}
        self.class_fix = f"use a class of the data: {', '.join(dataset.classes[:20])}"
        self.sets = _sets_of_short_ids(dataset)
        self.hints: dict[str, str] = {}
        self.place = ""  # of the record, in messages
        self.report = Report(str(path))
        self.images, self.labels = array("q"), array("q")
        self.boxes, self.scores = array("d"), array("d")

    def read(self) -> DatasetDetections:
        try:
            for index, record in enumerate(elements(self.path)):
                self.place = f"detection {index} (counted from 0)"
                if isinstance(record, dict) and isinstance(record.get("detections"), list):
                    self._read_predictions(index, record)
                else:
                    self._read_record(record)
                if len(self.scores) > DETECTIONS:
                    raise JsonError(f"[{index}]", f"more than {DETECTIONS:,} detections")
                if self.report.counts and self.report.counts.total() > PROBLEMS_OF_A_FILE:
                    self.place = ""
                    fix = "write the results again"
                    self._report("too many", "too many problems, stopped reading", fix)
                    break
        except OSError as error:
            self.place = ""
            what = f"cannot be read ({error.strerror})"
            self._report("unreadable", what, "give the path of a JSON file of results")
        except JsonError as error:
            self.place = f"record {error.record}" if error.record else ""
            fix = 'write a list of {"image_id", "category_id", "bbox", "score"}'
            self._report("not JSON", error.what, fix + self._other_key())
        if self.report.kept:
            raise DataError(self.report.problems)
        return DatasetDetections.of(
            *map(np.array, (self.images, self.labels, self.boxes, self.scores))
        )

    def _other_key(self) -> str:
        """Where the detections of a file that is an object may be."""
        with suppress(OSError, JsonError):
            if "annotations" in first_keys(self.path, {"annotations"}, 1):
                return '; or use the list under "annotations", with a "score" in each record'
        return ""

    def _read_predictions(self, index: int, record: dict[str, Any]) -> None:
        """The detections of one picture, from `mini predict --json`."""
        path = Path(str(record.get("file")))
        by_path, by_name = self.pictures
        image = by_path.get(str(real(path)), by_name.get(path.name))
        if image is None:
            self.place = f"record {index}"
            what = f"the data has no picture {shown(str(path))}"
            fix = "predict on the pictures of the data set, or of the image set that is scored"
            self._report("unknown image", what, fix)
            return
        for n, found in enumerate(record["detections"]):
            self.place = f"record {index}, detection {n} (counted from 0)"
            self._read_record(found | {"image_id": image} if type(found) is dict else found)

    @cached_property
    def pictures(self) -> tuple[dict[str, ImageId], dict[str, ImageId]]:
        """Ids by path, and by name where that is unique."""
        paths = [self.dataset.path(i) for i in range(len(self.dataset))]
        ids = self.dataset.ids
        names = Counter(path.name for path in paths)
        by_name = {p.name: i for p, i in zip(paths, ids, strict=True) if names[p.name] == 1}
        return {str(real(path)): i for path, i in zip(paths, ids, strict=True)}, by_name

    def _read_record(self, record: Any) -> None:
        if not isinstance(record, dict):
            fix = 'write {"image_id", "category_id", "bbox", "score"} for each detection'
            self._report("not an object", f"{shown(record)} is not an object", fix)
            return
        if isinstance(record, RepeatedKey):
            what = f"the key {shown(record.key)} is given twice"
            self._report("repeated key", what, "remove one of the two")
            return
        for key in ("image_id", "bbox", "score"):
            if key not in record:
                fix = f'add "{key}" to each detection'
                self._report("missing key", f'"{key}" is missing', fix)
        image = self._image(record["image_id"]) if "image_id" in record else -1
        label = self._label(record.get("category_id"), record.get("category"))
        box: Any = record.get("bbox")
        score: Any = record.get("score")
        if "bbox" in record:
            self._check_box(box)
        if "score" in record and not _is_finite(score):
            what = f"score is {shown(score)}, not a finite number"
            self._report("wrong score", what, "use a number")
        if not self.report.kept:  # else there is no result
            self.images.append(image)
            self.labels.append(label)
            self.boxes.extend(box)
            self.scores.append(score)

    def _report(self, kind: str, what: str, fix: str) -> int:
        self.report(kind, self.place, what, fix)
        return -1

    def _image(self, key: Any) -> int:
        """The index of the image; -1 with a problem."""
        if type(key) not in (int, float, str):
            what = f"image_id is {shown(key)}, not a number or text"
            return self._report("unknown image", what, "use the ids of the images that are scored")
        if key in self.ambiguous:
            what = f"several images have the id {shown(key)}"
            return self._report("ambiguous image", what, "rename these pictures of the data set")
        if key in self.image_of:
            return self.image_of[key]
        if key in self.sets:
            *others, last = self.sets[key]
            listed = f"{', '.join(others)} and {last}" if others else last
            what = f"the id {shown(key)} is in {listed}"
            return self._report("ambiguous image", what, "choose an image set with --subset")
        what = f"the data has no image with the id {shown(key)}.{self._expected(key)}"
        fix = "score on the images of these detections, or remove them"
        return self._report("unknown image", what, fix)

    def _expected(self, key: int | float | str) -> str:
        ids = self.dataset.ids
        if not ids:
            return " It has no images."
        if isinstance(key, str) and isinstance(ids[0], str):
            return self._nearest(key, (str(i) for i in ids))
        if isinstance(key, str):
            return f" Its ids are numbers, such as {shown(ids[0])}."
        if isinstance(ids[0], str):
            padded = (i for i in ids if str(i).lstrip("0") == str(key))
            example = shown(next(padded, ids[0]))
            return f" Its ids are file names without suffix, such as {example}."
        return ""

    def _label(self, number: Any, name: Any) -> int:
        """The index of the class, given by number, by name, or both; -1 with a problem."""
        if number is None and name is None:
            what = '"category_id" or "category" is missing'
            return self._report("missing key", what, self.class_fix)
        labels = []
        if number is not None:
            if type(number) in (int, float) and number in self.number_of:
                labels.append(self.number_of[number])
            else:
                ids = ", ".join(map(str, self.dataset.category_ids[:20]))
                what = f"the data has no class with the category_id {shown(number)}"
                self._report("unknown class", what, f"use a category id of the data: {ids}")
        if name is not None:
            if isinstance(name, str) and name in self.name_of:
                labels.append(self.name_of[name])
            else:
                hint = self._nearest(name, self.dataset.classes) if isinstance(name, str) else ""
                what = f"the data has no class {shown(name)}.{hint}"
                self._report("unknown class", what, self.class_fix)
        if len(set(labels)) == 2:
            by_number = self.dataset.classes[labels[0]]
            what = f'category_id {shown(number)} is "{by_number}", but category is {shown(name)}'
            self._report("two classes", what, "give one of them, or the same class in both")
        return labels[0] if labels else -1

    def _check_box(self, box: Any) -> None:
        if not isinstance(box, list):
            what = f"bbox is {shown(box)}, not a list of four numbers"
        elif len(box) != 4:
            what = f"bbox has {len(box):,} values instead of 4"
        elif not all(map(_is_finite, box)):
            odd = next(v for v in box if not _is_finite(v))
            what = f"bbox contains {shown(odd)}, not a finite number"
        elif box[2] < 0 or box[3] < 0:
            what = f"bbox has a negative size: {shown(box[2])} x {shown(box[3])}"
        else:
            return
        self._report("wrong box", what, "write bbox as [x, y, width, height] in pixels")

    def _nearest(self, word: str, known: Iterable[str]) -> str:
        if word not in self.hints and len(self.hints) < HINTS and len(word) < 100:
            self.hints[word] = nearest(word, known)
        return self.hints.get(word, "")


def _sets_of_short_ids(dataset: Dataset) -> dict[ImageId, list[str]]:
    """{short id: image sets in which it is unique}."""
    sets: dict[ImageId, list[str]] = {}
    for name, part in dataset.subsets.items():
        ids = [dataset.short_ids[i] for i in part.tolist()] if dataset.short_ids else []
        if len(set(ids)) == len(ids):
            for key in ids:
                sets.setdefault(key, []).append(name)
    return sets


def _is_finite(value: Any) -> bool:
    """Whether it is a finite number; `true` and integers too large for a float are not."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
