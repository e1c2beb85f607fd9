"""Base set and what hides in it (paper, section 3.1; protocol: novel boxes become background)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mini_fsod.data.dataset import Bools, Dataset
from mini_fsod.files import real
from mini_fsod.labels import LabelMap


def is_of(data: Dataset, names: tuple[str, ...]) -> Bools:
    """(B,) whether each box is of one of these classes."""
    wanted = np.array([c in names for c in data.classes], dtype=np.bool_)
    return wanted[data.boxes.label] if len(wanted) else np.zeros(0, dtype=np.bool_)


def is_target(data: Dataset) -> Bools:
    """(B,) what can be learnt from: no crowds, regions to ignore, boxes without area or elsewhere.

    `mini check` tells of the latter.
    """
    boxes = data.boxes
    return boxes.sound & ~(boxes.crowd | boxes.ignore) & data.shows(boxes.image, boxes.xywh)


def arranged(data: Dataset, labels: LabelMap) -> Dataset:
    """Classes in the order of the label map, the order of a detector's outputs.

    Classes of the map that the data lacks are there too, without boxes; all others are left out.
    """
    boxes = data.boxes.take(is_of(data, labels.classes))
    numbers = dict(zip(data.classes, data.category_ids, strict=True))
    spare = max(data.category_ids, default=0) + 1
    place = np.array([_place(c, labels.classes) for c in data.classes], dtype=np.int64)
    return replace(
        data,
        classes=labels.classes,
        category_ids=tuple(numbers.get(c, spare + i) for i, c in enumerate(labels.classes)),
        boxes=replace(boxes, label=place[boxes.label]) if len(boxes) else boxes,
    )


def _place(name: str, names: tuple[str, ...]) -> int:
    return names.index(name) if name in names else -1


def base_set(data: Dataset, labels: LabelMap) -> Dataset:
    """The base set D^b: images with at least one base box. Novel boxes are dropped, so that novel
    objects become background.
    """
    stripped = data.with_boxes(data.boxes.take(is_of(data, labels.base)))
    return stripped.select(np.unique(stripped.boxes.image))


def hidden(data: Dataset, labels: LabelMap) -> dict[str, tuple[int, int]]:
    """Novel class: (its boxes, those of them in images with a base box): what can be mined."""
    with_base = np.zeros(len(data), dtype=np.bool_)
    with_base[data.boxes.image[is_of(data, labels.base)]] = True
    counts = {}
    for name in labels.novel:
        own = data.boxes.image[is_of(data, (name,))]
        counts[name] = (len(own), int(with_base[own].sum()))
    return counts


def among(few: Dataset, whole: Dataset) -> Dataset:
    """The same images under the names that they have in `whole`, others under their full paths.

    Two folders may hold different pictures of the same name.
    """
    if few.root == whole.root:
        return few
    names = {real(whole.path(i)): file for i, file in enumerate(whole.files)}
    paths = [real(few.path(i)) for i in range(len(few))]
    return replace(
        few, root=whole.root, files=tuple(names.get(path, path.as_posix()) for path in paths)
    )


def united(one: Dataset, other: Dataset) -> Dataset:
    """Images and boxes of both, which have one root and the same classes; an image of both is one.

    Those that only the other has come last.
    """
    place = {file: i for i, file in enumerate(one.files)}
    new = [i for i, file in enumerate(other.files) if file not in place]
    place |= {other.files[i]: len(one) + n for n, i in enumerate(new)}
    there = np.array([place[file] for file in other.files], dtype=np.int64)
    return replace(
        one,
        ids=(*one.ids, *(f"shot {other.ids[i]}" for i in new)),
        files=(*one.files, *(other.files[i] for i in new)),
        sources=(*one.sources, *(other.sources[i] for i in new)),
        sizes=np.concatenate([one.sizes, other.sizes[new]]),
        boxes=one.boxes.joined(replace(other.boxes, image=there[other.boxes.image])),
        short_ids=(),
        subsets={},
    )


def with_base_boxes(shots: Dataset, everything: Dataset, labels: LabelMap) -> Dataset:
    """The shots of novel classes, and every base box of their pictures; classes as in `labels`.

    A picture of the balanced set shows more than its shots, and what a detector has learnt to find
    there would be taught as background. Of pictures that are not in `everything` the shots stay.
    """
    place = {file: i for i, file in enumerate(shots.files)}
    base = everything.boxes.take(is_of(everything, labels.base))
    image = np.array([place.get(file, -1) for file in everything.files], dtype=np.int64)[base.image]
    base = replace(base, image=image).take(image >= 0)
    elsewhere = ~np.isin(shots.files, everything.files)[shots.boxes.image]
    own = shots.boxes.take(is_of(shots, labels.novel) | elsewhere)
    return shots.with_boxes(own.joined(base))
