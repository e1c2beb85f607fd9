"""The figures of a data set for few-shot detection: counts per class, and what can be mined."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.subsets import (
    NO_ROWS,
    base_set,
    boxes_by_class,
    hidden_boxes,
    image_sets,
    is_of,
    is_target,
)
from mini_fsod.errors import Problem, UserError
from mini_fsod.labels import LabelMap, label_map, novel_names, refuse_other_spellings

EVERYDAY = "torchvision:fasterrcnn_resnet50_fpn"  # a detector of COCO's classes
FEW_BARE = 0.1  # share of images without a box that is usual where all have been labelled


def split_classes(
    data: Dataset,
    split: str | None,
    novel: Sequence[str] | None,
    name: str,
    readable: bool,
    shots: tuple[Path, Dataset] | None = None,
) -> tuple[LabelMap, list[Problem]]:
    """The label map of `--split` or `--novel`; unknown or empty novel classes become problems.

    With an unknown novel class, all classes are base. `readable`: reading the data gave no problem.
    `shots` are a file with boxes of new classes, and its content.
    """
    try:
        novel_names(split, novel, data.classes)
        if not data.classes and not readable:
            return LabelMap((), ()), []  # the data could not be read: its classes are not known
        if (
            data.kind == "folder" and novel and shots is None
        ):  # its boxes are elsewhere, in shots.file
            return LabelMap((), tuple(novel_names(split, novel, novel))), []
        file, in_file = shots or (None, data)
        parts = [data, in_file]
        if file is not None:
            refuse_other_spellings(file, in_file.classes, data.classes)
        classes = tuple(dict.fromkeys((*data.classes, *in_file.classes)))
        labels = label_map(classes, split, novel, file)
        labels = LabelMap(tuple(c for c in labels.base if c in data.classes), labels.novel)
        empty = [c for c in labels.novel if not any(is_of(part, (c,)).any() for part in parts)]
        what = "the data has no box of it"
        fix = "label boxes of it in some images, or remove it from the novel classes"
        return labels, [Problem("novel-empty", name, f"class {one}", what, fix) for one in empty]
    except UserError as error:
        record = "--split" if split else "--novel"
        problem = Problem("novel-unknown", name, record, error.what, error.fix.rstrip("."))
        return LabelMap(tuple(dict.fromkeys(data.classes)), ()), [problem]


def base_problems(
    training: Dataset, labels: LabelMap, name: str, training_name: str, complete: bool
) -> list[Problem]:
    """A problem if there are novel classes but no base box to train the base detector on.

    The images of `training` are only searched if the data set is `complete`: one image set alone,
    or data with files that could not be read, says nothing about the rest.
    """
    if training.kind == "folder":
        return []  # `unlabelled_notes` says what can be done
    what = "there is no box of a base class to train on"
    if not (labels.novel and labels.base and complete):  # without base classes: `unlabelled_notes`
        return []
    if (is_target(training) & is_of(training, labels.base)).any():
        return []
    what += f" in {training_name}" if training_name else ""
    fix = (
        "label boxes of base classes there, choose another image set with --subset, or give a "
        "finished detector, whose classes are the base classes: base.checkpoint"
    )
    return [Problem("base-empty", name, "", what, fix)]


def summarize(
    data: Dataset,
    labels: LabelMap,
    sizes: dict[int, tuple[int, int]],
    training: Dataset,
    training_name: str,
) -> dict[str, Any]:
    """The content of `mini check --json`: counts per class, image sizes, and co-occurrence.

    How many novel boxes share an image with a base box is counted in `training`, the images that a
    run trains on and mines in. `sizes` holds width and height of the readable images.
    """
    boxes = data.boxes
    with np.errstate(over="ignore", invalid="ignore"):
        side = np.sqrt(np.maximum(boxes.xywh[:, 2] * boxes.xywh[:, 3], 0))
    finite = np.isfinite(side)
    mineable = hidden_boxes(training, labels)
    sets = {n: np.isin(np.arange(len(data)), data.subsets[n]) for n in image_sets(data)}
    hidden = boxes.crowd | boxes.ignore
    classes, of_class, novel = {}, boxes_by_class(data), {*labels.novel}
    for name in labels.classes:
        rows = of_class.get(name, NO_ROWS)
        sides = side[rows][finite[rows]]
        classes[name] = {
            "role": "novel" if name in novel else "base",
            "images": len(np.unique(boxes.image[rows])),
            "boxes": len(rows),
            "difficult": int(boxes.difficult[rows].sum()),
            "crowd": int(hidden[rows].sum()),
            "boxes_of_sets": {n: int(mask[boxes.image[rows]].sum()) for n, mask in sets.items()},
            "median_side": float(np.median(sides)) if len(sides) else None,
        }
        if name in mineable:
            classes[name]["training_boxes"], classes[name]["beside_base"] = mineable[name]
    known = np.array(list(sizes.values()), dtype=np.int64).reshape(-1, 2)
    return {
        "kind": data.kind,
        "images": len(data),
        "boxes": len(boxes),
        "subsets": {name: len(part) for name, part in data.subsets.items()},
        "sizes": {
            axis: [int(f(known[:, a])) for f in (np.min, np.median, np.max)] if len(known) else None
            for a, axis in enumerate(("width", "height"))
        },
        "label_map": labels.to_json(),
        "training_set": training_name or None,
        "training_images": len(training),
        "base_set_images": len(base_set(training, labels)) if labels.novel else None,
        "classes": classes,
    }


def unlabelled_notes(data: Dataset, training: Dataset, labels: LabelMap) -> list[str]:
    """What can be mined in training images without a box, where these are not few, and what takes
    the place of base classes, where there are none.
    """
    if data.kind != "folder" and labels.novel and not labels.base:
        return [
            "all classes are novel: there is no box of a base class to train on. Give a finished "
            f"detector, whose classes are the base classes (base.checkpoint: {EVERYDAY} knows 80)"
        ]
    bare = len(training) - len(np.unique(training.boxes.image))
    if bare <= FEW_BARE * len(training):
        return []
    if data.kind == "folder":
        return [
            f"{len(training):,} images without labels can all be mined: give a finished detector, "
            f"whose classes are the base classes (base.checkpoint: {EVERYDAY} knows 80), and a few "
            "boxes of the new class (shots.file)"
        ]
    return [
        f"{bare:,} of {len(training):,} images have no box. With a given detector "
        "(base.checkpoint) they count as not labelled, and are mined whole; without one, as "
        "labelled: nothing is in them"
    ]


def novel_notes(figures: dict[str, Any]) -> list[str]:
    """A note for each novel class whose boxes all lie outside the images that a run trains on."""
    training_name = figures["training_set"]
    return [
        f"{name} has no box in {training_name}, where a run trains, mines and draws its shots "
        f"({row['boxes']:,} elsewhere); shots.file takes shots from another data set"
        for name, row in figures["classes"].items()
        if row["role"] == "novel" and row["boxes"] and not row["training_boxes"]
    ]
