"""Problems of a data set that was read: boxes, classes, pictures, and nothing to train on."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.data.problems import Report
from mini_fsod.data.text import shown
from mini_fsod.errors import Problem
from mini_fsod.labels import folded

# In pixels. Formats round coordinates: YOLO writes shares, COCO two decimals
ROUNDING = 0.5


def box_kinds(data: Dataset) -> dict[str, Bools]:
    """{kind of problem: (B,) boxes that have it}; a box has only the worst one.

    In images of unknown size, no box is outside.
    """
    boxes = data.boxes
    size = data.sizes[boxes.image]
    known = (size > 0).all(axis=1)
    beyond = (boxes.xywh[:, :2] < -ROUNDING).any(axis=1)
    beyond |= (boxes.xyxy[:, 2:] > size + ROUNDING).any(axis=1)
    kinds = {
        "box-nan": ~np.isfinite(boxes.xywh).all(axis=1),
        "box-negative": (boxes.xywh[:, 2:] < 0).any(axis=1),
        "box-no-area": (boxes.xywh[:, 2:] == 0).any(axis=1),
        "box-outside": beyond & known,
    }
    has_worse = np.zeros(len(boxes), dtype=np.bool_)
    for kind, bad in kinds.items():
        kinds[kind] = bad & ~has_worse
        has_worse |= bad
    return kinds


def _described(data: Dataset, b: int) -> str:
    x, y, w, h = data.boxes.xywh[b].tolist()
    return f"the box x {x:g} y {y:g} w {w:g} h {h:g}"


def box_problems(data: Dataset) -> list[Problem]:
    """Boxes that are NaN or infinite, negative, without area, or partly outside the picture."""
    report = Report()
    for kind, bad in box_kinds(data).items():
        for b in np.flatnonzero(bad).tolist():
            width, height = data.sizes[data.boxes.image[b]].tolist()
            what = {
                "box-nan": "has a value that is NaN or infinite",
                "box-negative": "has a negative width or height",
                "box-no-area": "has no area",
                "box-outside": f"is partly outside the picture of {width} x {height}",
            }[kind]
            file, record = data.where(b)
            report(kind, record, f"{_described(data, b)} {what}", file=file)
    return report.problems


def first_duplicate(boxes: Boxes) -> Ints:
    """(B,) index of the first box with the same image, class, coordinates and flags; often its own.

    Coordinates are compared exactly, and NaN is equal to nothing.
    """
    flags = boxes.crowd + 2 * boxes.ignore + 4 * boxes.difficult
    columns = np.column_stack([boxes.image, boxes.label, flags, boxes.xywh])
    order = np.lexsort(columns.T)  # stable: the first of equal ones stays the first
    new = np.ones(len(boxes), dtype=np.bool_)
    new[1:] = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    first = np.empty(len(boxes), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def duplicate_of(data: Dataset) -> Ints:
    """(B,) the earlier box that each box duplicates; -1 for none, and for boxes with problems."""
    first = first_duplicate(data.boxes)
    bad = np.any([first == np.arange(len(first)), *box_kinds(data).values()], axis=0)
    return np.where(bad, -1, first)


def duplicate_problems(data: Dataset) -> list[Problem]:
    """Boxes that duplicate an earlier one, as in a label file with doubled lines.

    Not part of `box_problems`: such data can still be read.
    """
    report = Report()
    first = duplicate_of(data)
    for b in np.flatnonzero(first >= 0).tolist():
        file, record = data.where(b)
        what = f"{_described(data, b)} duplicates {data.where(int(first[b]))[1]}"
        report("box-duplicate", record, what, file=file)
    return report.problems


def first_of_picture(data: Dataset) -> Ints:
    """(I,) index of the first image with the same picture; often its own.

    Several COCO files may name one picture: they are image sets. Of several XML files, the one that
    is named like the picture comes first.
    """
    keys = [
        (source if data.kind == "coco" else "", posixpath.normpath(file))
        for source, file in zip(data.sources, data.files, strict=True)
    ]
    first: dict[tuple[str, str], int] = {}
    if data.kind == "voc":
        for i, (key, file) in enumerate(zip(keys, data.files, strict=True)):
            if PurePosixPath(data.sources[i]).stem == PurePosixPath(file).stem:
                first.setdefault(key, i)
    return np.array([first.setdefault(key, i) for i, key in enumerate(keys)], dtype=np.int64)


def file_problems(data: Dataset) -> list[Problem]:
    """Pictures under several ids: objects of one image are background in the other.

    Two XML files that name one picture are another kind: one of the names is wrong.
    """
    report = Report()
    for i, first in enumerate(first_of_picture(data).tolist()):
        if first != i:
            file, record = data.where_image(i)
            kind, what = "picture-duplicate", f"image {data.ids[first]} has the same picture"
            if data.kind == "voc":
                kind, what = "filename-duplicate", f"{data.sources[first]} names the same picture"
            report(kind, record, what, file=file)
    return report.problems


def spellings(data: Dataset) -> list[list[int]]:
    """Classes grouped by their names without case, spaces, hyphens and underscores."""
    groups: dict[str, list[int]] = {}
    for c, name in enumerate(data.classes):
        groups.setdefault(folded(name), []).append(c)
    return list(groups.values())


def class_problems(data: Dataset) -> list[Problem]:
    """Classes whose names differ in case or hyphens only. The readers report equal names."""
    report = Report(data.sources[0] if data.kind == "coco" and len(data) else data.root.name)
    for group in spellings(data):
        if len({data.classes[c] for c in group}) > 1:
            names = " and ".join(shown(data.classes[c]) for c in group[:9])
            numbers = ", ".join(str(data.category_ids[c]) for c in group[:9])
            what = f"{names} (numbers {numbers}) look like one class in several spellings"
            report("class-duplicate", "categories", what)
    return report.problems


def empty_problems(data: Dataset, source: str) -> list[Problem]:
    """No images, or annotations without boxes. A plain folder may have no boxes."""
    report = Report(source)
    if len(data) == 0:
        report("empty", "", "no images")
    elif len(data.boxes) == 0 and data.kind != "folder":
        report("empty", "", "no boxes")
    return report.problems


def picture_problems(
    data: Dataset, decode: bool, progress: Callable[[int], None] | None = None
) -> tuple[list[Problem], dict[int, tuple[int, int]]]:
    """Pictures that are missing, unreadable or of another size than declared.

    Also returns the true size of each picture that could be opened. A picture that EXIF rotates may
    be declared as stored or as shown; it is read as declared.
    """
    report = Report()
    sizes: dict[int, tuple[int, int]] = {}
    paths = [data.path(i) for i in range(len(data))]
    for i, found in enumerate(picture_sizes(paths, decode, progress)):
        file, record = data.where_image(i)
        if isinstance(found, PictureError):
            report(found.kind, record, found.what, file=file)
            continue
        declared = tuple(data.sizes[i].tolist())
        width, height = sizes[i] = drawn_size(*found, declared)
        if declared not in ((0, 0), sizes[i]):
            what = f"declared {declared[0]} x {declared[1]}, but the picture is {width} x {height}"
            report("size-wrong", record, what, file=file)
    return report.problems, sizes
