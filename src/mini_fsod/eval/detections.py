"""Detections as arrays, and reading them from a COCO results file of any tool."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset, Floats, ImageId, Ints
from mini_fsod.data.text import read_text, shown
from mini_fsod.errors import DataError, Problem, nearest
from mini_fsod.files import real

NOT_GIVEN, UNKNOWN, AMBIGUOUS = -2, -1, -3  # instead of an index
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

    def take(self, chosen: Ints | Bools) -> DatasetDetections:
        return DatasetDetections(
            self.image[chosen], self.label[chosen], self.xywh[chosen], self.score[chosen]
        )

    @classmethod
    def of(cls, image: Any, label: Any, xywh: Any, score: Any) -> DatasetDetections:
        """From columns: lists or arrays of any numeric type."""
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
    records = _flattened(_load(path), str(path), dataset)
    image_of = _image_indices(dataset.ids)
    detections = _fast(records, image_of, dataset)
    if detections is None:
        problems = list(_Check(str(path), dataset, image_of).problems(records))
        assert problems, "_fast and _Check disagree"
        raise DataError(problems)
    return detections


def _load(path: Path) -> list[Any]:
    def error(kind: str, what: str, fix: str) -> DataError:
        return DataError([Problem(kind, str(path), "", what, fix)])

    try:
        value = json.loads(read_text(path))
    except OSError as failure:
        what = f"cannot be read ({failure.strerror})"
        raise error("unreadable", what, "give the path of a JSON file of results") from None
    except RecursionError:
        raise error("not JSON", "nested too deep", "write a plain list of detections") from None
    except ValueError as failure:  # also a number with thousands of digits
        raise error("not JSON", f"not JSON: {failure}", "write the results as JSON") from None
    if not isinstance(value, list):
        has_annotations = isinstance(value, dict) and isinstance(value.get("annotations"), list)
        fix = (
            'use the list under "annotations", with a "score" in each record'
            if has_annotations
            else 'write a list of {"image_id", "category_id", "bbox", "score"}'
        )
        raise error("not a list", f"{shown(value)} instead of a list of detections", fix)
    return value


def _flattened(records: list[Any], file: str, dataset: Dataset) -> list[Any]:
    """Records of `mini predict`, {"file", "detections": [...]}, as a list of detections.

    A picture is found by its path, or by its name if that is unique.
    """
    if not all(isinstance(r, dict) and isinstance(r.get("detections"), list) for r in records):
        return records
    paths = [dataset.path(i) for i in range(len(dataset))]
    names = Counter(path.name for path in paths)
    by_name = {
        path.name: i for path, i in zip(paths, dataset.ids, strict=True) if names[path.name] == 1
    }
    by_path = {str(real(path)): i for path, i in zip(paths, dataset.ids, strict=True)}
    flat, problems = [], []
    for number, record in enumerate(records):
        path = Path(str(record.get("file")))
        image = by_path.get(str(real(path)), by_name.get(path.name))
        if image is None:
            what = f"the data has no picture {shown(str(path))}"
            fix = "predict on the pictures of the data set, or of the image set that is scored"
            problems.append(Problem("unknown image", file, f"record {number}", what, fix))
            continue
        flat += [
            found | {"image_id": image} if isinstance(found, dict) else found
            for found in record["detections"]
        ]
    if problems:
        raise DataError(problems)
    return flat


def _fast(
    records: list[Any], image_of: Mapping[ImageId, int], dataset: Dataset
) -> DatasetDetections | None:
    """The records as arrays; None if any of them is wrong, without saying which."""
    if not _types(records) <= {dict}:
        return None
    try:
        ids = [r["image_id"] for r in records]
        boxes = [r["bbox"] for r in records]
        scores = [r["score"] for r in records]
    except KeyError:
        return None
    numbers = [r.get("category_id") for r in records]
    names = [r.get("category") for r in records]
    if not (
        _types(ids) <= {int, float, str}
        and _types(numbers) <= {int, float, type(None)}
        and _types(names) <= {str, type(None)}
        and _types(scores) <= {int, float}
        and _types(boxes) <= {list}
        and set(map(len, boxes)) <= {4}
        and _types(chain.from_iterable(boxes)) <= {int, float}
    ):
        return None
    n = len(records)
    try:
        xywh = np.fromiter(chain.from_iterable(boxes), np.float64, 4 * n).reshape(n, 4)
        score = np.fromiter(scores, np.float64, n)
    except OverflowError:  # an integer too large for a float
        return None
    image = np.fromiter((image_of.get(i, UNKNOWN) for i in ids), np.int64, n)
    number_of = _label_indices(dataset.category_ids)
    name_of = _label_indices(dataset.classes)
    by_number = np.fromiter((number_of.get(c, UNKNOWN) for c in numbers), np.int64, n)
    by_name = np.fromiter((name_of.get(c, UNKNOWN) for c in names), np.int64, n)
    label = np.maximum(by_number, by_name)
    agreed = (by_number == by_name) | (np.minimum(by_number, by_name) == NOT_GIVEN)
    fine = (
        np.isfinite(xywh).all()
        and np.isfinite(score).all()
        and (xywh[:, 2:] >= 0).all()
        and (image >= 0).all()
        and (agreed & (label >= 0)).all()
    )
    return DatasetDetections(image, label, xywh, score) if fine else None


class _Check:
    """The slow way: all problems of every record."""

    def __init__(self, file: str, dataset: Dataset, image_of: Mapping[ImageId, int]) -> None:
        self.file = file
        self.dataset = dataset
        self.image_of = image_of
        self.number_of = _label_indices(dataset.category_ids)
        self.name_of = _label_indices(dataset.classes)
        self.sets = _sets_of_short_ids(dataset)
        self.hints: dict[str, str] = {}

    def problems(self, records: Sequence[Any]) -> Iterator[Problem]:
        for i, record in enumerate(records):
            for kind, what, fix in self._record(record):
                yield Problem(kind, self.file, f"detection {i} (counted from 0)", what, fix)

    def _record(self, record: Any) -> Iterator[tuple[str, str, str]]:
        if not isinstance(record, dict):
            fix = 'write {"image_id", "category_id", "bbox", "score"} for each detection'
            yield "not an object", f"{shown(record)} is not an object", fix
            return
        for key in ("image_id", "bbox", "score"):
            if key not in record:
                yield "missing key", f'"{key}" is missing', f'add "{key}" to each detection'
        if "image_id" in record:
            yield from self._image(record["image_id"])
        yield from self._class(record.get("category_id"), record.get("category"))
        if "bbox" in record:
            yield from self._box(record["bbox"])
        if "score" in record and not _finite(record["score"]):
            what = f"score is {shown(record['score'])}, not a finite number"
            yield "wrong score", what, "use a number"

    def _image(self, key: Any) -> Iterator[tuple[str, str, str]]:
        if type(key) not in (int, float, str):
            what = f"image_id is {shown(key)}, not a number or text"
            yield "unknown image", what, "use the ids of the images that are scored"
            return
        index = self.image_of.get(key, UNKNOWN)
        if index == AMBIGUOUS:
            what = f"several images have the id {shown(key)}"
            yield "ambiguous image", what, "rename these pictures of the data set"
        elif index == UNKNOWN and key in self.sets:
            *others, last = self.sets[key]
            listed = f"{', '.join(others)} and {last}" if others else last
            what = f"the id {shown(key)} is in {listed}"
            yield "ambiguous image", what, "choose an image set with --subset"
        elif index == UNKNOWN:
            what = f"the data has no image with the id {shown(key)}.{self._expected(key)}"
            fix = "score on the images of these detections, or remove them"
            yield "unknown image", what, fix

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

    def _class(self, number: Any, name: Any) -> Iterator[tuple[str, str, str]]:
        fix = f"use a class of the data: {', '.join(self.dataset.classes[:20])}"
        if number is None and name is None:
            yield "missing key", '"category_id" or "category" is missing', fix
            return
        indices = {}
        if number is not None:
            known = type(number) in (int, float) and number in self.number_of
            if known:
                indices["category_id"] = self.number_of[number]
            else:
                ids = ", ".join(map(str, self.dataset.category_ids[:20]))
                what = f"the data has no class with the category_id {shown(number)}"
                yield "unknown class", what, f"use a category id of the data: {ids}"
        if name is not None:
            if isinstance(name, str) and name in self.name_of:
                indices["category"] = self.name_of[name]
            else:
                hint = self._nearest(name, self.dataset.classes) if isinstance(name, str) else ""
                yield "unknown class", f"the data has no class {shown(name)}.{hint}", fix
        if len(set(indices.values())) == 2:
            what = (
                f"category_id {shown(number)} is"
                f' "{self.dataset.classes[indices["category_id"]]}", but category is {shown(name)}'
            )
            yield "two classes", what, "give one of them, or the same class in both"

    def _box(self, box: Any) -> Iterator[tuple[str, str, str]]:
        fix = "write bbox as [x, y, width, height] in pixels"
        if not isinstance(box, list):
            yield "wrong box", f"bbox is {shown(box)}, not a list of four numbers", fix
        elif len(box) != 4:
            yield "wrong box", f"bbox has {len(box):,} values instead of 4", fix
        elif not all(map(_finite, box)):
            odd = next(v for v in box if not _finite(v))
            yield "wrong box", f"bbox contains {shown(odd)}, not a finite number", fix
        elif box[2] < 0 or box[3] < 0:
            what = f"bbox has a negative size: {shown(box[2])} x {shown(box[3])}"
            yield "wrong box", what, fix

    def _nearest(self, word: str, known: Iterable[str]) -> str:
        if word not in self.hints and len(self.hints) < HINTS and len(word) < 100:
            self.hints[word] = nearest(word, known)
        return self.hints.get(word, "")


def _image_indices(ids: Sequence[ImageId]) -> dict[ImageId, int]:
    """{image id: index}. A file stem may be the name of pictures in several folders."""
    indices: dict[ImageId, int] = {}
    for i, key in enumerate(ids):
        indices[key] = AMBIGUOUS if key in indices else i
    return indices


def _sets_of_short_ids(dataset: Dataset) -> dict[ImageId, list[str]]:
    """{short id: image sets in which it is unique}."""
    sets: dict[ImageId, list[str]] = {}
    for name, part in dataset.subsets.items():
        ids = [dataset.short_ids[i] for i in part.tolist()] if dataset.short_ids else []
        if len(set(ids)) == len(ids):
            for key in ids:
                sets.setdefault(key, []).append(name)
    return sets


def _label_indices(keys: Iterable[Any]) -> dict[Any, int]:
    return {None: NOT_GIVEN} | {key: i for i, key in enumerate(keys)}


def _types(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def _finite(value: Any) -> bool:
    """Whether it is a finite number; `true` and integers too large for a float are not."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
