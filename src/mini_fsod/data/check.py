"""Problems of a data set that was read: boxes, classes, pictures, and nothing to train on."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.pictures import PictureError, drawn_size, picture_sizes
from mini_fsod.data.text import shown
from mini_fsod.errors import Problem

# In pixels. Formats round coordinates: YOLO writes shares, COCO two decimals
ROUNDING = 0.5

PICTURE_FIXES = {
    "picture-missing": "put the picture there, or remove the image",
    "picture-truncated": "download the picture again, or remove the image",
    "picture-unreadable": "save the picture again, or remove the image",
    "picture-too-large": "make the picture smaller",
    "picture-format": "save the picture as JPEG or PNG, with that suffix",
}


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


def box_problems(data: Dataset) -> list[Problem]:
    """Boxes that are NaN or infinite, negative, without area, or partly outside the picture."""
    boxes = data.boxes
    if len(boxes) == 0:
        return []
    size = data.sizes[boxes.image]
    fixes = {
        "box-nan": "correct the box or remove it",
        "box-negative": "put the right edge right of the left one, the bottom below the top",
        "box-no-area": "remove the box",
        "box-outside": "clip the box to the picture",
    }
    problems = []
    for kind, bad in box_kinds(data).items():
        for b in np.flatnonzero(bad).tolist():
            x, y, w, h = (f"{v:g}" for v in boxes.xywh[b].tolist())
            what = {
                "box-nan": "has a value that is NaN or infinite",
                "box-negative": "has a negative width or height",
                "box-no-area": "has no area",
                "box-outside": f"is partly outside the picture of {size[b, 0]} x {size[b, 1]}",
            }[kind]
            what = f"the box x {x} y {y} w {w} h {h} {what}"
            problems.append(Problem(kind, *data.where(b), what, fixes[kind]))
    return problems


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
    bad = first == np.arange(len(first))
    for other in box_kinds(data).values():
        bad |= other
    return np.where(bad, -1, first)


def duplicate_problems(data: Dataset) -> list[Problem]:
    """Boxes that duplicate an earlier one, as in a label file with doubled lines.

    Not part of `box_problems`: such data can still be read.
    """
    first = duplicate_of(data)
    problems = []
    for b in np.flatnonzero(first >= 0).tolist():
        x, y, w, h = (f"{v:g}" for v in data.boxes.xywh[b].tolist())
        what = f"the box x {x} y {y} w {w} h {h} duplicates {data.where(int(first[b]))[1]}"
        problems.append(Problem("box-duplicate", *data.where(b), what, "remove one of them"))
    return problems


def first_of_picture(data: Dataset) -> Ints:
    """(I,) index of the first image of the same COCO file with the same picture; often its own.

    In other formats, an image is its picture; two XML files with one <filename> are a typo.
    """
    if data.kind != "coco":
        return np.arange(len(data), dtype=np.int64)
    first: dict[tuple[str, str], int] = {}
    pairs = enumerate(zip(data.sources, data.files, strict=True))
    return np.array([first.setdefault(pair, i) for i, pair in pairs], dtype=np.int64)


def file_problems(data: Dataset) -> list[Problem]:
    """Pictures under several ids: objects of one image are background in the other."""
    first = first_of_picture(data)
    problems = []
    for i in np.flatnonzero(first != np.arange(len(first))).tolist():
        record = f"image {data.ids[i]}: {data.files[i][:200]}"
        what = f"image {data.ids[int(first[i])]} has the same picture"
        fix = "give the picture one id, with all its boxes"
        problems.append(Problem("picture-duplicate", data.sources[i], record, what, fix))
    return problems


def folded_name(name: str) -> str:
    """A class name without case, spaces, hyphens and underscores."""
    return re.sub(r"[\s_\-]+", "", name).casefold()


def class_problems(data: Dataset) -> list[Problem]:
    """Classes whose names differ in case or hyphens only. The readers report equal names."""
    groups: dict[str, list[int]] = {}
    for c, name in enumerate(data.classes):
        groups.setdefault(folded_name(name), []).append(c)
    source = data.sources[0] if data.kind == "coco" and len(data) else data.root.name
    problems = []
    for group in groups.values():
        if len({data.classes[c] for c in group}) > 1:
            names = " and ".join(shown(data.classes[c]) for c in group[:9])
            numbers = ", ".join(str(data.category_ids[c]) for c in group[:9])
            what = f"{names} (numbers {numbers}) look like one class in several spellings"
            problems.append(Problem("class-duplicate", source, "categories", what, "use one name"))
    return problems


def empty_problems(data: Dataset, source: str) -> list[Problem]:
    """No images, or annotations without boxes. A plain folder may have no boxes."""
    if len(data) == 0:
        return [Problem("empty", source, "", "no images", "add images")]
    if len(data.boxes) == 0 and data.kind != "folder":
        return [Problem("empty", source, "", "no boxes", "add annotations")]
    return []


def picture_problems(
    data: Dataset, decode: bool, progress: Callable[[int], None] | None = None
) -> tuple[list[Problem], dict[int, tuple[int, int]]]:
    """Pictures that are missing, unreadable or of another size than declared.

    Also returns the true size of each picture that could be opened. A picture that EXIF rotates may
    be declared as stored or as shown; it is read as declared.
    """
    problems: list[Problem] = []
    sizes: dict[int, tuple[int, int]] = {}
    paths = [data.path(i) for i in range(len(data))]
    for i, found in enumerate(picture_sizes(paths, decode, progress)):
        record = "" if data.kind == "folder" else f"image {data.ids[i]}: {data.files[i][:200]}"
        if isinstance(found, PictureError):
            fix = PICTURE_FIXES[found.kind]
            problems.append(Problem(found.kind, data.sources[i], record, found.what, fix))
            continue
        declared = tuple(data.sizes[i].tolist())
        width, height = sizes[i] = drawn_size(*found, declared)
        if declared not in ((0, 0), sizes[i]):
            what = f"declared {declared[0]} x {declared[1]}, but the picture is {width} x {height}"
            fix = "use the size of the picture; check its boxes too"
            problems.append(Problem("size-wrong", data.sources[i], record, what, fix))
    return problems, sizes
