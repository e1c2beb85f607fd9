"""A repaired copy of a data set. The source is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mini_fsod.data.check import box_kinds, first_alike, first_of_picture, repeats, spelling
from mini_fsod.data.dataset import Bools, Dataset
from mini_fsod.data.text import shown
from mini_fsod.data.write import write_coco
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_folder, mode, real
from mini_fsod.labels import LabelMap

# what becomes of each kind of problem in the copy; of kinds not named here the record is left out
OUTCOMES = {
    "area-wrong": "taken from the box",
    "base-empty": "cannot be repaired",
    "box-twice": "taken once",
    "class-twice": "united under the name with the most boxes",
    "empty": "cannot be repaired",
    "id-twice annotation": "numbered anew",
    "id-twice category": "boxes of that category left out, as it is open what they are",
    "id-twice image": "images of that id left out, with their boxes",
    "json-broken": "what stands behind that place could not be read",
    "not-coco": "not read",
    "novel-empty": "cannot be repaired",
    "novel-unknown": "not repaired: name the classes that are there",
    "path-outside filename": "looked for by the name of the XML file",
    "picture-twice": "united under the first id, with the boxes of all",
    "record-twice": "taken once",
    "set-leak": "not repaired: which image set the picture belongs to is open",
    "size-missing": "the picture's own size stated, where it could be read",
    "size-wrong": "the picture's own size stated, where it could be read",
    "yaml-missing": "the labels were not read",
}
LEFT_OUT = "left out"
PICTURE_LEFT_OUT = "the image left out, with its boxes"

UNREPAIRED = (
    "base-empty",
    "empty",
    "not-coco",
    "novel-empty",
    "novel-unknown",
    "set-leak",
    "yaml-missing",
)


@dataclass(frozen=True, slots=True)
class Repair:
    """What can be used of a data set, and what was done to its boxes and classes."""

    data: Dataset
    renamed: Mapping[str, str]  # spellings that were united with another
    kept: Bools  # (B,) of the source's boxes
    clipped: Bools  # (B,) of the source's boxes, kept ones only
    repeated: Bools  # (B,) of the source's boxes, left out because another is the same

    def labels(self, labels: LabelMap) -> LabelMap:
        """The label map of the copy: a class that was novel under any spelling is novel."""
        novel = dict.fromkeys(self.renamed.get(c, c) for c in labels.novel)
        base = dict.fromkeys(self.renamed.get(c, c) for c in labels.base)
        there = self.data.classes
        return LabelMap(
            tuple(c for c in base if c in there and c not in novel),
            tuple(c for c in novel if c in there),
        )


def repair(data: Dataset, sizes: Mapping[int, tuple[int, int]]) -> Repair:
    """Sound boxes on readable pictures. `sizes`: true size by index, of what could be opened."""
    true = data.sizes.copy()
    readable = np.zeros(len(data), dtype=np.bool_)
    for i, size in sizes.items():
        true[i] = size
        readable[i] = True
    data, renamed = _unite_spellings(replace(data, sizes=true))
    data, readable = _unite_ids(data, readable)
    boxes = data.boxes
    corners = boxes.xyxy
    edge = np.tile(true[boxes.image], 2).astype(np.float64)
    clipped = np.clip(corners, 0.0, edge)
    moved = (clipped != corners).any(axis=1)
    xywh = np.concatenate([clipped[:, :2], clipped[:, 2:] - clipped[:, :2]], axis=1)
    # untouched boxes keep their very numbers, and a mask's area stays where the box did
    area = np.where(moved, np.minimum(boxes.area, xywh[:, 2] * xywh[:, 3]), boxes.area)
    mended = replace(boxes, xywh=np.where(moved[:, None], xywh, boxes.xywh), area=area)
    usable = boxes.sound & mended.sound & readable[boxes.image]
    # asked last: boxes may be the same only when they are clipped, or of one class
    repeated = np.zeros(len(boxes), dtype=np.bool_)
    repeated[usable] = first_alike(mended.take(usable)) != np.arange(usable.sum())
    kept = usable & ~repeated
    whole = data.with_boxes(mended.take(kept))
    return Repair(whole.select(np.flatnonzero(readable)), renamed, kept, moved & kept, repeated)


def _unite_ids(data: Dataset, readable: Bools) -> tuple[Dataset, Bools]:
    """The boxes of a picture under one id, and (I,) the images that are still needed.

    Ids that turn their picture differently stay apart: their boxes do not lie on one picture.
    """
    first = first_of_picture(data)
    first = np.where((data.sizes[first] == data.sizes).all(axis=1), first, np.arange(len(first)))
    boxes = replace(data.boxes, image=first[data.boxes.image])
    return data.with_boxes(boxes), readable & (first == np.arange(len(first)))


def _unite_spellings(data: Dataset) -> tuple[Dataset, dict[str, str]]:
    count = np.bincount(data.boxes.label, minlength=len(data.classes))
    groups: dict[str, list[int]] = {}
    for c, name in enumerate(data.classes):
        groups.setdefault(spelling(name), []).append(c)
    chosen = {c: max(g, key=lambda c: int(count[c])) for g in groups.values() for c in g}
    keep = sorted(set(chosen.values()))
    place = np.array([keep.index(chosen[c]) for c in range(len(data.classes))], dtype=np.int64)
    names = [(data.classes[c], data.classes[k]) for c, k in chosen.items()]
    boxes = data.boxes
    united = replace(
        data,
        classes=tuple(data.classes[c] for c in keep),
        category_ids=tuple(data.category_ids[c] for c in keep),
        boxes=replace(boxes, label=place[boxes.label]) if len(boxes) else boxes,
    )
    return united, {old: new for old, new in names if old != new}


def write_repaired(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    source: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """`out/annotations.json` (COCO) and copies of the pictures; the folder appears when whole.

    Several image sets become a file each: annotations/train.json, annotations/test.json; pictures
    without annotations stay so. `source` is a folder that the copy may not lie in: there it would
    become a part of the data set.
    """
    if len(data) == 0:
        raise UserError("Nothing in the data can be used.", "A repaired copy would be empty.")
    target = real(out)
    try:
        if mode(out) and (not is_folder(out) or any(out.iterdir())):
            raise UserError(f"{out} exists and is not empty.", "Choose a new folder for --fix.")
        if source is not None and real(source) in (target, *target.parents):
            raise UserError(f"{out} lies inside the data set.", "Choose a folder outside of it.")
        part = target.with_name(f".{target.name}.part")
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None
    shutil.rmtree(part, ignore_errors=True)
    try:
        for n, name in enumerate(data.files):
            place = part / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data.root / name, place)
            if progress:
                progress(n + 1)
        if data.kind != "folder":
            _write_annotations(part, data, labels)
        if mode(out):
            out.rmdir()
        part.replace(target)
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unwritable(out: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(
        f"{out}: cannot be written ({reason}).", "Free space, or choose another folder."
    )


def _write_annotations(out: Path, data: Dataset, labels: LabelMap) -> None:
    info = {"description": "a copy repaired by `mini check --fix`"}
    first = 1
    for name in _image_sets(data):
        subset = data.subset(name)
        write_coco(out / "annotations" / f"{name}.json", subset, labels, info, first)
        first += len(subset)
    if first == 1:
        write_coco(out / "annotations.json", data, labels, info)


def _image_sets(data: Dataset) -> list[str]:
    """The image sets to write: those with images left, VOC's train and val as parts of trainval."""
    names = [n for n, images in data.subsets.items() if "/" not in n and len(images)]
    whole = data.subsets.get("trainval", ())
    parts = [n for n in names if n in ("train", "val") and np.isin(data.subsets[n], whole).all()]
    return [n for n in names if n not in parts]


