"""What can be wrong with a data set that was read: boxes, classes, pictures, emptiness."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from mini_fsod.data.dataset import Bools, Boxes, Dataset, Ints
from mini_fsod.data.pictures import PictureError, drawn_size, look_at
from mini_fsod.data.text import shown
from mini_fsod.errors import Problem

# Formats round: YOLO writes shares, COCO two decimals. Less than this is no error of the annotator
ROUNDING = 0.5

PICTURE_FIXES = {
    "picture-missing": "put the picture there or remove the image",
    "picture-truncated": "fetch the picture again or remove the image",
    "picture-unreadable": "save the picture again or remove the image",
    "picture-bomb": "make the picture smaller",
    "picture-kind": "save the picture as JPEG or PNG, and name it so",
}


def box_kinds(data: Dataset) -> dict[str, Bools]:
    """(B,) for each kind of problem, which boxes have it; a box has one kind, the worst.

    Images of undeclared size have no edge to leave.
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
    told = np.zeros(len(boxes), dtype=np.bool_)
    for kind, bad in kinds.items():
        kinds[kind] = bad & ~told
        told |= bad
    return kinds


def box_problems(data: Dataset) -> list[Problem]:
    """Boxes that are NaN or infinite, negative, without area, or beyond the picture's edge."""
    boxes = data.boxes
    if len(boxes) == 0:
        return []
    size = data.sizes[boxes.image]
    fixes = {
        "box-nan": "correct the box or remove it",
        "box-negative": "the right edge must lie right of the left one, the bottom below the top",
        "box-no-area": "remove the box",
        "box-outside": "clip the box to the picture",
    }
    problems = []
    for kind, bad in box_kinds(data).items():
        for b in np.flatnonzero(bad).tolist():
            x, y, w, h = (f"{v:g}" for v in boxes.xywh[b].tolist())
            what = {
                "box-nan": "holds a value that is no number",
                "box-negative": "has a negative width or height",
                "box-no-area": "has no area",
                "box-outside": f"leaves the picture of {size[b, 0]} x {size[b, 1]}",
            }[kind]
            problems.append(
                Problem(
                    kind, *data.where(b), f"the box x {x} y {y} w {w} h {h} {what}", fixes[kind]
                )
            )
    return problems


def first_alike(boxes: Boxes) -> Ints:
    """(B,) the first box of the same image, class, coordinates and flags; its own place for others.

    No rounding: what is equal was copied. NaN is equal to nothing.
    """
    flags = boxes.crowd + 2 * boxes.ignore + 4 * boxes.difficult
    columns = np.column_stack([boxes.image, boxes.label, flags, boxes.xywh])
    order = np.lexsort(columns.T)  # stable: the first of equal ones stays the first
    new = np.ones(len(boxes), dtype=np.bool_)
    new[1:] = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    first = np.empty(len(boxes), dtype=np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    return first


def repeats(data: Dataset) -> Ints:
    """(B,) the box before it that each box repeats; -1 for none, and where another problem is."""
    first = first_alike(data.boxes)
    bad = first == np.arange(len(first))
    for other in box_kinds(data).values():
        bad |= other
    return np.where(bad, -1, first)


def repeat_problems(data: Dataset) -> list[Problem]:
    """Boxes that are copies of one before them, as in a label file whose lines are doubled.

    Apart from `box_problems`, which every reading asks for: they do no harm to it.
    """
    first = repeats(data)
    problems = []
    for b in np.flatnonzero(first >= 0).tolist():
        x, y, w, h = (f"{v:g}" for v in data.boxes.xywh[b].tolist())
        what = f"the box x {x} y {y} w {w} h {h} is that of {data.where(int(first[b]))[1]} again"
        problems.append(Problem("box-twice", *data.where(b), what, "remove one of them"))
    return problems


def first_of_picture(data: Dataset) -> Ints:
    """(I,) the first image of the same COCO file that has the same picture, its own place for most.

    In other formats an image is its picture; a name that two XML files share is a slip of one.
    """
    if data.kind != "coco":
        return np.arange(len(data), dtype=np.int64)
    place: dict[tuple[str, str], int] = {}
    pairs = enumerate(zip(data.sources, data.files, strict=True))
    return np.array([place.setdefault(pair, i) for i, pair in pairs], dtype=np.int64)


def file_problems(data: Dataset) -> list[Problem]:
    """One picture under several ids: objects with a box under the one are background under the
    other.
    """
    first = first_of_picture(data)
    problems = []
    for i in np.flatnonzero(first != np.arange(len(first))).tolist():
        record = f"image {data.ids[i]}: {data.files[i][:200]}"
        what = f"the picture is that of image {data.ids[int(first[i])]} too"
        fix = "give the picture one id, which has all of its boxes"
        problems.append(Problem("picture-twice", data.sources[i], record, what, fix))
    return problems


def spelling(name: str) -> str:
    """What is left of a class name when case, spaces, hyphens and underscores do not count."""
    return re.sub(r"[\s_\-]+", "", name).casefold()


def class_problems(data: Dataset) -> list[Problem]:
    """One class under several names. One name for several classes is told by the readers."""
    groups: dict[str, list[int]] = {}
    for c, name in enumerate(data.classes):
        groups.setdefault(spelling(name), []).append(c)
    source = data.sources[0] if data.kind == "coco" and len(data) else data.root.name
    problems = []
    for group in groups.values():
        if len({data.classes[c] for c in group}) > 1:
            names = " and ".join(shown(data.classes[c]) for c in group[:9])
            numbers = ", ".join(str(data.category_ids[c]) for c in group[:9])
            what = f"{names} (numbers {numbers}) look like one class under several spellings"
            problems.append(Problem("class-twice", source, "categories", what, "use one name"))
    return problems


def empty_problems(data: Dataset, source: str) -> list[Problem]:
    """No images at all, or annotations without a single box. A plain folder has none by nature."""
    if len(data) == 0:
        return [Problem("empty", source, "", "there are no images in it", "add images")]
    if len(data.boxes) == 0 and data.kind != "folder":
        return [Problem("empty", source, "", "there is not a single box in it", "add annotations")]
    return []


def picture_problems(
    data: Dataset, decode: bool, progress: Callable[[int], None] | None = None
) -> tuple[list[Problem], dict[int, tuple[int, int]]]:
    """Pictures that are missing, unreadable or of another size than declared.

    Also returns the true size of each picture that could be opened. A picture that EXIF turns by a
    quarter may be declared as stored or as seen: the declared size decides how it is read.
    """
    problems: list[Problem] = []
    sizes: dict[int, tuple[int, int]] = {}
    seen = look_at([data.path(i) for i in range(len(data))], decode, progress)
    for i, found in enumerate(seen):
        own = str(data.ids[i])
        record = "" if data.kind == "folder" else f"image {own}: {data.files[i][:200]}"
        if isinstance(found, PictureError):
            fix = PICTURE_FIXES[found.kind]
            problems.append(Problem(found.kind, data.sources[i], record, found.what, fix))
            continue
        declared = tuple(data.sizes[i].tolist())
        width, height = sizes[i] = drawn_size(*found, declared)
        if declared not in ((0, 0), sizes[i]):
            what = f"declared {declared[0]} x {declared[1]}, but the picture is {width} x {height}"
            fix = "state the picture's own size; its boxes may be off too"
            problems.append(Problem("size-wrong", data.sources[i], record, what, fix))
    return problems, sizes
