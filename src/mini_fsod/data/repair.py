"""A repaired copy of a data set. The source is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mini_fsod.data.check import spelling
from mini_fsod.data.coco import write_coco
from mini_fsod.data.dataset import Dataset
from mini_fsod.errors import Problem, UserError
from mini_fsod.labels import LabelMap

# what becomes of each kind of problem in the copy; kinds not named here: the record is left out
REPAIRS = {
    "box-outside": "clipped to the picture, or left out where nothing was left",
    "class-twice": "united under the name with the most boxes",
    "size-wrong": "declared with the picture's own size, boxes clipped to it",
    "id-twice": "numbered anew, or left out where two images had one id",
    "empty": "cannot be repaired",
}
LEFT_OUT = "left out"


def repaired(data: Dataset, sizes: Mapping[int, tuple[int, int]]) -> Dataset:
    """Sound boxes on readable pictures. `sizes`: true size by index, of what could be opened."""
    true = data.sizes.copy()
    for i, size in sizes.items():
        true[i] = size
    data = _unite_spellings(replace(data, sizes=true))
    boxes = data.boxes.take(data.boxes.sound)
    corners = boxes.xyxy
    edge = np.tile(true[boxes.image], 2).astype(np.float64)
    clipped = np.clip(corners, 0.0, edge)
    moved = (clipped != corners).any(axis=1)
    xywh = np.concatenate([clipped[:, :2], clipped[:, 2:] - clipped[:, :2]], axis=1)
    # untouched boxes keep their very numbers, and a mask's area stays where the box did
    area = np.where(moved, np.minimum(boxes.area, xywh[:, 2] * xywh[:, 3]), boxes.area)
    boxes = replace(boxes, xywh=np.where(moved[:, None], xywh, boxes.xywh), area=area)
    data = data.with_boxes(boxes.take(boxes.sound))
    return data.select(np.array(sorted(sizes), dtype=np.int64))


def _unite_spellings(data: Dataset) -> Dataset:
    count = np.bincount(data.boxes.label, minlength=len(data.classes))
    groups: dict[str, list[int]] = {}
    for c, name in enumerate(data.classes):
        groups.setdefault(spelling(name), []).append(c)
    chosen = {c: max(g, key=lambda c: int(count[c])) for g in groups.values() for c in g}
    keep = sorted(set(chosen.values()))
    place = np.array([keep.index(chosen[c]) for c in range(len(data.classes))], dtype=np.int64)
    boxes = data.boxes
    return replace(
        data,
        classes=tuple(data.classes[c] for c in keep),
        category_ids=tuple(data.category_ids[c] for c in keep),
        boxes=replace(boxes, label=place[boxes.label]) if len(boxes) else boxes,
    )


def write_repaired(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    progress: Callable[[int], None] | None = None,
) -> None:
    """`out/annotations.json` (COCO) and copies of the pictures; the folder appears when whole.

    Several image sets become a file each: annotations/train.json, annotations/test.json.
    """
    if len(data) == 0:
        raise UserError("Nothing in the data can be used.", "A repaired copy would be empty.")
    source, target = data.root.resolve(), out.resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty.", "Choose a new folder for --fix.")
    if target == source or source in target.parents:
        raise UserError(f"{out} lies inside the data set.", "Choose a folder outside of it.")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        for n, name in enumerate(data.files):
            place = part / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, place)
            if progress:
                progress(n + 1)
        info = {"description": "a copy repaired by `mini check --fix`"}
        first = 1
        for name in _image_sets(data):
            subset = data.subset(name)
            write_coco(part / "annotations" / f"{name}.json", subset, labels, info, first)
            first += len(subset)
        if first == 1:
            write_coco(part / "annotations.json", data, labels, info)
        if out.exists():
            out.rmdir()
        part.replace(target)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}).", "Free space, or choose another folder."
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _image_sets(data: Dataset) -> list[str]:
    """The image sets to write, none of them a part of another (VOC's train and val are)."""
    names = [name for name in data.subsets if "/" not in name]
    return [n for n in names if n not in ("train", "val")] if "trainval" in names else names


def changes(problems: Sequence[Problem]) -> list[str]:
    """What the repair did, a line for each kind of problem."""
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.kind] = counts.get(problem.kind, 0) + 1
    return [f"{n:,} x {kind}: {REPAIRS.get(kind, LEFT_OUT)}" for kind, n in counts.items()]