def changes(problems: Sequence[Problem], data: Dataset, done: Repair) -> list[str]:
    """What the repair did to the source `data`, a line for each kind of problem, and the rest."""
    counts: dict[tuple[str, str], int] = {}
    for problem in problems:
        if problem.kind != "box-outside":
            key = (problem.kind, _outcome(problem))
            counts[key] = counts.get(key, 0) + 1
    lines = [f"{n:,} x {kind}: {outcome}" for (kind, outcome), n in counts.items()]
    lines += [f"{shown(old)} is called {shown(new)}" for old, new in done.renamed.items()]
    outside = box_kinds(data)["box-outside"]
    clipped = int((outside & done.clipped).sum())
    gone = int((outside & ~done.kept).sum())
    parts = [f"{clipped:,} clipped to the picture"] * (clipped > 0)
    parts += [f"{gone:,} left out"] * (gone > 0)
    kept = int(outside.sum()) - clipped - gone  # a wrong size was declared, the box was right
    parts += [f"{kept:,} kept, as the picture is larger than declared"] * (kept > 0)
    if parts:
        lines.append(f"{int(outside.sum()):,} x box-outside: {', '.join(parts)}")
    others = int((done.clipped & ~outside).sum())
    if others:
        lines.append(f"{others:,} more boxes clipped to the picture's edge")
    same = int((done.repeated & ~outside & (repeats(data) < 0)).sum())
    if same:
        boxes = "1 more box" if same == 1 else f"{same:,} more boxes"
        lines.append(f"{boxes} left out: after all this the same as another")
    return lines + [f"not copied: {what}" for what in data.unread]


def _outcome(problem: Problem) -> str:
    word = problem.record.split(" ")[0]
    named = OUTCOMES.get(f"{problem.kind} {word}") or OUTCOMES.get(problem.kind)
    if named:
        return named
    return PICTURE_LEFT_OUT if problem.kind.startswith("picture-") else LEFT_OUT
