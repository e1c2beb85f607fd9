"""A repaired copy of a data set. The original is never changed."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from mini_fsod.data.check import (
    box_kinds,
    duplicate_of,
    first_duplicate,
    first_of_picture,
    spellings,
)
from mini_fsod.data.dataset import Bools, Dataset
from mini_fsod.data.file_names import stays_inside
from mini_fsod.data.problems import outcome
from mini_fsod.data.subsets import image_sets
from mini_fsod.data.text import shown
from mini_fsod.data.write import write_coco
from mini_fsod.errors import Problem, UserError
from mini_fsod.files import is_folder, mode, real
from mini_fsod.labels import LabelMap


@dataclass(frozen=True, slots=True)
class Repair:
    """The usable part of a data set, and what was changed."""

    data: Dataset
    renamed: Mapping[str, str]  # {spelling: the one it was merged into}
    kept: Bools  # (B,) boxes of the original
    clipped: Bools  # (B,) kept boxes that were clipped to the picture
    duplicate: Bools  # (B,) boxes left out because another is the same

    def labels(self, labels: LabelMap) -> LabelMap:
        """The label map of the copy: a class that was novel in any spelling is novel."""
        novel = dict.fromkeys(self.renamed.get(c, c) for c in labels.novel)
        base = dict.fromkeys(self.renamed.get(c, c) for c in labels.base)
        kept = frozenset(self.data.classes)
        return LabelMap(
            tuple(c for c in base if c in kept and c not in novel),
            tuple(c for c in novel if c in kept),
        )


def repair(data: Dataset, sizes: Mapping[int, tuple[int, int]]) -> Repair:
    """Valid boxes on readable pictures. `sizes`: {image index: true size} of readable pictures."""
    readable = np.zeros(len(data), dtype=np.bool_)
    readable[list(sizes)] = True
    true = data.sizes.copy()
    for i, size in sizes.items():
        true[i] = size
    data, renamed = _merge_spellings(replace(data, sizes=true))
    data, readable = _merge_ids(data, readable)
    boxes = data.boxes
    corners = boxes.xyxy
    edge = np.tile(true[boxes.image], 2).astype(np.float64)
    clipped = np.clip(corners, 0.0, edge)
    moved = (clipped != corners).any(axis=1)
    xywh = np.concatenate([clipped[:, :2], clipped[:, 2:] - clipped[:, :2]], axis=1)
    # boxes that were not clipped keep their exact coordinates and the area of their mask
    area = np.where(moved, np.minimum(boxes.area, xywh[:, 2] * xywh[:, 3]), boxes.area)
    mended = replace(boxes, xywh=np.where(moved[:, None], xywh, boxes.xywh), area=area)
    usable = boxes.sound & mended.sound & readable[boxes.image]
    # last, because clipping or merging classes may make boxes equal
    duplicate = np.zeros(len(boxes), dtype=np.bool_)
    duplicate[usable] = first_duplicate(mended.take(usable)) != np.arange(usable.sum())
    kept = usable & ~duplicate
    whole = data.with_boxes(mended.take(kept))
    return Repair(whole.select(np.flatnonzero(readable)), renamed, kept, moved & kept, duplicate)


def _merge_ids(data: Dataset, readable: Bools) -> tuple[Dataset, Bools]:
    """Boxes of a picture with several ids moved to the first id, and (I,) the images to keep.

    Ids that declare another size than the first are left out with their boxes: EXIF rotation
    applies to one of them only. So are XML files that name the picture of another one.
    """
    first = first_of_picture(data)
    each_itself = np.arange(len(first))
    merged = (data.sizes[first] == data.sizes).all(axis=1) & (data.kind != "voc")
    boxes = replace(data.boxes, image=np.where(merged, first, each_itself)[data.boxes.image])
    return data.with_boxes(boxes), readable & (first == each_itself)


def _merge_spellings(data: Dataset) -> tuple[Dataset, dict[str, str]]:
    """Spellings of one class merged under the one with the most boxes; {old name: new name}."""
    count = np.bincount(data.boxes.label, minlength=len(data.classes))
    chosen = {c: max(g, key=lambda c: int(count[c])) for g in spellings(data) for c in g}
    keep = sorted(set(chosen.values()))
    new_index = {c: n for n, c in enumerate(keep)}
    label = np.array([new_index[chosen[c]] for c in range(len(data.classes))], dtype=np.int64)
    names = [(data.classes[c], data.classes[k]) for c, k in chosen.items()]
    merged = replace(
        data,
        classes=tuple(data.classes[c] for c in keep),
        category_ids=tuple(data.category_ids[c] for c in keep),
        boxes=replace(data.boxes, label=label[data.boxes.label]),
    )
    return merged, {old: new for old, new in names if old != new}


def write_repaired(
    out: Path,
    data: Dataset,
    labels: LabelMap,
    source: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write COCO annotations and copies of the pictures; the folder appears when it is complete.

    Annotations go to annotations.json, or to one file per image set: annotations/train.json. A
    plain folder has none. `source` is the data set's folder: the copy must not be inside it.
    """
    if len(data) == 0:
        raise UserError("Nothing in the data is usable.", "A repaired copy would be empty.")
    if len(data.boxes) == 0 and data.kind != "folder":
        raise UserError("No box of the data is usable.", "A repaired copy would have none.")
    target = real(out)
    try:
        if mode(out) and (not is_folder(out) or any(out.iterdir())):
            raise UserError(f"{out} exists and is not empty.", "Choose a new folder for --fix.")
        if source is not None and real(source) in (target, *target.parents):
            raise UserError(f"{out} is inside the data set.", "Choose a folder outside it.")
        part = target.with_name(f".{target.name}.part")
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None
    shutil.rmtree(part, ignore_errors=True)
    try:
        names = _portable(data.files)
        for n, (name, old) in enumerate(zip(names, data.files, strict=True)):
            copy = part / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(data.root / old, copy)
            if progress:
                progress(n + 1)
        data = replace(data, files=names)
        if data.kind != "folder":
            _write_annotations(part, data, labels)
        if mode(out):
            out.rmdir()
        part.replace(target)
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _portable(files: Sequence[str]) -> tuple[str, ...]:
    """File names that COCO readers find: in a path of Windows, a backslash is no part of a name."""
    taken = set(files)
    names = []
    for name in files:
        if "\\" in name or not stays_inside(name):
            name = re.sub(r"[\\:]", "_", name)
            while name in taken:
                name = str(PurePosixPath(name).with_stem(f"{PurePosixPath(name).stem}_"))
            taken.add(name)
        names.append(name)
    return tuple(names)


def _unwritable(out: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(
        f"{out}: cannot be written ({reason}).", "Free some space, or choose another folder."
    )


def _write_annotations(out: Path, data: Dataset, labels: LabelMap) -> None:
    info = {"description": "repaired by `mini check --fix`"}
    first = 1
    for name in image_sets(data):
        subset = data.subset(name)
        write_coco(out / "annotations" / f"{name}.json", subset, labels, info, first)
        first += len(subset)
    if first == 1:
        write_coco(out / "annotations.json", data, labels, info)


def changes(problems: Sequence[Problem], data: Dataset, done: Repair) -> list[str]:
    """What the repair changed in the original `data`, one line per kind of change."""
    counts: Counter[tuple[str, str]] = Counter()
    for p in problems:
        if p.kind != "box-outside":
            counts[p.kind, outcome(p)] += p.count
    lines = [f"{n:,} x {kind}: {result}" for (kind, result), n in counts.items()]
    lines += [f"{shown(old)} renamed to {shown(new)}" for old, new in done.renamed.items()]
    outside = box_kinds(data)["box-outside"]
    results = {
        "clipped to the picture": outside & done.clipped,
        "left out": outside & ~done.kept,
        "kept: the picture is larger than declared": outside & done.kept & ~done.clipped,
    }
    parts = [f"{boxes.sum():,} {result}" for result, boxes in results.items() if boxes.any()]
    if parts:
        lines.append(f"{outside.sum():,} x box-outside: {', '.join(parts)}")
    others = int((done.clipped & ~outside).sum())
    if others:
        lines.append(f"{others:,} more boxes clipped to the picture's edge")
    same = int((done.duplicate & ~outside & (duplicate_of(data) < 0)).sum())
    if same:
        boxes = "1 more box" if same == 1 else f"{same:,} more boxes"
        lines.append(f"{boxes} left out: duplicates after these changes")
    return lines + [f"not copied: {what}" for what in data.unread]
